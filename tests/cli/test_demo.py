"""``pixalign demo`` and ``pixalign scenes``."""

import pytest


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """What the demo is asked, in place of doing it."""
    asked = []

    def demo(model, out, **options):
        asked.append((model, out, options))
        return tmp_path / "report.html"

    monkeypatch.setattr("pixalign.scenes.demo.demo", demo)
    return asked


def test_demo(shell, calls, sd1_folder, tmp_path, monkeypatch):
    out, where = tmp_path / "my demo", tmp_path / "report.html"
    arguments = ("--out", out, "--model", sd1_folder, "--seed", 3, "--device", "cpu")
    assert shell("demo", *arguments)[:2] == (0, f"open {where}\n")
    ((model, folder, options),) = calls
    assert (model.name, folder) == (str(sd1_folder), out)
    typed = f"pixalign demo --out '{out}' --seed 3 --model {sd1_folder} --device cpu"
    assert options == {"seed": 3, "command": typed}
    shell("demo", "--out", out)
    assert calls[1][0].name == "lab:sd2"  # in a checkout
    assert calls[1][2]["command"] == f"pixalign demo --out '{out}' --seed 0 --model lab:sd2"
    monkeypatch.setenv("PIXALIGN_MODELS", str(tmp_path))
    shell("demo", "--out", out)
    assert calls[2][0].name == "sd1-like, embedded"


def test_a_folder_in_the_way_is_found_before_the_model_is_loaded(shell, calls, tmp_path):
    (tmp_path / "out").write_text("")
    code, _, err = shell("demo", "--out", tmp_path / "out", "--model", "nowhere")
    assert (code, calls) == (2, [])
    assert "is a file; name a folder" in err


def test_scenes(shell, tmp_path):
    code, out, err = shell("scenes", "--count", 2, "--size", 64, "--out", tmp_path / "s")
    assert code == 0, err
    assert out == f"6 files written to {tmp_path / 's'}\n"
    assert {path.name for path in (tmp_path / "s").iterdir()} == {
        "00000.png", "00000_mask.png", "00001.png", "00001_mask.png", "scenes.json", "sheet.png",
    }  # fmt: skip

"""The command, as typed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tiny
from pixalign import AlignConfig, cli
from pixalign.core.batching import BatchSize

SCRIPT = Path(sys.executable).with_name("pixalign")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["pixalign", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "street photo.jpg"
    tiny.photo(90, 60).save(path)
    return path


def segment(picture, sd1_folder, *more, classes=("dog", "hot dog", "car=a red car")):
    return ("segment", picture, *classes, "--model", sd1_folder, "--device", "cpu", *more)


def test_segment_writes_everything(run, picture, sd1_folder, tmp_path):
    code, out, _ = run(*segment(picture, sd1_folder, "--out", tmp_path / "out", "--seed", 3))
    assert code == 0
    assert "dog" in out
    assert "score" in out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "mask.png", "overlay.png", "result.json",
        "heatmap_1_dog.png", "heatmap_2_hot-dog.png", "heatmap_3_car.png",
    }  # fmt: skip
    mask = Image.open(tmp_path / "out" / "mask.png")
    assert (mask.mode, mask.size) == ("P", (90, 60))
    record = json.loads((tmp_path / "out" / "result.json").read_text())
    assert record["seed"] == 3
    assert record["config"]["elbo_steps"] == 20
    assert record["versions"]["torch"]
    assert record["model"]["family"] == "sd"
    assert [row["phrase"] for row in record["classes"]] == ["dog", "hot dog", "a red car"]
    shares = np.bincount(np.asarray(mask).ravel(), minlength=4) / (90 * 60)
    for row, share in zip(record["classes"], shares[1:], strict=True):
        assert row["pixel_share"] == pytest.approx(share, abs=1e-6)


def test_json_is_alone_on_stdout(picture, sd1_folder, tmp_path):
    """A real process, so that libraries' chatter counts too."""
    command = [SCRIPT, *segment(picture, sd1_folder, "--json", "--preset", "uncalibrated")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["classes"][0]["elbo"] is None
    assert sorted(path.name for path in tmp_path.iterdir()) == [picture.name]  # no files


def test_json_and_file_hold_the_same(run, picture, sd1_folder, tmp_path):
    _, out, _ = run(*segment(picture, sd1_folder, "--json", "--out", tmp_path / "out"))
    assert json.loads(out) == json.loads((tmp_path / "out" / "result.json").read_text())


def test_options_reach_the_settings(run, picture, sd1_folder):
    options = ("--json", "--preset", "official", "--resize", "keep", "--gamma", "0.5")
    more = ("--threshold", "0.25", "--caption", "a dog, a hot dog and a red car")
    code, out, err = run(*segment(picture, sd1_folder, *options, *more))
    assert code == 0, err
    record = json.loads(out)
    assert record["prompts"] == ["a dog, a hot dog and a red car"]
    assert record["config"]["gamma"] == 0.5
    assert record["config"]["resize"] == "keep"
    assert record["threshold"] == 0.25
    assert record["timesteps"]["elbo"] == list(range(1, 1000, 50))


def test_fast_and_low_memory(run, picture, sd1_folder, monkeypatch):
    asked, of = set(), BatchSize.of

    def spy(self, *rest):
        asked.add(self.memory)
        return of(self, *rest)

    monkeypatch.setattr(BatchSize, "of", spy)
    more = ("--json", "--preset", "fast", "--memory", "low")
    code, out, err = run(*segment(picture, sd1_folder, *more))
    assert code == 0, err
    record = json.loads(out)
    assert asked == {"low"}
    assert record["config"]["elbo_tolerance"] == AlignConfig.fast().elbo_tolerance
    visited = len(record["timesteps"]["elbo"])
    assert visited in (5, 10, 15, 20)
    assert record["forwards"] == {"collect": 10, "elbo": 3 * visited}
    assert [len(row["losses"]) for row in record["classes"]] == [visited] * 3


def test_default_folder_is_named_after_the_picture(run, picture, sd1_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(*segment(picture, sd1_folder, "--preset", "uncalibrated"))
    assert code == 0
    assert "written to street photo-pixalign" in out
    assert (tmp_path / "street photo-pixalign" / "mask.png").is_file()


def test_without_a_model_the_embedded_one_is_asked(run, picture, tmp_path):
    arguments = ("segment", picture, "dog", "cat", "--device", "cpu", "--preset", "uncalibrated")
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    record = json.loads(out)
    assert record["model"]["name"] == "sd1-like, embedded"
    assert record["model"]["family"] == "sd"


def damaged(picture):
    picture.write_bytes(picture.read_bytes()[:400])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"classes": ("dog", "dog")}, "class 'dog' is given twice"),
        ({"classes": ("dog", " ")}, "class 2 of 2 is empty"),
        ({"classes": ("dog=",)}, "nothing after '='"),
        ({"classes": ("zebra " * 60,)}, "alone is longer"),
        ({"more": ("--caption", "a cat")}, "does not occur in the caption"),
        ({"more": ("--gamma", "0")}, "gamma is 0.0; allowed"),
        ({"more": ("--threshold", "7")}, "threshold is 7.0; allowed: 0 to 1"),
        ({"more": ("--device", "tpu")}, "device is 'tpu'; allowed"),
        ({"more": ("--dtype", "int8")}, "dtype is 'int8'; allowed"),
        ({"more": ("--batch-size", "lots")}, "batch_size is 'lots'; allowed"),
        ({"more": ("--memory", "tiny")}, "memory is 'tiny'; allowed: 'normal', 'low'"),
        ({"model": "nowhere"}, "neither a folder nor a hub id"),
        ({"model": "nobody/nothing"}, "is not to be had"),
        ({"picture": "missing.png"}, "'missing.png' is missing"),
        ({"damage": damaged}, "is damaged or cut short"),
        ({"pixels": (1, 1)}, "1x1 pixels"),
    ],
)
def test_bad_input_is_one_line_and_code_two(
    run, picture, sd1_folder, tmp_path, monkeypatch, change, said
):
    monkeypatch.chdir(tmp_path)
    if "damage" in change:
        change["damage"](picture)
    if "pixels" in change:
        Image.new("RGB", change["pixels"]).save(picture)
    before = sorted(tmp_path.iterdir())
    arguments = ["segment", change.get("picture", picture), *change.get("classes", ("dog",))]
    arguments += ["--model", change.get("model", sd1_folder)]
    arguments += ["--device", "cpu"] if "--device" not in change.get("more", ()) else []
    code, out, err = run(*arguments, *change.get("more", ()))

    assert code == 2
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("pixalign: ")]
    assert len(lines) == 1
    assert said in lines[0]
    assert "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == before


def test_output_that_is_a_file_is_refused_before_work(run, picture, sd1_folder):
    code, _, err = run(*segment(picture, sd1_folder, "--out", picture))
    assert code == 2
    assert "is a file; name a folder" in err


def test_usage_errors_end_with_two(run):
    assert run("segment")[0] == 2
    assert run("segment", "a.png", "dog", "--preset", "best")[0] == 2


def test_traceback_on_request(run, monkeypatch):
    monkeypatch.setenv("PIXALIGN_TRACEBACK", "1")
    monkeypatch.setattr(sys, "argv", ["pixalign", "segment", "missing.png", "dog"])
    with pytest.raises(FileNotFoundError):
        cli.main()


def test_models(run):
    code, out, _ = run("models")
    assert code == 0
    for family in ("sd ", "sdxl", "sd3"):
        assert family in out
    record = json.loads(run("models", "--json")[1])
    assert {entry["family"] for entry in record["families"]} == {"sd", "sdxl", "sd3"}


def test_doctor(run):
    code, out, _ = run("doctor", "--device", "cpu")
    assert code == 0
    assert "All is well." in out
    record = json.loads(run("doctor", "--device", "cpu", "--json")[1])
    assert record["device"] == "cpu"
    assert record["dtypes"] == {"sd": "float32", "sdxl": "float32", "sd3": "float32"}
    assert record["versions"]["diffusers"]
    assert record["problems"] == []


def test_help_is_quick_and_names_the_commands(run):
    code, out, _ = run("--help")
    assert code == 0
    for command in ("segment", "models", "doctor"):
        assert command in out


def test_cached_models_are_found(tmp_path, monkeypatch, sd1_folder):
    """A hub cache in the hub's own layout."""
    snapshot = tmp_path / "models--someone--tiny" / "snapshots" / ("0" * 40)
    shutil.copytree(sd1_folder, snapshot)
    unfinished = tmp_path / "models--someone--index-only" / "snapshots" / ("1" * 40)
    unfinished.mkdir(parents=True)
    shutil.copy(sd1_folder / "model_index.json", unfinished)
    refs = tmp_path / "models--someone--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    code = "import json, pixalign.cli.doctor as d; print(json.dumps(d.cached_models()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_CACHE": str(tmp_path)},
        check=True,
    )
    assert json.loads(done.stdout) == [{"model": "someone/tiny", "family": "sd"}]


def test_lab_scenes(run, tmp_path):
    code, out, err = run("lab", "scenes", "--count", "2", "--size", "64", "--out", tmp_path / "s")
    assert code == 0, err
    assert "written to" in out
    names = {path.name for path in (tmp_path / "s").iterdir()}
    assert names == {
        "00000.png", "00000_mask.png", "00001.png", "00001_mask.png", "scenes.json", "sheet.png",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("scenes", "--split", "holdout"), "'holdout'"),
        (("train", "--stage", "gan"), "'gan'; allowed"),
        (("train", "--stage", "vae", "--family", "sd9"), "'sd9'; allowed"),
        (("train", "--stage", "denoiser"), "needs a trained VAE"),
        (("train", "--stage", "vae", "--recipe", "missing.json"), "missing.json"),
    ],
)
def test_lab_bad_input_is_one_line(run, tmp_path, arguments, said):
    code, _, err = run("lab", *arguments, "--out", tmp_path / "out")
    assert code == 2
    assert said in next(line for line in err.splitlines() if line.startswith("pixalign: "))


def test_lab_train_at_toy_size(run, tmp_path):
    recipe = {
        "size": 32, "batch": 4, "steps": 2, "evaluate_every": 2, "held_out": 4,
        "vae": {"channels": [8, 8, 8], "groups": 4},
    }  # fmt: skip
    (tmp_path / "toy.json").write_text(json.dumps(recipe))
    arguments = ("--stage", "vae", "--recipe", tmp_path / "toy.json", "--device", "cpu")
    code, out, err = run("lab", "train", *arguments, "--out", tmp_path / "run")
    assert code == 0, err
    assert "psnr" in out
    assert (tmp_path / "run" / "vae" / "config.json").is_file()


def test_segment_by_another_method(run, picture, tmp_path, sd1_folder):
    options = ("--model", sd1_folder, "--device", "cpu", "--json", "--preset", "default")
    found = {}
    for method, *more in (["elbo"], ["daam"], ["daam", "--calibrate"]):
        code, out, err = run("segment", picture, "dog", "cat", "--method", method, *more, *options)
        assert code == 0, err
        found[method, *more] = json.loads(out)
    shares = {key: [row["pixel_share"] for row in one["classes"]] for key, one in found.items()}
    assert found["daam",]["method"] == "daam"
    assert all(row["score"] == 1 for row in found["daam",]["classes"])
    assert any(row["score"] < 1 for row in found["daam", "--calibrate"]["classes"])
    assert len({tuple(each) for each in shares.values()}) > 1
    for method, message in (("damm", "method is 'damm'"), ("ovam-optimized", "method is")):
        code, _, err = run("segment", picture, "dog", "--method", method, *options)
        assert (code, message in err) == (2, True)
    code, _, err = run("segment", picture, "dog", "--calibrate", *options)
    assert (code, "--calibrate is for baselines" in err) == (2, True)

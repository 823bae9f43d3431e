"""``python -m lab``: what it runs, prints and refuses."""

import json

import pytest


def test_the_commands_are_listed(lab_shell):
    code, out, _ = lab_shell("--help")
    assert code == 0
    for name in "train attention tune quality study generation synthetic editing report".split():
        assert f" {name} " in out
    code, out, _ = lab_shell("train", "--help")
    for choice in ("sdxl", "flux", "vae", "classifier", "denoiser"):
        assert choice in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--stage", "gan"), "'gan' is not one of"),
        (("--stage", "vae", "--family", "sd9"), "'sd9' is not one of"),
        (("--stage", "clip", "--family", "sd2"), "stage is 'clip'; the family 'sd2' has another"),
        (("--stage", "denoiser", "--family", "clip"), "stage is 'denoiser'; the family 'clip'"),
        (("--stage", "denoiser"), "lab: the denoiser needs a trained VAE"),
        (("--stage", "vae", "--recipe", "missing.json"), "missing.json"),
    ],
)
def test_bad_input_is_said_plainly(lab_shell, tmp_path, arguments, said):
    code, _, err = lab_shell("train", *arguments, "--out", tmp_path / "out")
    assert code == 2
    assert said in " ".join(err.split())
    assert "Traceback" not in err


def test_train_and_attention_at_toy_size(lab_shell, finished, tmp_path):
    recipe = {
        "size": 32, "batch": 4, "steps": 2, "evaluate_every": 2, "held_out": 4,
        "vae": {"channels": [8, 8, 8], "groups": 4},
    }  # fmt: skip
    (tmp_path / "toy.json").write_text(json.dumps(recipe))
    arguments = ("--stage", "vae", "--recipe", tmp_path / "toy.json", "--device", "cpu")
    code, out, err = lab_shell("train", *arguments, "--out", tmp_path / "run")
    assert code == 0, err
    assert "psnr" in err
    assert out == ""
    assert (tmp_path / "run" / "vae" / "config.json").is_file()
    few = ("--scenes", 3, "--single", 1, "--device", "cpu", "--json")
    code, out, err = lab_shell("attention", "--model", finished("sd1") / "pipeline", *few)
    assert code == 0, err
    assert 0 <= json.loads(out)["auc_other_all"] <= 1

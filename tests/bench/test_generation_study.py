"""The generation study at the smallest size, and its sets."""

import json

import pytest

from pixalign.backbones import wrap
from pixalign.bench import generation_study as study
from pixalign.bench.generation_study import METHOD_ROWS, rows_for
from pixalign.generation import gradient_methods


def test_rows_know_their_families(pipeline):
    unet, joint = (rows_for(wrap(pipeline(name)), METHOD_ROWS) for name in ("sd1", "sd3"))
    assert list(unet) == ["plain", "attend-excite", "syngen", "elbo"]
    assert list(joint) == ["plain", "elbo"]


def test_the_generation_study_runs_and_goes_on(tmp_path, monkeypatch, shell):
    few = ("--prompts", 2, "--seeds", 1, "--steps", 1, "--set", "ae-animals", "--device", "cpu")
    monkeypatch.setattr(gradient_methods, "TRIES", 1)
    for _ in range(2):
        code, out, err = shell("bench", "generation", *few, "--clip", "lab:clip", "--out", tmp_path)
        assert code == 0, err
        assert "ae-animals" in out
        monkeypatch.setattr(study, "draw_requests", None)  # nothing is drawn the second time
    (path,) = tmp_path.glob("*.json")
    whole = path.read_text()
    kept = json.loads(whole)
    (figures,) = kept["sets"].values()
    figures["plain"]["clip"][0] += 0.01
    for text, said in (
        (json.dumps(kept), "its figures have changed"),
        (json.dumps(kept | {"sha256": None, "weights": "of others"}), "of other settings"),
        (whole[: len(whole) // 2], "is no JSON"),
        ("[]", "is no study"),
    ):
        path.write_text(text)
        code, _, err = shell("bench", "generation", *few, "--clip", "lab:clip", "--out", tmp_path)
        assert (code, said in err, str(path) in err) == (2, True, True), err
        assert path.read_text() == text  # whatever it was, it is not written over


def test_sets_in_files(tmp_path):
    path = tmp_path / "abc.txt"
    path.write_text("A red car and a blue bus.\nA blue car and a red bus.\n")
    assert len(study.prompts_of("abc6k", {"abc6k": path})) == 2
    with pytest.raises(ValueError, match="--file abc6k=PATH"):
        study.prompts_of("abc6k", {})
    with pytest.raises(ValueError, match="set is 'abc'"):
        study.prompts_of("abc", {})

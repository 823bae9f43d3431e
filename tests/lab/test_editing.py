"""The editing study in the lab, at the smallest size, and its figures."""

import json

import numpy as np
import pytest
from PIL import Image

from helpers import model_of
from lab.classifier import load_classifier
from lab.editing import (
    LEAST_AREA,
    Trial,
    changes_in,
    format_edits,
    run_editing_study,
    summarise_edits,
    trials,
)
from pixalign import AlignConfig
from pixalign.backbones.locations import lab_folder
from pixalign.scenes.atlas import class_names
from scene_pictures import scene_of


def test_trials_change_one_visible_object():
    found = trials(24, 64)
    assert len(found) == 24
    assert {len(trial.labels) for trial in found} == {2, 3, 4}
    for trial in found:
        assert trial.new not in trial.labels
        assert class_names()[trial.new] in trial.target
        expected = trial.source.replace(trial.entities[0], class_names()[trial.new], 1)
        assert trial.target == expected
        assert trial.masks.shape == (len(trial.labels), 64, 64)
        assert trial.masks[0].mean() >= LEAST_AREA
        assert not (trial.masks.sum(0) > 1).any()
    assert [t.target for t in trials(4, 64)] == [t.target for t in found[:4]]


def test_changes_are_seen_where_they_should_be():
    names = class_names()
    dog, taco, bus = (names.index(name) for name in ("dog", "taco", "bus"))
    before, after = scene_of([dog, taco], [0, 0]), scene_of([bus, taco], [0, 0])
    masks = np.zeros((2, 128, 128), dtype=bool)
    masks[0, :, :64] = masks[1, :, 64:] = True
    trial = Trial(before, "", "", (dog, taco), bus, masks)
    done, not_done = (
        type("Edit", (), {"source": before, "reconstruction": before, "edited": edited})
        for edited in (after, before)
    )
    classifier = load_classifier(lab_folder("lab:classifier"), "cpu")
    found = changes_in([done, not_done], [trial, trial], classifier)
    assert (found["new"], found["gone"]) == ("10", "10")
    assert found["kept"] == [1.0, 1.0]
    assert found["outside"][1] == found["moved"][1] == 100.0  # nothing moved
    assert found["outside"][0] > 30  # the right half is the same picture


def test_figures_of_editing():
    row = {"new": "110", "gone": "111", "kept": [1, 0.5, 1], "outside": [30.0, 28, 26],
           "moved": [40.0, 38, 36]}  # fmt: skip
    plain = {**row, "new": "100", "moved": [34.0, 32, 30]}
    psnr = {"psnr": [30.0, 31, 32], "psnr_vae": [40.0, 41, 42], "vae": [33.0, 33, 33]}
    result = {"edits": 3, "rows": {"ptp": plain, "elbo": row}, "inversions": {"null-text": psnr}}
    found = summarise_edits(result)
    assert found["rows"]["elbo"]["new"]["value"] == pytest.approx(200 / 3)
    assert found["rows"]["elbo"]["new_minus_ptp"]["value"] == pytest.approx(100 / 3)
    assert found["rows"]["elbo"]["moved_minus_ptp"] == {"value": 6.0, "low": 6.0, "high": 6.0}
    assert found["inversions"]["null-text"]["psnr_vae"]["lowest"] == 40
    assert "null-text: 41.0 dB" in format_edits(result)
    both = {**result, "rows": {**result["rows"], "dense": {**row, "new": "000"}}}
    dense = summarise_edits(both)["rows"]["dense"]
    assert dense["new_minus_elbo"]["value"] == pytest.approx(-200 / 3)
    assert dense["moved_minus_elbo"]["value"] == 0
    assert dense["new_minus_ptp"]["value"] == pytest.approx(-100 / 3)


def test_the_editing_study_runs(tmp_path, monkeypatch):
    model = model_of(device="cpu", config=AlignConfig(elbo_steps=1, collect_steps=1))
    few = {"count": 2, "steps": 1, "classifier": "lab:classifier"}
    result = run_editing_study(model, tmp_path, rows=("ptp", "elbo"), **few)
    assert json.loads((tmp_path / "sd1.json").read_text()) == result
    assert set(result["rows"]) == {"ptp", "elbo"}
    assert len(result["rows"]["elbo"]["new"]) == 2
    assert set(result["inversions"]) == {"null-text", "ddim"}
    assert set(result["inversions"]["ddim"]) == {"psnr", "psnr_vae", "vae"}
    assert len(list((tmp_path / "inversions").iterdir())) == 4  # each is made once
    assert Image.open(tmp_path / "sd1.webp").width > 4 * 128
    with pytest.raises(ValueError, match="row is 'magic'"):
        run_editing_study(model, tmp_path, rows=("magic",), **few)
    monkeypatch.setenv("PIXALIGN_MODELS", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="PIXALIGN_MODELS"):
        run_editing_study(model, tmp_path, **few)

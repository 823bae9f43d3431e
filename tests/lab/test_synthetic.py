"""Drawn pictures judged by the classifier: counted by hand, searched fairly, and whole."""

import json

import numpy as np
import pytest
import torch

from lab import synthetic
from lab.classifier import load_classifier, look_at
from lab.plots import filters
from lab.synthetic import Filter, Objects, figures, judge, level_for, summarise_synthetic
from pixalign.backbones.locations import lab_folder
from pixalign.bench.annotating import AnnotatedObject, Annotation
from pixalign.bench.metrics import IGNORE
from pixalign.scenes.atlas import class_names
from scene_pictures import scene_of

VERDICTS = ("sure", "sure", "sure", "confused")


def made_up(pictures=60, seed=0):
    """Two objects a picture; the higher the standing, the likelier is the mask right."""
    rng, objects = np.random.default_rng(seed), []
    for picture in range(pictures):
        for _ in range(2):
            standing = rng.random()
            signals = {name: float(rng.random()) for name in synthetic.SIGNALS}
            objects.append(
                {"picture": picture, "class": "dog", "share": 0.1, "there": 0.9,
                 "verdict": VERDICTS[rng.integers(4)], **signals, "standing": standing,
                 "iou": float(rng.random() < standing)}
            )  # fmt: skip
    return {"asked": {"right": 0.5}, "pictures": pictures, "objects": objects}


def test_a_mask_is_judged_by_what_the_classifier_sees():
    """The left half is the dog's, the right half the taco's; the second mask is the wrong way."""
    names = class_names()
    picture = scene_of([names.index("dog"), names.index("taco")], [0, 0])
    logits = look_at(load_classifier(lab_folder("lab:classifier"), "cpu"), [picture])[0]
    shown = torch.nn.functional.interpolate(logits.softmax(1), (128, 128), mode="bilinear")
    seen = shown.argmax(1)[0].numpy()
    mask = np.zeros((128, 128), dtype=np.uint8)
    for number, name in enumerate(("dog", "taco"), 1):
        mask[seen == 1 + names.index(name)] = number
    said = [AnnotatedObject(name, name, 0.1, "sure") for name in ("dog", "taco")]
    judged = judge(Annotation(mask, tuple(said)), logits)
    assert [each["iou"] for each in judged] == [1.0, 1.0]
    assert all(each["there"] > 0.45 for each in judged)
    crossed = judge(Annotation(mask, tuple(reversed(said))), logits)
    assert [each["iou"] for each in crossed] == [0.0, 0.0]
    unknown = np.where(mask == 2, np.uint8(IGNORE), mask)
    half = judge(Annotation(unknown, tuple(said)), logits)
    assert [each["iou"] for each in half] == [1.0, 0.0]


def test_figures_by_hand():
    rows = made_up(2)["objects"]
    for row, iou, there, share in zip(
        rows, (1, 0, 1, 0), (0.9, 0.9, 0.1, 0.9), (0.1, 0.1, 0.1, 0), strict=True
    ):
        row |= {"iou": iou, "there": there, "share": share, "verdict": "sure"}
    known = Objects.read(rows)
    found = figures(known, known.annotated, torch.ones(1, 2, dtype=torch.float64))
    assert float(found["kept"]) == 75
    assert float(found["precision"]) == pytest.approx(200 / 3)
    assert float(found["recall"]) == pytest.approx(100 / 3)
    nothing = figures(known, np.zeros(4, bool), torch.ones(1, 2, dtype=torch.float64))
    assert bool(nothing["precision"].isnan())


@pytest.mark.parametrize("share", [1.0, 0.8, 0.5])
@pytest.mark.parametrize("signals", [("standing",), ("standing", "lead"), ()])
def test_a_filter_keeps_what_its_bounds_say(share, signals):
    """Ranks and bounds are two ways to say the same, on the pictures that they were fitted to."""
    known = Objects.read(made_up()["objects"])
    each = Filter(signals, sure_only=True)
    ranks = each.ranks(known, known)
    level = level_for(ranks, share)
    kept = ranks >= level
    bounds = each.bounds(level, known)
    by_bounds = known.annotated & known.sure
    for name, bound in bounds.items():
        by_bounds &= known.signals[name] >= bound
    np.testing.assert_array_equal(kept, by_bounds)
    assert set(bounds) == set(signals)
    if share <= 0.5 and signals:
        assert share <= kept.mean() <= share + 0.02


def test_the_search_finds_what_tells():
    """Fitted on the even pictures alone: changing the odd ones does not change the choice."""
    result = made_up(200)
    summary = summarise_synthetic(result, draws=50)
    assert "standing" in summary["best"]["signals"]
    gain = summary["best"]["at"]["gain"]
    assert gain["value"] > 3
    curve = [row["precision"]["value"] for row in summary["curves"]["standing"]]
    assert curve[-1] > curve[0] + 10
    other = json.loads(json.dumps(result))
    for row in other["objects"]:
        if row["picture"] % 2:
            row["iou"] = 1 - row["iou"]
    changed = summarise_synthetic(other, draws=50)
    assert changed["search"] == summary["search"]
    assert changed["best"]["at"]["gain"]["value"] < 0
    text = synthetic.format_synthetic(summary)
    assert "best on the even pictures: " in text
    pytest.importorskip("matplotlib")
    assert filters({"sd1": summary, "sd2": changed}).png.startswith(b"\x89PNG")


def test_the_study_runs_and_goes_on(tmp_path, lab_shell, monkeypatch):
    few = ("--model", "lab:sd2", "--prompts", 2, "--set", "lab-pairs", "--steps", 2,
           "--device", "cpu", "--out", tmp_path)  # fmt: skip
    for _ in range(2):
        code, out, err = lab_shell("synthetic", *few)
        assert code == 0, err
        assert "precision" in out
        monkeypatch.setattr(synthetic, "draw_requests", None)  # nothing is drawn again
    result = json.loads((tmp_path / "sd2-objects.json").read_text())
    assert json.loads((tmp_path / "sd2.json").read_text())["pictures"] == 2
    assert {row["picture"] for row in result["objects"]} == {0, 1}
    code, _, err = lab_shell("synthetic", *few, "--steps", 3)
    assert (code, "steps was 2, is 3" in err) == (2, True)

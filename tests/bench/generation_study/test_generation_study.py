"""The studies of generation and editing in the lab, at the smallest size, and their figures."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pixalign import cli
from pixalign.bench.editing_study import study as retouching
from pixalign.bench.editing_study import summary as retouched
from pixalign.bench.editing_study.study import Trial, judged, trials
from pixalign.bench.generation_study import study as composing
from pixalign.bench.generation_study import summary as composed
from pixalign.bench.generation_study.rows import Constant, Reversed, Shuffled, rows_for
from pixalign.bench.scene_classifier import load_classifier
from pixalign.generation.drawing import Settings
from pixalign.generation.result import Generation
from pixalign.scenes.atlas import class_names
from pixalign.scenes.sample import COLOURS
from pixalign.text.entities import given_entities

CLASSIFIER = Path(__file__).parents[3] / "lab" / "models" / "classifier"
in_repository = pytest.mark.skipif(not CLASSIFIER.is_dir(), reason="the weights are not here")


@pytest.fixture(scope="module")
def judge():
    return load_classifier(CLASSIFIER, "cpu")


def scene_of(labels, tints):
    """A scene with these objects side by side, as it is drawn."""
    from dataclasses import replace

    from lab.data import rendered
    from pixalign.scenes.sample import sample_scenes

    scene = sample_scenes("test", 5, 1, objects=len(labels))
    places = np.zeros_like(scene.labels) - 1
    places[0, : len(labels)] = labels
    colours = np.zeros_like(scene.tints)
    colours[0, : len(labels)] = tints
    centres = scene.centres.copy()
    centres[0, : len(labels)] = [(0.5, (i + 0.5) / len(labels)) for i in range(len(labels))]
    sizes = np.full_like(scene.sizes, 0.45)
    drawn = rendered(
        replace(scene, labels=places, tints=colours, centres=centres, sizes=sizes), 128, "cpu"
    )
    return Image.fromarray((drawn.images[0] * 255).round().byte().permute(1, 2, 0).numpy())


# ---- generation ----


@pytest.mark.parametrize("name", ["dog", "hot dog", "palm tree"])
def test_phrases_are_read(name):
    label = class_names().index(name)
    assert composing.parsed(name) == (label, None)
    assert composing.parsed(f"red {name}") == (label, COLOURS.index("red"))
    with pytest.raises(ValueError, match="'red wolf' names no class"):
        composing.parsed("red wolf")


@in_repository
def test_pictures_are_judged_by_what_is_in_them(judge):
    names = class_names()
    dog, taco, bus = (names.index(name) for name in ("dog", "taco", "bus"))
    red, blue = COLOURS.index("red"), COLOURS.index("blue")
    picture = scene_of([dog, taco], [red, blue])
    prompts = {
        "red dog, blue taco": ("11", "11"),
        "blue dog, blue taco": ("11", "01"),
        "dog, bus": ("10", "10"),
    }
    assert bus != dog
    made = [
        Generation(picture, text, 0, "plain", given_entities(text, text.split(", ")),
                   np.zeros((0, 2)), np.zeros((0, 2)))
        for text in prompts
    ]  # fmt: skip
    found = composing.judged(made, judge)
    assert list(zip(found["found"], found["coloured"], strict=True)) == list(prompts.values())


def made_up(seeds=2):
    """Three prompts of two objects, by two methods."""
    plain = {"found": ["11", "10", "00", "11", "11", "10"], "clip": [30.0, 20, 10, 30, 30, 20]}
    elbo = {"found": ["11", "11", "01", "11", "10", "11"], "clip": [30.0, 30, 20, 30, 20, 30]}
    rows = {"plain": plain, "elbo": elbo}
    for seconds, row in enumerate(rows.values(), 1):
        row |= {"coloured": row["found"], "seconds": float(seconds)}
    return {"prompts": 3, "seeds": seeds, "sets": {"lab-pairs": rows}}


def test_figures_of_generation():
    found = composed.summarise(made_up())["lab-pairs"]
    assert found["plain"]["recall"]["value"] == pytest.approx(100 * 8 / 12)
    assert found["elbo"]["recall"]["value"] == pytest.approx(100 * 10 / 12)
    assert found["elbo"]["recall_minus_plain"]["value"] == pytest.approx(100 * 2 / 12)
    assert found["elbo"]["all"]["value"] == pytest.approx(100 * 4 / 6)
    assert found["elbo"]["clip_minus_plain"]["value"] == pytest.approx(20 / 6)
    assert found["elbo"]["cost"] == 2
    low, high = (found["elbo"]["recall_minus_plain"][end] for end in ("low", "high"))
    assert low <= 100 * 2 / 12 <= high
    returned = composed.returned(made_up())
    assert returned == {"asked": 12, "missing": 4, "returned": 3, "lost": 1, "redrawn": 4}
    assert "elbo" in composed.table(made_up())


def test_controls_move_the_same_weights():
    class Drawing:
        settings = Settings(strength=1.2)
        wishes = (type("Wish", (), {"seed": 3}),)

    errors = torch.tensor([0.1, 0.2, 0.4])
    own, kinds = {}, (Constant, Shuffled, Reversed)
    for kind in kinds:
        control = kind.__new__(kind)
        control.drawing = Drawing()
        own[kind.name] = control.weigh(errors, 0, 5)
        if kind is Shuffled:
            straight = super(Shuffled, control).weigh(errors, 0, 5)
            assert sorted(own[kind.name].tolist()) == sorted(straight.tolist())
            assert torch.equal(own[kind.name], control.weigh(errors, 0, 5))
    assert own["constant"].tolist() == pytest.approx([1.2] * 3)
    assert own["reversed"].argmax() == 0
    assert own["reversed"].argmin() == 2


def test_rows_know_their_families(pipeline):
    from pixalign.backbones import wrap

    unet = [row.label for row in rows_for(wrap(pipeline("sd1")), controls=False)]
    joint = [row.label for row in rows_for(wrap(pipeline("sd3")), controls=False)]
    assert unet == ["plain", "attend-excite", "syngen", "elbo"]
    assert joint == ["plain", "elbo"]


@in_repository
def test_the_generation_study_runs_and_goes_on(tmp_path, monkeypatch, capsys):
    arguments = [
        "--prompts",
        2,
        "--seeds",
        1,
        "--steps",
        1,
        "--set",
        "lab-pairs",
        "--out",
        tmp_path,
    ]
    command = ["pixalign", "bench", "generation", *map(str, arguments), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", command)
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        # Nothing is drawn the second time.
        monkeypatch.setattr(composing, "_drawn", None)
    assert "lab-pairs" in capsys.readouterr().out
    result = json.loads((tmp_path / "sd1.json").read_text())
    assert list(result["sets"]["lab-pairs"]) == ["plain", "attend-excite", "syngen", "elbo"]
    assert result["sets"]["lab-pairs"]["elbo"]["clip_model"] == "lab:clip"
    assert len(result["sets"]["lab-pairs"]["elbo"]["found"]) == 2
    assert Image.open(tmp_path / "sd1-lab-pairs.webp").width > 4 * 128
    with pytest.raises(ValueError, match="holds pictures of other settings"):
        composing.compose(None, tmp_path, prompts=3, seeds=1, sets=["lab-pairs"], steps=1)


def test_sets_in_files(tmp_path):
    path = tmp_path / "abc.txt"
    path.write_text("A red car and a blue bus.\nA blue car and a red bus.\n")
    assert len(composing.prompts_of("abc6k", {"abc6k": path})) == 2
    with pytest.raises(ValueError, match="--file abc6k=PATH"):
        composing.prompts_of("abc6k", {})
    with pytest.raises(ValueError, match="set is 'abc'"):
        composing.prompts_of("abc", {})


# ---- editing ----


def test_trials_change_one_visible_object():
    found = trials(24, 64)
    assert len(found) == 24
    assert {len(trial.others) for trial in found} == {1, 2, 3}
    for trial in found:
        names = class_names()
        assert trial.new not in (trial.old, *trial.others)
        assert names[trial.new] in trial.target
        assert trial.target == trial.source.replace(names[trial.old], names[trial.new], 1)
        assert trial.masks.shape == (1 + len(trial.others), 64, 64)
        assert trial.masks[0].mean() >= retouching.LEAST_AREA
        assert not (trial.masks.sum(0) > 1).any()
    assert [t.target for t in trials(4, 64)] == [t.target for t in found[:4]]


@in_repository
def test_edits_are_judged_by_what_is_where(judge):
    names = class_names()
    dog, taco, bus = (names.index(name) for name in ("dog", "taco", "bus"))
    before, after = scene_of([dog, taco], [0, 0]), scene_of([bus, taco], [0, 0])
    masks = np.zeros((2, 128, 128), dtype=bool)
    masks[0, :, :64] = masks[1, :, 64:] = True
    trial = Trial(before, "", "", dog, bus, (taco,), masks)
    done, not_done = (
        type("Edit", (), {"source": before, "reconstruction": before, "edited": edited})
        for edited in (after, before)
    )
    found = judged([done, not_done], [trial, trial], judge)
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
    found = retouched.summarise(result)
    assert found["rows"]["elbo"]["new"]["value"] == pytest.approx(200 / 3)
    assert found["rows"]["elbo"]["new_minus_ptp"]["value"] == pytest.approx(100 / 3)
    assert found["rows"]["elbo"]["moved_minus_ptp"] == {"value": 6.0, "low": 6.0, "high": 6.0}
    assert found["inversions"]["null-text"]["psnr_vae"]["lowest"] == 40
    assert "null-text: 41.0 dB" in retouched.table(result)


@in_repository
def test_the_editing_study_runs(tmp_path):
    result = retouching.retouch(
        None, tmp_path, count=2, rows=("ptp", "elbo"), steps=2, device="cpu", show=False
    )
    assert json.loads((tmp_path / "sd1.json").read_text()) == result
    assert set(result["rows"]) == {"ptp", "elbo"}
    assert len(result["rows"]["elbo"]["new"]) == 2
    assert set(result["inversions"]) == {"null-text", "ddim"}
    assert Image.open(tmp_path / "sd1.webp").width > 4 * 128
    with pytest.raises(ValueError, match="row is 'magic'"):
        retouching.retouch(None, tmp_path, count=2, rows=("magic",))

"""Generation in the lab: its prompts, its controls and figures, and what its classifier sees."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from lab import generation as study
from lab.classifier import load_classifier
from lab.generation import FIGURES, Constant, Reversed, Shuffled
from lab.report import returned
from pixalign.backbones.locations import lab_folder
from pixalign.bench import generation_study
from pixalign.bench.generation_study import format_generation, summarise_generation
from pixalign.generation import gradient_methods
from pixalign.generation.methods import Elbo
from pixalign.generation.plan import GenerationRequest, GenerationSettings
from pixalign.generation.result import Generation
from pixalign.scenes.atlas import class_names
from pixalign.scenes.sample import COLOURS
from pixalign.text.entities import given_entities
from scene_pictures import scene_of


@pytest.mark.parametrize("name", ["dog", "hot dog", "palm tree"])
def test_phrases_are_read(name):
    label = class_names().index(name)
    assert study.parsed(name) == (label, None)
    assert study.parsed(f"red {name}") == (label, COLOURS.index("red"))
    with pytest.raises(ValueError, match="'red wolf' names no class"):
        study.parsed("red wolf")


def test_objects_are_seen_in_pictures():
    names = class_names()
    objects = [names.index(name) for name in ("dog", "taco")]
    picture = scene_of(objects, [COLOURS.index(colour) for colour in ("red", "blue")])
    prompts = {
        "red dog, blue taco": ("11", "11"),
        "blue dog, blue taco": ("11", "01"),
        "dog, bus": ("10", "10"),
    }
    made = [
        Generation(picture, text, 0, "plain", given_entities(text, text.split(", ")),
                   np.zeros((0, 2)), np.zeros((0, 2)))
        for text in prompts
    ]  # fmt: skip
    classifier = load_classifier(lab_folder("lab:classifier"), "cpu")
    found = study.objects_in(made, classifier)
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
    found = summarise_generation(made_up(), FIGURES)["lab-pairs"]
    assert found["plain"]["recall"]["value"] == pytest.approx(100 * 8 / 12)
    assert found["elbo"]["recall"]["value"] == pytest.approx(100 * 10 / 12)
    assert found["elbo"]["recall_minus_plain"]["value"] == pytest.approx(100 * 2 / 12)
    assert found["elbo"]["all"]["value"] == pytest.approx(100 * 4 / 6)
    assert found["elbo"]["clip_minus_plain"]["value"] == pytest.approx(20 / 6)
    assert found["elbo"]["cost"] == 2
    low, high = (found["elbo"]["recall_minus_plain"][end] for end in ("low", "high"))
    assert low <= 100 * 2 / 12 <= high
    assert returned(made_up()) == {
        "asked": 12,
        "missing": 4,
        "returned": 3,
        "lost": 1,
        "redrawn": 4,
    }
    assert "elbo" in format_generation(made_up(), FIGURES)


def test_controls_move_the_same_weights():
    class Plan:
        settings = GenerationSettings(strength=1.2)
        requests = (GenerationRequest("a dog", 3),)

    errors = torch.tensor([0.1, 0.2, 0.4])
    weights = {}
    for kind in (Elbo, Constant, Shuffled, Reversed):
        control = kind.__new__(kind)
        control.plan = Plan()
        weights[kind] = control.weigh(errors, 0, 5)
        assert torch.equal(weights[kind], control.weigh(errors, 0, 5))
    assert sorted(weights[Shuffled].tolist()) == sorted(weights[Elbo].tolist())
    assert weights[Constant].tolist() == pytest.approx([1.2] * 3)
    assert (weights[Reversed].argmax(), weights[Reversed].argmin()) == (0, 2)


def test_the_lab_study_runs_and_goes_on(tmp_path, monkeypatch, lab_shell):
    monkeypatch.setattr(gradient_methods, "TRIES", 1)
    few = ("--prompts", 2, "--seeds", 1, "--steps", 1, "--set", "lab-pairs", "--device", "cpu")
    for _ in range(2):
        code, out, err = lab_shell("generation", *few, "--out", tmp_path)
        assert code == 0, err
        assert "recall" in out
        monkeypatch.setattr(generation_study, "draw_requests", None)  # nothing is drawn again
    result = json.loads((tmp_path / "sd1.json").read_text())
    assert list(result["sets"]["lab-pairs"]) == ["plain", "attend-excite", "syngen", "elbo"]
    row = result["sets"]["lab-pairs"]["elbo"]
    assert (row["clip_model"], len(row["found"])) == ("lab:clip", 2)
    assert Image.open(tmp_path / "sd1-lab-pairs.webp").width > 4 * 128
    code, _, err = lab_shell("generation", *few, "--prompts", 3, "--out", tmp_path)
    assert (code, "holds pictures of other settings" in err) == (2, True)

"""A dataset of drawn pictures: its files, going on after a kill, and what reads it again."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

import pixalign as pa
import tiny_grounding
from documents import ROOT
from helpers import model_of, small
from pixalign.bench import building
from pixalign.bench.annotating import AlignmentAnnotator, AnnotatedObject, Annotation, Belief
from pixalign.bench.building import BuildPrompt, BuildRequest, build_dataset, read_build_prompts
from pixalign.bench.contact_sheet import SIDE
from pixalign.bench.datasets import check, open_dataset
from pixalign.generation.plan import GenerationSettings
from pixalign.generation.prompt_sets import dvmp

PROMPTS = [
    {"prompt": "a dog and a red cat", "subject": ["dog", "cat"], "phrase": ["dog", "red cat"]},
    {"prompt": "a palm tree", "subject": ["palm tree"], "phrase": ["palm tree"]},
    {"prompt": "a cat", "subject": ["cat"], "phrase": ["cat"]},
]
QUICK = pa.AlignConfig(method="dense", elbo_steps=2, collect_steps=1)


@pytest.fixture(scope="module")
def model():
    return model_of(small("sd1"), config=QUICK)


class Halves:
    """The first phrase on the left, the others on the right; of a "palm tree" nothing is sure."""

    def __init__(self, name="halves"):
        self.name = name

    def annotate(self, image, phrases, seed):
        mask = np.zeros((image.height, image.width), dtype=np.uint8)
        mask[:8, : image.width // 2] = 1
        mask[8:, image.width // 2 :] = len(phrases)
        objects = [
            AnnotatedObject(p.name, p.phrase, 0.5, "blind" if "tree" in p.name else "sure")
            for p in phrases
        ]
        return Annotation(mask, tuple(objects))

    def record(self):
        return {"method": self.name}


def prompts_file(folder, content=PROMPTS):
    path = folder / "prompts.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def request(folder, **options):
    settings = GenerationSettings(steps=2, guidance=1.0)
    prompts = read_build_prompts(prompts_file(folder))
    return BuildRequest(prompts, "ours", settings=settings, **options)


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "run.lock"
    }


def test_a_dataset_and_what_reads_it(model, tmp_path):
    out = tmp_path / "set"
    made = build_dataset(model, Halves(), request(tmp_path, licence="CC0-1.0"), out)
    assert (made["pictures"], made["left_out"], made["of"]) == (2, 1, 3)
    assert made["objects"] == {"asked": 4, "annotated": 3}
    assert made["verdicts"] == {"blind": 1, "sure": 3}
    assert made["objects_by_class"] == {"cat": [2, 2], "dog": [1, 1], "palm tree": [0, 1]}
    assert (made["licence"], made["prompts"]["source"]) == ("CC0-1.0", "ours")
    assert made["annotator"] == {"method": "halves"}
    assert (out / "left_out" / "generate_0001.png").is_file()
    dataset = open_dataset("aep", out)
    assert dataset.classes == ("cat", "dog", "palm tree")
    assert dataset.keys == ("generate_0000", "generate_0002")
    first = dataset[0]
    assert first.image.size == (64, 64)
    assert first.phrases == {0: "red cat", 1: "dog"}
    assert first.truth[0, 0] == 2
    assert first.truth[63, 63] == 1
    assert (first.truth == 0).sum() == 64 * 64 - 8 * 32 - 56 * 32
    assert check(dataset).problems == ()
    with Image.open(out / "annotations" / "generate_0000_gt.png") as mask:
        assert mask.mode == "P"
    with Image.open(out / "sheet.png") as sheet:
        assert sheet.width > 2 * SIDE


def test_doubt_is_not_counted(model, tmp_path):
    """A picture with a sure object and another has 255 where the other is."""
    asked = [{"prompt": "a dog, a palm tree", "subject": ["dog", "palm tree"],
              "phrase": ["dog", "palm tree"]}]  # fmt: skip
    prompts = read_build_prompts(prompts_file(tmp_path, asked))
    settings = GenerationSettings(steps=1, guidance=1.0)
    made = build_dataset(
        model, Halves(), BuildRequest(prompts, "ours", settings=settings), tmp_path / "set"
    )
    assert made["ignored"] == pytest.approx(56 * 32 / 64**2)
    sample = open_dataset("aep", tmp_path / "set")[0]
    assert np.unique(sample.truth).tolist() == [0, 1, 255]
    assert sample.phrases == {0: "dog"}
    every = build_dataset(
        model, Halves(), BuildRequest(prompts, "ours", settings=settings), tmp_path / "every",
        Belief(sure_only=False),
    )  # fmt: skip
    assert every["ignored"] == 0


def test_it_goes_on_where_it_was_stopped(model, tmp_path, monkeypatch):
    """The same files, and nothing is drawn twice."""
    whole = build_dataset(model, Halves(), request(tmp_path), tmp_path / "whole")
    out, drawn = tmp_path / "set", []

    class Interrupted(Halves):
        def annotate(self, image, phrases, seed):
            if seed == 2 and len(drawn) < 4:
                raise KeyboardInterrupt
            return super().annotate(image, phrases, seed)

    real = building.draw_requests

    def counted(model, requests, *rest, **options):
        drawn.extend(each.seed for each in requests)
        return real(model, requests, *rest, **options)

    monkeypatch.setattr(building, "draw_requests", counted)
    with pytest.raises(KeyboardInterrupt):
        build_dataset(model, Interrupted(), request(tmp_path), out)
    assert open_dataset("aep", out).keys == ("generate_0000",)
    (out / "images" / "generate_0000.png").unlink()
    assert build_dataset(model, Interrupted(), request(tmp_path), out) == whole
    assert drawn == [0, 1, 2, 0, 2]
    assert files(out) == files(tmp_path / "whole")
    build_dataset(model, Halves(), request(tmp_path), out)
    assert len(drawn) == 5
    for damaged in ("[]", '{"objects": 3}', "{"):
        (out / "run" / "generate_0002.json").write_text(damaged)
        assert build_dataset(model, Halves(), request(tmp_path), out) == whole


def test_pictures_that_are_drawn_together(model, tmp_path):
    alone = build_dataset(model, Halves(), request(tmp_path), tmp_path / "alone")
    made = build_dataset(model, Halves(), request(tmp_path, together=3), tmp_path / "together")
    assert made["records"] == alone["records"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": 5}, "drawing.seed was 0, is 5"),
        ({"licence": "MIT"}, 'licence was null, is "MIT"'),
    ],
)
def test_other_settings_are_refused(model, tmp_path, changed, said):
    out = tmp_path / "set"
    build_dataset(model, Halves(), request(tmp_path), out)
    before = files(out)
    with pytest.raises(ValueError, match=said):
        build_dataset(model, Halves(), request(tmp_path, **changed), out)
    with pytest.raises(ValueError, match=r'annotator\.method was "halves", is "other"'):
        build_dataset(model, Halves("other"), request(tmp_path), out)
    with pytest.raises(ValueError, match=r"belief\.sure_only was true, is false"):
        build_dataset(model, Halves(), request(tmp_path), out, Belief(sure_only=False))
    assert files(out) == before


def test_by_the_model_itself(model, tmp_path):
    made = build_dataset(model, AlignmentAnnotator(model), request(tmp_path), tmp_path / "set")
    assert made["annotator"]["method"] == "dense"
    assert set(made["verdicts"]) <= {"sure", "blind", "confused", "absent"}
    assert made["pictures"] + made["left_out"] == 3


def test_prompts_of_sets_and_files(tmp_path):
    made = [BuildPrompt.of(prompt) for prompt in dvmp(40)]
    for prompt, of in zip(made, dvmp(40), strict=True):
        assert [each.phrase for each in prompt.classes] == list(of.entities)
        assert [each.name for each in prompt.classes] == [e.split()[-1] for e in of.entities]
    text = tmp_path / "prompts.txt"
    text.write_text("a red cat and a golden dog\n\na palm tree\n", encoding="utf-8")
    (first, second) = read_build_prompts(text)
    assert first.classes == (pa.Phrase("cat", "red cat"), pa.Phrase("dog", "golden dog"))
    assert second.classes == (pa.Phrase("palm tree"),)
    twice = [{"prompt": "x", "subject": ["Cat", "cat"], "phrase": ["red cat", "cat"]}]
    (only,) = read_build_prompts(prompts_file(tmp_path, twice))
    assert only.classes == (pa.Phrase("cat", "red cat"),)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "prompts.json' holds a dict; allowed: a list of"),
        ([{"prompt": "a cat"}], "holds {'prompt': 'a cat'}; allowed: a list of"),
        ([{"prompt": "a", "subject": ["a"], "phrase": [""]}], "allowed: a list of"),
        ([{"prompt": "a", "subject": ["a"], "phrase": []}], "equally long"),
        ([{"prompt": "a", "subject": [], "phrase": []}], "names nothing that could be annotated"),
        ([], "there are 0 prompts"),
    ],
)
def test_bad_prompts_are_named(tmp_path, content, said):
    with pytest.raises(ValueError, match=said):
        BuildRequest(read_build_prompts(prompts_file(tmp_path, content)), "ours")


@pytest.mark.parametrize("annotator", ["grounded-sam", "both"])
def test_the_command_with_real_networks(shell, sd1_folder, tmp_path, annotator):
    """Random weights find something or nothing; the files are whole either way."""
    networks = [tiny_grounding.detector(tmp_path / "dino"), tiny_grounding.sam2(tmp_path / "sam")]
    out = tmp_path / "set"
    command = ["bench", "build", "--out", out, "--model", sd1_folder, "--steps", 1, "--device",
               "cpu", "--prompts", prompts_file(tmp_path), "--annotator", annotator, "--detector",
               networks[0], "--segmenter", networks[1], "--box-threshold", 0.05, "--any-verdict",
               "--licence", "CC0-1.0"]  # fmt: skip
    code, said, err = shell(*command)
    assert code == 0, err
    made = json.loads((out / "build.json").read_text())
    about = made["annotator"] if annotator == "grounded-sam" else made["annotator"]["second"]
    assert about["detector"] == str(networks[0])
    assert made["of"] == 3
    assert f"{made['pictures']} pictures in" in said
    if made["pictures"]:
        assert len(open_dataset("aep", out)) == made["pictures"]
    code, _, err = shell(*command[:-1], "MIT")
    assert (code, 'licence was "CC0-1.0", is "MIT"' in err) == (2, True)


def test_the_command_refuses_plainly(shell, tmp_path):
    out = ("bench", "build", "--out", tmp_path / "set", "--device", "cpu")
    for given, message in {
        ("--prompts", "none.json"): "prompts are 'none.json'; allowed: ae-animals",
        ("--least", "lead"): "--least is 'lead'; allowed: NAME=NUMBER",
        ("--least", "luck=1"): "a bound is on 'luck'; allowed: confidence",
        ("--annotator", "me"): "'me' is not one of 'dense', 'grounded-sam', 'both'",
    }.items():
        code, _, err = shell(*out, *given)
        assert (code, message in err) == (2, True), err
    missing = ("--annotator", "both", "--detector", tmp_path / "no", "--segmenter", tmp_path)
    code, _, err = shell(*out, "--prompts", prompts_file(tmp_path), *missing)
    assert (code, "there is no Grounding DINO in" in err) == (2, True)


def test_a_table_reads_what_was_built(model, shell, sd1_folder, tmp_path, monkeypatch):
    """`bench run phrases` on a set, by a model of few timesteps."""
    build_dataset(model, Halves(), request(tmp_path), tmp_path / "set")
    monkeypatch.setattr("pixalign.model.load", lambda *_, **__: model)
    code, out, err = shell(
        "bench", "run", "phrases", "--root", tmp_path / "set", "--out", tmp_path / "results"
    )
    assert code == 0, err
    assert "ELB with AE" in out


def test_a_kill_loses_the_picture_in_flight_alone(shell, tmp_path, sd1_folder):
    """Killed once a picture is there; the same command then keeps it and makes the others."""
    out = tmp_path / "set"
    command = ["bench", "build", "--model", sd1_folder, "--steps", "1", "--device", "cpu",
               "--any-verdict", "--prompts", prompts_file(tmp_path, PROMPTS * 2), "--out",
               out]  # fmt: skip
    about = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"}
    start = [sys.executable, "-m", "pixalign", *command]
    running = subprocess.Popen(start, env=about, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not (out / "run" / "generate_0000.json").is_file() and time.monotonic() < until:
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.wait()
    kept = sorted((out / "run").glob("generate_*.json"))
    times = {path: path.stat().st_mtime_ns for path in kept}
    assert kept
    assert shell(*command)[0] == 0
    assert all(path.stat().st_mtime_ns == known for path, known in times.items())
    made = json.loads((out / "build.json").read_text())
    assert made["pictures"] + made["left_out"] == 6
    assert len(list((out / "images").glob(".*"))) == 0

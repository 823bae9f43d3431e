"""``pixalign segment``, as typed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tiny
from pixalign import AlignConfig
from pixalign.cli.common import vocabulary_notes
from pixalign.core.batching import BatchSize
from pixalign.core.values import Phrase
from pixalign.scenes.draw import draw_scenes
from pixalign.scenes.labelled import labelled_scenes

SCRIPT = Path(sys.executable).with_name("pixalign")


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "street photo.jpg"
    tiny.photo(90, 60).save(path)
    return path


def segment(picture, sd1_folder, *more, classes=("dog", "hot dog", "car=a red car")):
    return ("segment", picture, *classes, "--model", sd1_folder, "--device", "cpu", *more)


def answer(shell, *arguments):
    """What a command prints as JSON."""
    code, out, err = shell(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_segment_writes_everything(shell, picture, sd1_folder, tmp_path):
    code, out, _ = shell(*segment(picture, sd1_folder, "--out", tmp_path / "out", "--seed", 3))
    assert code == 0
    assert "score" not in out  # which says nothing of dense maps
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "mask.png", "overlay.png", "result.json", "result.npz",
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
    said = dict(zip(("dog", "hot dog", "car", "(background)"), out.splitlines(), strict=False))
    for row, share in zip(record["classes"], shares[1:], strict=True):
        assert row["pixel_share"] == pytest.approx(share, abs=1e-6)
        line, about = said[row["name"]], row["trust"]
        assert line.startswith(f"{row['name']} ")
        assert f" {share:.1%} of the pixels  {about['verdict']}" in line
        assert f"(standing {about['numbers']['standing']:.2%})" in line
    assert said["(background)"] == f"(background)  {shares[0]:6.1%} of the pixels"


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


def test_options_reach_the_settings_of_json_and_file(shell, picture, sd1_folder, tmp_path):
    options = (
        "--preset",
        "official",
        "--resize",
        "keep",
        "--gamma",
        "1/3",
        "--out",
        tmp_path / "o",
    )
    more = ("--threshold", "0.25", "--caption", "a dog, a hot dog and a red car")
    record = answer(shell, *segment(picture, sd1_folder, *options, *more))
    assert record == json.loads((tmp_path / "o" / "result.json").read_text())
    assert record["prompts"] == ["a dog, a hot dog and a red car"]
    assert record["config"]["gamma"] == 1 / 3
    assert record["config"]["resize"] == "keep"
    assert record["threshold"] == 0.25
    assert record["timesteps"]["elbo"] == list(range(1, 1000, 50))


def test_fast_and_low_memory(shell, picture, sd1_folder, monkeypatch):
    asked, of = set(), BatchSize.of

    def spy(self, *rest):
        asked.add(self.memory)
        return of(self, *rest)

    monkeypatch.setattr(BatchSize, "of", spy)
    record = answer(shell, *segment(picture, sd1_folder, "--preset", "fast", "--memory", "low"))
    assert asked == {"low"}
    assert (record["method"], record["config"]["elbo_range"]) == ("dense", [0.2, 0.8])
    assert record["config"]["evidence_blur"] == AlignConfig.fast().evidence_blur
    assert len(record["timesteps"]["elbo"]) == len(record["timesteps"]["collect"]) == 5
    assert record["forwards"] == {"collect": 5, "elbo": 4 * 5}  # and the empty text
    assert [len(row["losses"]) for row in record["classes"]] == [5] * 3


def test_absent_classes_are_dropped(shell, picture, sd1_folder, tmp_path):
    """All of them, by the evidence of a model that has learnt nothing."""
    asked = segment(picture, sd1_folder, "--preset", "fast", "--out", tmp_path / "out")
    code, out, err = shell(*asked, "--absent", "drop")
    assert code == 0
    for name in ("dog", "hot dog", "car"):
        assert re.search(rf"^{name} +0\.0% of the pixels  absent \(standing ", out, re.M)
        assert f"warning: class {name!r} is likely not in the picture" in err
    assert "(background)  100.0% of the pixels" in out
    record = json.loads((tmp_path / "out" / "result.json").read_text())
    assert record["config"]["absent"] == "drop"
    assert record["forwards"] == {"collect": 0, "elbo": 4 * 5}  # nobody is looked for
    assert not np.asarray(Image.open(tmp_path / "out" / "mask.png")).any()


def test_the_score_is_printed_where_it_calibrates(shell, picture, sd1_folder, tmp_path):
    asked = segment(picture, sd1_folder, "--preset", "fast", "--out", tmp_path / "out")
    code, out, _ = shell(*asked, "--method", "elbo")
    assert code == 0
    record = json.loads((tmp_path / "out" / "result.json").read_text())
    for row, line in zip(record["classes"], out.splitlines()[:3], strict=True):
        assert row["trust"] is None
        assert line.endswith(f"{row['pixel_share']:.1%} of the pixels  score {row['score']:.3f}")


def test_folder_is_named_after_the_picture(shell, picture, sd1_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = shell(*segment(picture, sd1_folder, "--preset", "uncalibrated"))
    assert code == 0
    assert "written to street photo-pixalign" in out
    assert (tmp_path / "street photo-pixalign" / "mask.png").is_file()


def test_without_a_model_the_embedded_one_is_asked(shell, picture, tmp_path):
    arguments = ("segment", picture, "dog", "cat", "--device", "cpu", "--preset", "uncalibrated")
    model = answer(shell, *arguments)["model"]
    assert (model["name"], model["family"]) == ("sd1-like, embedded", "sd")


def test_several_pictures(shell, picture, sd1_folder, tmp_path, monkeypatch):
    """As a pattern that the shell expands gives them; a folder each, those of one name numbered."""
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "more" / picture.name
    other.parent.mkdir()
    tiny.photo(60, 90, seed=1).save(other)
    (tmp_path / "cat").write_text("a file that is called as a class that follows a class")
    asked = ("segment", picture, other, "dog,hot dog", "cat", "--preset", "uncalibrated")
    code, out, _ = shell(*asked, "--model", sd1_folder, "--out", "out")
    assert code == 0
    for path, name in ((picture, "street photo"), (other, "street photo-2")):
        assert f"{path}:\n" in out
        assert f"written to out/{name}\n" in out
        record = json.loads((tmp_path / "out" / name / "result.json").read_text())
        assert [row["name"] for row in record["classes"]] == ["dog", "hot dog", "cat"]
        assert record["source"] == str(path)
    alone = answer(shell, *segment(other, sd1_folder, "--preset", "uncalibrated"))
    together = answer(shell, *asked, "--model", sd1_folder)
    assert [record["source"] for record in together] == [str(picture), str(other)]
    assert [row["name"] for row in alone["classes"]] == ["dog", "hot dog", "car"]


def test_names_that_are_no_utf8(shell, sd1_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    picture = os.fsdecode(b"caf\xe9.png")
    tiny.photo(40, 40).save(picture)
    code, out, _ = shell(*segment(picture, sd1_folder, "--preset", "uncalibrated"))
    assert code == 0
    assert "written to caf\\xe9-pixalign" in out
    record = json.loads((tmp_path / os.fsdecode(b"caf\xe9-pixalign") / "result.json").read_text())
    assert record["source"] == "caf\\xe9.png"
    code, _, err = shell(*segment(picture, sd1_folder, classes=(os.fsdecode(b"caf\xe9"),)))
    assert (code, err) == (
        2,
        "pixalign: class 1 is 'caf\\udce9', which holds the unreadable '\\udce9'\n",
    )


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
        ({"more": ("--gamma", "0/3")}, "gamma is 0.0; allowed"),
        ({"more": ("--gamma", "1/0")}, "'1/0' is no number; such as 0.5 or 1/3"),
        ({"classes": ("second.png", "dog")}, "image 'second.png' is missing"),
        ({"classes": ("dog\0",)}, "holds the unreadable '\\x00'"),
        ({"classes": ("dog,,cat",)}, "class 2 of 3 is empty"),
        ({"classes": ()}, "no classes given"),
        ({"more": ("--out", "/proc/out")}, "nothing can be written to '/proc'"),
        ({"more": ("--out", "o" * 300)}, "File name too long"),
        ({"more": ("--threshold", "7")}, "threshold is 7.0; allowed: 0 to 1"),
        ({"more": ("--device", "tpu")}, "device is 'tpu'; allowed"),
        ({"more": ("--dtype", "int4")}, "'int4' is not one of 'auto', 'float32', 'float16'"),
        ({"more": ("--batch-size", "lots")}, "batch_size is 'lots'; allowed"),
        ({"more": ("--memory", "tiny")}, "'tiny' is not one of 'normal', 'low'"),
        (
            {"more": ("--method", "damm")},
            "'damm' is not one of 'dense', 'elbo', 'attention',",
        ),
        ({"more": ("--method", "ovam-optimized")}, "'ovam-optimized' is not one of"),
        ({"more": ("--preset", "best")}, "'best' is not one of 'default', 'paper', 'official'"),
        ({"more": ("--preset", "paper", "--method", "daam")}, "is made for 'elbo'"),
        ({"more": ("--calibrate", "none")}, "calibrate of dense is 'none'; allowed: 'evidence'"),
        ({"more": ("--seed", "-1")}, "'--seed'"),
        ({"more": ("--out", "street photo.jpg")}, "is a file; name a folder"),
        ({"model": "nowhere"}, "neither a folder nor a hub id"),
        ({"model": "nobody/nothing"}, "is not to be had"),
        ({"picture": "missing.png"}, "'missing.png' is missing"),
        ({"damage": damaged}, "is damaged or cut short"),
        ({"pixels": (1, 1)}, "1x1 pixels"),
    ],
)
def test_bad_input_is_one_line_and_code_two(
    shell, picture, sd1_folder, tmp_path, monkeypatch, change, said
):
    monkeypatch.chdir(tmp_path)
    if "damage" in change:
        change["damage"](picture)
    if "pixels" in change:
        Image.new("RGB", change["pixels"]).save(picture)
    before = sorted(tmp_path.iterdir())
    asked = (change.get("picture", picture), change.get("model", sd1_folder))
    classes = change.get("classes", ("dog",))
    code, out, err = shell(*segment(*asked, *change.get("more", ()), classes=classes))
    assert (code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if line.startswith("pixalign: ")]
    assert said in line
    assert "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == before


def test_other_methods(shell, picture, sd1_folder):
    asked = segment(picture, sd1_folder, "--method", classes=("dog", "cat"))
    chosen = (
        ("elbo",), ("attention",), ("daam",), ("daam", "--calibrate", "elbo"), ("likelihood",)
    )  # fmt: skip
    records = {arguments: answer(shell, *asked, *arguments) for arguments in chosen}
    scores = {key: [row["score"] for row in one["classes"]] for key, one in records.items()}
    methods = [one["method"] for one in records.values()]
    assert methods == ["elbo", "attention", "daam", "daam", "likelihood"]
    assert scores["attention",] == scores["daam",] == [1, 1]
    assert min(scores["elbo",]) < 1
    assert min(scores["daam", "--calibrate", "elbo"]) < 1
    shares = [[row["pixel_share"] for row in one["classes"]] for one in records.values()]
    assert len({tuple(each) for each in shares}) > 1


def test_options_of_a_method(shell, picture, sd1_folder):
    def record(threshold):
        option = ("--method", "diffseg", "--option", f"threshold={threshold}")
        return answer(shell, *segment(picture, sd1_folder, *option))

    apart, together = record("1e-9"), record(1e9)
    assert together["layers"]["segments"] == 1 < apart["layers"]["segments"]
    assert "--option threshold=0.2" in together["warnings"][0]
    assert not apart["warnings"]


@pytest.mark.parametrize(
    ("method", "option", "message"),
    [
        ("diffseg", "threshold", "allowed: NAME=VALUE"),
        ("diffseg", "treshold=1", "allowed: 'timesteps', 'anchors', 'threshold', 'iterations'"),
        ("diffseg", "threshold=low", "options of diffseg are {'threshold': 'low'}"),
        ("elbo", "threshold=1", "elbo takes no options"),
    ],
)
def test_options_that_are_refused(shell, picture, sd1_folder, method, option, message):
    more = ("--method", method, "--option", option)
    code, _, err = shell(*segment(picture, sd1_folder, *more))
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_classes_that_the_small_models_have_never_seen_are_told():
    known = [Phrase("taco"), Phrase("Auto", "a red car"), Phrase("hot dog")]
    assert vocabulary_notes(None, known) == []
    notes = vocabulary_notes("lab:sd2", [*known, Phrase("hot dogs"), Phrase("qwertz")])
    assert notes[0].startswith("'hot dogs' is not among the 111 classes it knows (such as hot dog")
    assert notes[1] == "'qwertz' is not among the 111 classes it knows"
    assert "knows only emoji scenes" in notes[2]
    assert vocabulary_notes("a/model", [Phrase("xylophone")], [tiny.photo(900, 40)]) == []


def test_pictures_that_are_no_scenes_are_told(shell, tmp_path):
    """All scenes are smooth over large parts; noise, a large picture and a photograph are not."""
    known, rng = [Phrase("taco")], np.random.default_rng(0)
    scenes = [scene.image for scene in labelled_scenes(draw_scenes("test", 30), 256)]
    assert vocabulary_notes(None, known, scenes) == []
    flat = Image.new("RGB", (4000, 3000), "white")
    notes = vocabulary_notes(None, known, [*scenes[:2], flat, tiny.photo(900, 900)])
    assert notes[0] == "a picture of 4000 by 3000 pixels may be a photograph"
    assert "knows only emoji scenes" in notes[1]
    assert len(notes) == 2
    grain = rng.normal(0, 6, (200, 300, 3)) + 128  # a small photograph of a wall
    small = Image.fromarray(grain.clip(0, 255).astype(np.uint8))
    assert "300 by 200 pixels may be" in vocabulary_notes("lab:sd3", known, [scenes[0], small])[0]
    tiny.photo(600, 90).save(tmp_path / "photo.png")
    few = ("--method", "attention", "--device", "cpu", "--out", tmp_path / "out")
    code, _, err = shell("segment", tmp_path / "photo.png", "taco", *few)
    assert code == 0, err
    assert "warning: a picture of 600 by 90 pixels may be a photograph\n" in err
    assert "for photographs, choose a model with --model" in err

"""benchmarks/passes.py: what its rows are made of, and a run of toy size."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pixalign as pa
from lab.report import read_speed, render
from pixalign.bench.datasets import open_dataset
from pixalign.bench.subject import Subject
from pixalign.core.values import Phrase
from pixalign.methods.dense import Dense

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import passes as study
import passes_designs as designs

ROOT = Path(__file__).resolve().parents[2]
POINT = designs.Point(0.5, 0)
OPPOSITE = "3, each with noise and its opposite"


@pytest.fixture(scope="module")
def scene():
    """A scene of the embedded model, and what two rows ask of it."""
    dataset = open_dataset("lab", None, "test", 3)
    subject = Subject(dataset[2], 2, dataset.classes, 0)
    variants = {name: designs.VARIANTS[name] for name in (designs.NOW, OPPOSITE)}
    method = Dense(pa.load(device="cpu"))
    return study.Scene(method, subject, subject.phrases, variants, {})


def named(count):
    texts = tuple(f"class {n}" for n in range(count))
    return designs.Names(tuple(map(Phrase, texts)), texts, seed=count)


def test_the_base_row_is_the_method(scene):
    image, seed = scene.subject.sample.image, scene.subject.seed
    own = scene.method.align(image, scene.subject.phrases, config=designs.FAST, seed=seed)
    found = scene.heatmaps(designs.VARIANTS[designs.NOW])
    torch.testing.assert_close(found, torch.from_numpy(own.heatmaps), rtol=0, atol=1e-3)
    errors = scene.measured.task.errors.of(scene.names.each)
    made = scene.text_errors(designs.VARIANTS[designs.NOW])
    torch.testing.assert_close(made.maps, errors.maps, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(made.losses, errors.losses, rtol=1e-3, atol=1e-5)


def test_opposite_noise_sums_to_nothing(scene):
    points = designs.VARIANTS[OPPOSITE].points
    noised = scene.noised(points)
    assert float(noised.noise.sum(0).abs().max()) < 1e-5
    assert float(noised.noise[0].std()) > 0.8
    assert noised.steps.time[:3].tolist() == noised.steps.time[3:].tolist()
    assert (scene.errors[scene.names.each[0], points[0]] != 0).any()


def test_designs_by_hand():
    """r and d from estimates and noise, class by class."""
    generator = torch.Generator().manual_seed(0)
    noise, empty, whole = torch.randn(3, 2, 4, 4, generator=generator)
    each = torch.randn(3, 2, 4, 4, generator=generator)
    names, mean = named(3), (each[0] + each[1] + each[2]) / 3
    known = dict(zip(names.each, each, strict=True)) | {"": empty, names.together(): whole}
    expected = {
        designs.Beside(): (noise - empty, each - empty),
        designs.Beside("mean"): (noise - mean, each - mean),
        designs.Beside("all"): (noise - whole, each - whole),
        designs.Beside(origin="mean"): (noise - empty, each - mean),
        designs.Beside(target="all"): (whole - empty, each - empty),
        designs.Beside("mean", target="all"): (whole - mean, each - mean),
    }
    for design, (missed, added) in expected.items():
        errors = torch.stack([known[text] - noise for text in design.texts(names, POINT)])
        found = design.parts(errors, names, POINT)
        torch.testing.assert_close(found[0], missed[None], rtol=0, atol=1e-5)
        torch.testing.assert_close(found[1], added, rtol=0, atol=1e-5)


@given(count=st.integers(2, 8), seed=st.integers(0, 1000))
def test_designs_find_what_adds_up(count, seed):
    """Where classes add their own to any text, leaving one out gives it, and so do halves up to
    what all share."""
    generator = torch.Generator().manual_seed(seed)
    added, empty = torch.randn(count, 1, 2, 2, generator=generator), torch.ones(1, 2, 2)
    names = named(count)

    def errors(design, point):
        held = [
            [n for n in range(count) if names.phrases[n].name in text]
            for text in design.texts(names, point)
        ]
        return torch.stack([empty + added[own].sum(0) for own in held])

    for missed in ("each", "all", "empty"):
        design = designs.LeaveOneOut(missed)
        r, d = design.parts(errors(design, POINT), names, POINT)
        torch.testing.assert_close(d, added, rtol=0, atol=1e-4)
        without = {"each": added.sum(0) - added, "all": added.sum(0)[None], "empty": 0 * r}
        torch.testing.assert_close(r, -(empty + without[missed]), rtol=0, atol=1e-4)

    halves, points = designs.Halves(8, "solve"), designs.spread(20)
    parts = [halves.parts(errors(halves, p), names, p) for p in points]
    projections = torch.stack([(r * d).mean(1) for r, d in parts], 1)
    found = halves.solved(names, points, projections).mean(1)
    true = (parts[0][0] * added).mean(1)
    torch.testing.assert_close(found - found.mean(0), true - true.mean(0), rtol=0, atol=1e-3)


def test_halves_are_halves_in_opposite_pairs():
    names = named(8)
    signs = designs.Halves(4).signs(names, POINT)
    assert signs.shape == (4, 8)
    assert (signs.sum(1) == 0).all()
    assert (signs[:2] == -signs[2:]).all()
    texts = designs.Halves(4).texts(names, POINT)
    assert [text.count("class") for text in texts] == [4] * 4


def test_orthogonal_halves_part_any_two_classes_as_often_as_not():
    halves, names = designs.Halves(2, "orthogonal"), named(8)
    signs = torch.cat([halves.signs(names, point)[:1] for point in designs.spread(7)])
    assert (signs.sum(1) == 0).all()
    assert (signs.T @ signs == 8 * torch.eye(8) - 1).all()
    for count in range(2, 9):  # no text is empty
        texts = [halves.texts(named(count), point) for point in designs.spread(7)]
        assert all(0 < text.count("class") < count for pair in texts for text in pair)


def test_passes_are_counted():
    rows = designs.VARIANTS | designs.CROWDED[8]
    found = {name: (row.passes(10), row.passes(4)) for name, row in rows.items()}
    assert found[designs.NOW] == (55, 25)
    assert found["mean for the empty text"] == (50, 20)
    assert found["all but one, r of all"] == (55, 25)
    assert found["all but one, r of the empty text"] == (60, 30)
    assert found["towards all classes, from the mean"] == (55, 25)
    assert found["20 x 2 halves"] == (40, 40)
    assert found[OPPOSITE] == found["3, each with two noises"] == (66, 30)


def test_absent_names_come_last(scene):
    classes, fits = open_dataset("lab", None, "test", 3).classes, scene.method.backbone.fits
    own = scene.subject.phrases
    for count in designs.CROWDED:
        crowd = study.crowd(scene.subject, classes, count, fits)
        assert crowd[: len(own)] == own
        assert len({phrase.name for phrase in crowd}) == len(crowd) == count


def test_a_run_of_toy_size_and_its_page(tmp_path, monkeypatch, capsys):
    docs = ROOT / "docs"
    if not (docs / "speed.md.j2").is_file():
        pytest.skip("the documents are in the repository")
    kept = (
        designs.NOW, "20 in [0, 1]", "1 at 0.475", "mean for the empty text", "10 x 2 halves",
    )  # fmt: skip
    for rows in (designs.VARIANTS, *designs.CROWDED.values()):
        for name in [name for name in rows if name not in kept]:
            monkeypatch.delitem(rows, name)
    monkeypatch.delitem(designs.CROWDED, 16)
    monkeypatch.setattr(study, "TOY", {**study.TOY, "scenes": 1, "draws": 4})
    speed = tmp_path / "speed"
    shutil.copytree(docs / "speed", speed, ignore=shutil.ignore_patterns("passes", "*.png"))
    study.main(["--toy", "--out", str(speed / "passes"), "--device", "cpu"])
    result = json.loads((speed / "passes" / "sd1.json").read_text())
    assert result["done"] == 1
    assert set(result["rows"]) == set(kept)
    assert result["rows"][designs.NOW]["minus_now"] == {"value": 0, "low": 0, "high": 0}
    assert all(50 < row["value"] <= 100 for row in result["rows"].values())
    assert all(0 <= entry["value"] <= 100 for entry in result["ordered"])
    assert "10 x 2 halves" in capsys.readouterr().out
    text = render(docs / "speed.md.j2", read_speed(speed))
    said = text.split("### Which passes")[1]
    assert "| mean for the empty text | 5 N | " in said
    assert "| mean for the empty text | 40 | " in said
    assert "| 10 x 2 halves | 20 | " in said
    assert f"| 0.475 | {result['rows']['1 at 0.475']['value']:.1f} | " in said

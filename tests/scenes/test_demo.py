"""The demo: scenes by rule, numbers by hand, one page that needs nothing else."""

import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

import pixalign as pa
from pixalign.scenes import demo as module
from pixalign.scenes.atlas import training_ranks
from pixalign.scenes.demo import RULES, change_in_points, choose, demo, iou, page, summarise_demo
from pixalign.scenes.render import render
from pixalign.scenes.sample import sample_scenes

FILES = {"report.html", "summary.png", "demo.json"}
QUICK = pa.AlignConfig(elbo_steps=3, collect_steps=2)


@pytest.fixture(scope="module")
def written(sd1, tmp_path_factory):
    """The folder of a demo with two scenes."""
    folder = tmp_path_factory.mktemp("demo") / "new" / "out"
    path = demo(pa.load(sd1), folder, scenes=2, seed=1, progress=False, config=QUICK)
    assert path == folder / "report.html"
    return folder


@pytest.fixture(scope="module")
def record(written):
    return json.loads((written / "demo.json").read_text(encoding="utf-8"))


# ---- choosing ----


def test_two_scenes_of_each_rule_which_they_satisfy_and_none_twice():
    chosen = choose(8)
    assert [rule for rule, _ in chosen] == [rule for rule in RULES for _ in range(2)]
    assert len({scene.number for _, scene in chosen}) == 8
    for rule, scene in chosen:
        assert rule in rules_of(scene.number)
        assert list(scene.labels) == sorted(scene.labels)


def rules_of(number):
    """The rules that a test scene satisfies, from its rendering alone."""
    batch = sample_scenes("test", number, 1)
    painted = render(batch, 128)
    mask, slots = painted.masks[0].numpy(), painted.slots[0].numpy()
    found, labels = set(), np.unique(mask)[1:].astype(int) - 1
    if not 2 <= len(labels) <= 4:
        return found
    for label in labels:
        own = np.flatnonzero(batch.labels[0] == label)
        seen = sum((slots == slot + 1).sum() for slot in own)
        if training_ranks()[label] >= 100:  # 11 of 111 classes
            found.add("rare")
        if 0.003 < seen / 128**2 < 0.025:
            found.add("small")
        if 0.08 < seen / painted.areas[0, own].sum() < 0.5:
            found.add("hidden")
    return found | ({"crowded"} if len(labels) == 4 else set())


def test_each_rule_takes_the_first_that_are_left():
    start, numbers = 40, {rule: [] for rule in RULES}
    for rule, scene in choose(5, start):
        numbers[rule].append(scene.number)
    assert [len(numbers[rule]) for rule in ("rare", "small", "hidden", "crowded")] == [2, 1, 1, 1]
    taken = []
    for rule in ("rare", "small", "crowded"):  # the first hidden one lies too far for this loop
        fitting = (n for n in range(start, start + 200) if rule in rules_of(n) and n not in taken)
        taken += [next(fitting) for _ in numbers[rule]]
        assert numbers[rule] == taken[-len(numbers[rule]) :]


def test_choice_is_the_same_whatever_the_batch(monkeypatch):
    first = choose(2, 7)
    monkeypatch.setattr(module, "_BATCH", 5)
    for (rule, scene), (other, again) in zip(first, choose(2, 7), strict=True):
        assert (rule, scene.number, scene.labels) == (other, again.number, again.labels)
        assert scene.image == again.image
        assert torch.equal(scene.truth, again.truth)


# ---- numbers ----


def test_iou_by_hand():
    truth = np.array([[0, 0, 1], [0, 1, 1], [2, 2, 2]], dtype=np.uint8)
    found = np.array([[0, 0, 0], [0, 1, 1], [1, 2, 2]], dtype=np.uint8)
    assert iou(truth, found, 4) == pytest.approx([3 / 4, 2 / 4, 2 / 3, np.nan], nan_ok=True)
    assert iou(truth, np.full_like(truth, 3), 4) == pytest.approx([0, 0, 0, 0])
    # Points are differences of what is printed.
    assert change_in_points(0.6124, 0.6556) == 4.4  # 61.2 and 65.6
    assert change_in_points(0.61239, 0.61201) == 0
    assert change_in_points(0.5, 0.25) == -25


def row(rule, mean, *classes):
    return {
        "rule": rule,
        "mean_iou_before": mean[0],
        "mean_iou_paper": sum(mean) / 2,
        "mean_iou_after": mean[1],
        "classes": [
            {"iou_before": before, "iou_paper": (before + after) / 2, "iou_after": after}
            for before, after in classes
        ],
    }


def blank_page(record):
    """The page of two scenes in plain letters, without their pictures."""
    blank = Image.new("RGB", (2, 2))
    drawn = dict.fromkeys(("picture", "truth", "before", "paper", "after"), blank)
    drawn |= {f"heat_{name}": [blank] * 4 for name in ("before", "paper", "after")}
    return page(record, [drawn] * 2).replace("&nbsp;", " ")


def test_summary_by_hand(record):
    rows = [
        row("rare", (0.4, 0.5), (0.2, 0.3), (0.5, 0.5)),
        row("rare", (0.6, 0.5), (0.6, 0.4)),
        row("small", (0.8, 0.8), (0.1, 0.4)),
    ]
    summary = summarise_demo(rows)
    rare = {"count": 2, "mean_iou_before": 0.5, "mean_iou_paper": 0.5, "mean_iou_after": 0.5}
    assert summary["by_rule"]["rare"] == pytest.approx(rare)
    assert summary["all"]["mean_iou_after"] == pytest.approx(0.6)
    assert summary["classes"] == pytest.approx(
        {
            "count": 4, "iou_before": 0.35, "iou_paper": 0.375, "iou_after": 0.4,
            "better": 2, "worse": 1, "mean_gain": 20, "mean_loss": 20,
        }
    )  # fmt: skip
    words = blank_page(record | {"summary": summary})
    assert "improved the IoU of 2 (by 20.0 points in the mean)" in words
    assert "worsened that of 1 (by 20.0 points in the mean) and left 1 unchanged" in words
    assert "from 35.0 % to 40.0 % (+5.0 points), with the paper’s calibration 37.5 %" in words
    summary = summarise_demo([row("rare", (0.5, 0.4), (0.5, 0.25))])
    words = blank_page(record | {"summary": summary})
    assert "improved the IoU of 0, worsened that of 1 (by 25.0 points in the mean)" in words
    assert "(-25.0 points)" in words


# ---- files ----


def test_files_and_record_are_complete(written, record, sd1):
    assert {path.name for path in written.iterdir()} == FILES
    with Image.open(written / "summary.png") as image:
        assert (image.mode, image.width > 1000) == ("RGB", True)
    settings = "scenes=2, seed=1, config=config"
    assert record["command"] == f"pixalign.scenes.demo.demo(model, {str(written)!r}, {settings})"
    assert [scene["rule"] for scene in record["scenes"]] == ["rare", "small"]
    assert all(scene["scene"] >= 1000 for scene in record["scenes"])
    assert (record["start"], record["seed"]) == (1000, 1)
    assert record["versions"]["torch"]
    assert record["model"]["name"] == type(sd1).__name__
    for scene in record["scenes"]:
        assert any(one["by_rule"] for one in scene["classes"])
        for moment in ("before", "paper", "after"):
            ious = [one[f"iou_{moment}"] for one in (*scene["classes"], scene["background"])]
            assert scene[f"mean_iou_{moment}"] == pytest.approx(np.mean(ious))
        assert {one["trust"] for one in scene["classes"]} <= {"sure", "blind", "absent"}
        best = min(scene["classes"], key=lambda one: one["elbo"])
        assert best["score"] == 1
    assert record["summary"] == summarise_demo(record["scenes"])


def test_numbers_are_those_of_plain_calls(record, sd1):
    """Before and after are what a user gets from the picture."""
    model = pa.load(sd1)
    _, scene = choose(1, 1000)[0]
    entry = record["scenes"][0]
    assert scene.number == entry["scene"]
    settings = {"elbo_steps": QUICK.elbo_steps, "collect_steps": QUICK.collect_steps}
    moments = {"before": "uncalibrated", "paper": "paper", "after": "default"}
    for moment, preset in moments.items():
        config = pa.AlignConfig.preset(preset, **settings)
        result = model.align(scene.image, scene.names, config=config, seed=1)
        expected = iou(scene.truth.numpy(), result.mask(), len(scene.labels) + 1)[1:]
        assert [one[f"iou_{moment}"] for one in entry["classes"]] == pytest.approx(expected)


class Reader(HTMLParser):
    """Tags in order, and the text of every table row."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.rows = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append("")

    def handle_data(self, data):
        if self.rows:
            self.rows[-1] += f" {data.strip()}"


def test_page_needs_nothing_else(written):
    report = (written / "report.html").read_text(encoding="utf-8")
    tags = Reader(report).tags
    images = [attributes for tag, attributes in tags if tag == "img"]
    assert images
    for attributes in images:
        assert attributes["src"].startswith("data:image/png;base64,")
        assert attributes["alt"]
    assert not {tag for tag, _ in tags} & {"script", "link", "iframe", "object", "a"}
    shown = re.sub(r"data:image/png;base64,[\w+/=]+", "", report)
    assert not [text for text in ("http", "url(", "@import") if text in shown]


def test_page_shows_the_numbers_of_the_record(written, record):
    report = (written / "report.html").read_text(encoding="utf-8")
    rows = [" ".join(text.split()) for text in Reader(report).rows]
    for scene in record["scenes"]:
        for one in scene["classes"]:
            change = change_in_points(one["iou_before"], one["iou_after"])
            sign = f"▲ +{change}" if change > 0 else f"▼ \u2212{-change}" if change else "= 0.0"
            tag = f" {scene['rule']}" if one["by_rule"] else ""
            expected = (
                f"{one['name']}{tag} {100 * one['training_share']:.2f} "
                f"{100 * one['area_share']:.1f} {100 * one['visible_share']:.1f} "
                f"{one['elbo']:.4f} {one['score']:.2f} {one['trust']} "
                f"{100 * one['iou_before']:.1f} · {100 * one['iou_paper']:.1f} · "
                f"{100 * one['iou_after']:.1f} {sign}"
            )
            assert expected in rows
    said = ("prove nothing statistically", "docs/lab.md", record["command"])
    said += (f"Of {record['summary']['classes']['count']} classes", RULES["rare"], RULES["small"])
    assert not [text for text in said if text not in html.unescape(report)]


def test_page_escapes(record):
    changed = json.loads(json.dumps(record))
    changed["scenes"][0]["classes"][0]["name"] = "<script>alert('1')</script>"
    changed["scenes"][0]["warnings"] = ["<i>weak</i>"]
    changed["model"]["name"] = 'a "<b>" & c'
    tags = Reader(blank_page(changed)).tags
    assert not {tag for tag, _ in tags} & {"script", "i"}
    assert any("<script>" in attributes.get("alt", "") for _, attributes in tags)


def test_page_of_uncalibrated_maps_has_no_verdicts_and_other_files_stay(sd1, tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    (tmp_path / "report.html").write_text("old")
    config = pa.AlignConfig.uncalibrated(collect_steps=2)
    path = demo(pa.load(sd1), tmp_path, scenes=1, progress=False, config=config, command="again")
    assert '<td data-label="verdict"></td>' in path.read_text(encoding="utf-8")
    scene = json.loads((tmp_path / "demo.json").read_text())["scenes"][0]
    assert {one["trust"] for one in scene["classes"]} == {""}
    assert scene["mean_iou_before"] == scene["mean_iou_after"]
    assert "<code>again</code>" in path.read_text(encoding="utf-8")
    assert {file.name for file in tmp_path.iterdir()} == {*FILES, "mine.txt"}
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_bad_values_are_refused_before_the_model_is_asked(tmp_path):
    for name, value in {"scenes": 0, "seed": -1}.items():
        with pytest.raises(ValueError, match=f"{name} is {value}; allowed"):
            demo(None, tmp_path / "out", **{name: value})
        assert not (tmp_path / "out").exists()
    (tmp_path / "out").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file"):
        demo(None, tmp_path / "out")

"""Rates and intervals against plain loops."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pixalign.alignment.trust import VERDICTS
from pixalign.audit.comparing import LEAST, compared
from pixalign.audit.drawing import NEGLECTED, faults
from pixalign.audit.figures import (
    DRAWS,
    NAMES,
    confused_pixels,
    entry,
    mean_of,
    picture_figures,
    prompt_figures,
    resamples,
    score,
)

CLASSES = ("cat", "dog", "hen")


def a_row(generator, name):
    verdict = str(generator.choice(VERDICTS))
    numbers = {
        key: float(generator.random())
        for key in ("standing", "presence", "lead", "others_lead", "agreement", "overlap",
                    "confidence", "share", "area")
    }  # fmt: skip
    other = str(generator.choice(CLASSES)) if verdict == "confused" else None
    return {"name": name, "verdict": verdict, "other": other, **numbers}


def records_of(count=12, seed=0, masks=True):
    generator, made = np.random.default_rng(seed), []
    for n in range(count):
        names = list(generator.permutation(CLASSES)[: n % 4])
        record = {
            "key": str(n),
            "classes": [a_row(generator, str(name)) for name in names],
            "layers": {"up-1": float(generator.random())} if n % 2 else {},
        }
        if masks:
            size = (len(names) + 1, len(names) + 1)
            record["pixels"] = {name: generator.integers(0, 50, size).tolist() for name in NAMES}
        made.append(record)
    return made


def pooled(records, name, method):
    """(hits, either) of a class's pixels, in a loop."""
    hits = either = 0
    for record in records:
        names = ["background", *(row["name"] for row in record["classes"])]
        if name in names:
            place, pixels = names.index(name), record["pixels"][method]
            true, called = sum(pixels[place]), sum(row[place] for row in pixels)
            hits += pixels[place][place]
            either += true + called - pixels[place][place]
    return hits, either


def miou(records, method):
    ious = []
    for name in ("background", *CLASSES):
        hits, either = pooled(records, name, method)
        if either:
            ious.append(100 * hits / either)
    return np.mean(ious)


def test_ious_pool_pixels_and_resample_pictures():
    records = records_of()
    weights = resamples(range(len(records)))
    figures = picture_figures(records, weights)
    for method in NAMES:
        value, drawn = figures.overall[f"miou_{method}"]
        assert value == pytest.approx(miou(records, method))
        for index in range(5):
            again = [r for r, often in zip(records, weights[index].long(), strict=True)
                     for _ in range(often)]  # fmt: skip
            assert float(drawn[index]) == pytest.approx(miou(again, method))
        hits, either = pooled(records, "dog", method)
        assert figures.classes["dog"][f"iou_{method}"][0] == pytest.approx(100 * hits / either)


def test_verdicts_and_scores_are_means_over_pairs():
    records = records_of(masks=False)
    figures = picture_figures(records, resamples(range(len(records))))
    rows = [row for record in records for row in record["classes"]]
    for verdict in VERDICTS:
        share = 100 * np.mean([row["verdict"] == verdict for row in rows])
        assert figures.overall[verdict][0] == pytest.approx(share)
    assert sum(figures.overall[verdict][0] for verdict in VERDICTS) == pytest.approx(100)
    lead = np.mean([row["lead"] - row["others_lead"] for row in rows])
    assert figures.overall["lead"][0] == pytest.approx(lead)
    assert "miou_dense" not in figures.overall
    own = [row for row in rows if row["name"] == "hen"]
    assert figures.counts["hen"]["pictures"] == len(own)
    assert sum(figures.counts["hen"]["verdicts"].values()) == len(own)
    assert figures.classes["hen"]["overlap"][0] == pytest.approx(
        np.mean([row["overlap"] for row in own])
    )
    layers = [record["layers"]["up-1"] for record in records if record["layers"]]
    assert figures.layers["up-1"][0] == pytest.approx(np.mean(layers))


def test_groups_hold_every_pair_once():
    records = records_of()
    counts = {"cat": 1, "dog": 10, "hen": 100}
    figures = picture_figures(records, resamples(range(len(records))), counts)
    pairs = sum(len(record["classes"]) for record in records)
    assert list(figures.groups) == ["size", "classes in the picture", "frequency"]
    for groups in figures.groups.values():
        assert sum(values["pairs"][0] for values in groups.values()) == pairs
    crowded = [record for record in records if len(record["classes"]) == 2]
    ious = []
    for record in crowded:
        pixels = np.array(record["pixels"]["dense"])
        hits = pixels.diagonal()
        ious += (100 * hits / (pixels.sum(0) + pixels.sum(1) - hits))[1:].tolist()
    found = figures.groups["classes in the picture"]["2"]["dense"][0]
    assert found == pytest.approx(np.mean(ious))
    largest = sorted(row["area"] for r in records for row in r["classes"])[-pairs // 3 :]
    assert figures.groups["size"]["largest third"]["pairs"][0] == len(largest)
    assert list(figures.groups["frequency"]) == ["rare", "common", "frequent"]


def test_confused_pixels_by_hand():
    records = [
        {"classes": [{"name": "cat"}, {"name": "dog"}],
         "pixels": {"dense": [[5, 1, 1], [2, 6, 2], [0, 0, 10]]}},
        {"classes": [{"name": "cat"}], "pixels": {"dense": [[9, 0], [10, 0]]}},
    ]  # fmt: skip
    rows = {(row["true"], row["called"]): row for row in confused_pixels(records, "dense")}
    assert rows["cat", "dog"] == {"true": "cat", "called": "dog", "percent": 20.0, "pictures": 1}
    assert rows["cat", "cat"]["percent"] == 30.0  # of both pictures
    assert rows["cat", "background"]["percent"] == 60.0
    assert rows["dog", "dog"]["percent"] == 100.0
    assert ("dog", "cat") not in rows


def prompt_record(standings, overlap=0.0, described=None):
    """Of things whose bound of neglect is 1: absence's is a tenth.

    Each explains 1 as it is; ``described`` is what they explain with the first one's word.
    """
    return {
        "absent_below": 1 / NEGLECTED,
        "classes": [
            {
                "name": f"thing {n}",
                "verdict": "sure",
                "other": None,
                "standing": standing,
                "explained": 1.0,
            }
            for n, standing in enumerate(standings)
        ],
        "pairs": [{"of": [0, 1], "overlap": overlap}],
        "attributes": [{"word": "red", "of": 0, "with": described}] if described else [],
    }


def test_rates_of_prompts_by_hand():
    records = [
        prompt_record([0.5, 2], overlap=0.9, described=[1, 2]),  # one is neglected: no pair
        prompt_record([2, 3], overlap=0.9, described=[2, 1]),
        prompt_record([2, 3], overlap=0.2, described=[2, 1]),
        prompt_record([2, 3], overlap=0.2, described=[1, 2]),
    ]
    figures = prompt_figures(records, resamples([0, 0, 1, 1]))
    assert {name: value for name, (value, _) in figures.overall.items()} == pytest.approx(
        {"neglected": 12.5, "merged": 100 / 3, "leaked": 100 / 3, "whole": 25.0}
    )
    assert figures.classes["thing 0"]["neglected"][0] == 25.0
    # Pictures of one prompt count together: only whole halves can come up.
    assert set(figures.overall["neglected"][1].tolist()) == {0.0, 12.5, 25.0}


def test_a_word_leaks_to_what_it_suits_best():
    record = prompt_record([2, 0.5, 3, 3], described=[2, 9, 0.9, 1.25])
    assert faults(record).attributes == ((0, 3, pytest.approx(0.2), True),)
    assert not faults(record).none
    record["attributes"][0]["with"] = [2, 9, 0.9, 1.02]  # next to nothing
    ((*_, leaked),) = faults(record).attributes
    assert not leaked
    record["attributes"][0]["of"] = 1  # describes what is neglected
    assert faults(record).attributes == ()


def test_a_word_leaks_only_where_it_suits_better_than_what_is_said():
    record = prompt_record([2, 2], described=[1, 2])
    record["classes"][1]["explained"] = 1.5
    assert faults(record).attributes == ((0, 1, pytest.approx(0.25), True),)
    record["classes"][1]["explained"] = 2.5  # drawn as it is said to be
    assert faults(record).attributes == ((0, 1, pytest.approx(-0.25), False),)
    record["attributes"].append({"word": "Red", "of": 1, "with": [1, 2]})
    assert faults(record).attributes == ()  # both are
    record = prompt_record([2, 2], described=[1, -0.1])
    assert faults(record).attributes == ((0, 1, -1.0, False),)


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 4)), min_size=1, max_size=12),
    st.integers(0, DRAWS - 1),
)
def test_a_resample_is_a_mean_of_what_came_up(known, index):
    weights = resamples(range(5))
    value, drawn = mean_of(known, weights)
    assert value == pytest.approx(np.mean([x for x, _ in known]), abs=1e-5)
    often = [int(weights[index, n]) for _, n in known]
    if sum(often):
        assert float(drawn[index]) == pytest.approx(
            np.average([x for x, _ in known], weights=often), abs=1e-5
        )
    else:
        assert torch.isnan(drawn[index])


def test_an_entry_has_the_percentiles():
    drawn = torch.randn(DRAWS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    low, high = np.percentile(drawn.numpy(), [2.5, 97.5])
    assert entry((0.5, drawn)) == pytest.approx({"value": 0.5, "low": low, "high": high}, abs=1e-3)


def test_sure_is_a_score_too():
    row = a_row(np.random.default_rng(0), "dog")
    assert score({**row, "verdict": "sure"}, "sure") == 1
    assert score({**row, "verdict": "blind"}, "sure") == 0


# ---- two subjects ----


def improved(records, name, more):
    """The same pictures, in which a class has more hits."""
    made = []
    for record in records:
        names = [row["name"] for row in record["classes"]]
        pixels = {method: [list(row) for row in rows] for method, rows in record["pixels"].items()}
        if name in names:
            place = names.index(name) + 1
            pixels["dense"][place][place] += more
        made.append({**record, "pixels": pixels})
    return made


def both(one, two):
    weights = resamples(range(len(one)))
    return compared(picture_figures(one, weights), picture_figures(two, weights))


def test_a_subject_does_not_differ_from_itself():
    pair = both(records_of(), records_of())
    assert all(values == [0, 0, 0] for values in pair["overall"].values())
    assert (pair["gained"], pair["lost"]) == ([], [])
    assert {row["change"] for row in pair["classes"]} == {"same"}


def test_what_gained_and_lost_is_named():
    records = records_of(24)
    after = improved(records, "dog", 400)
    pair = both(records, after)
    assert (pair["measure"], pair["gained"], pair["lost"]) == ("iou_dense", ["dog"], [])
    assert both(after, records)["lost"] == ["dog"]
    difference = next(row["difference"] for row in pair["classes"] if row["name"] == "dog")
    values = [100 * np.divide(*pooled(each, "dog", "dense")) for each in (records, after)]
    assert difference[0] == pytest.approx(values[1] - values[0], abs=1e-3)
    assert difference[1] > 0


def test_differences_are_paired():
    """Noise that both share does not widen the interval."""
    records = records_of(24)
    weights = resamples(range(24))
    figures = [picture_figures(each, weights) for each in (records, improved(records, "dog", 40))]
    pair = compared(*figures)
    _, low, high = pair["overall"]["miou_dense"]
    apart = [entry(each.overall["miou_dense"]) for each in figures]
    assert high - low < min(each["high"] - each["low"] for each in apart)


def test_few_pictures_change_nothing():
    records = records_of(24)
    places = [n for n, r in enumerate(records) if "dog" in [row["name"] for row in r["classes"]]]
    for record in itertools.compress(records, [n in places[LEAST - 1 :] for n in range(24)]):
        keep = [n for n, row in enumerate(record["classes"]) if row["name"] != "dog"]
        record["classes"] = [record["classes"][n] for n in keep]
        rows = [0, *(n + 1 for n in keep)]
        record["pixels"] = {
            method: np.array(pixels)[np.ix_(rows, rows)].tolist()
            for method, pixels in record["pixels"].items()
        }
    pair = both(records, improved(records, "dog", 4000))
    row = next(row for row in pair["classes"] if row["name"] == "dog")
    assert row["pictures"] == LEAST - 1
    assert row["change"] == "same"
    assert row["difference"][0] > 0

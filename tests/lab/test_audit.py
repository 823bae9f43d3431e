"""The study of audits: its figures against plain loops, and all of it at toy size."""

import json

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, spearmanr

from lab.audit import CHOSEN_ON, against, area, leaks_of, rank_correlation


def entity_rows(count=20, seed=0):
    generator = np.random.default_rng(seed)
    rows = []
    for n in range(count):
        said, true = (generator.random((2, 1 + n % 3)) < 0.4).tolist()
        rows.append((said, true))
    return rows


def test_rates_are_shares_of_entities():
    rows = entity_rows()
    said, true = (np.array([x for row in rows for x in row[i]]) for i in (0, 1))
    found = against(rows)
    assert (found["said"], found["true"], found["of"]) == (said.sum(), true.sum(), len(true))
    assert found["precision"][0] == pytest.approx(100 * true[said].mean(), abs=0.05)
    assert found["recall"][0] == pytest.approx(100 * said[true].mean(), abs=0.05)
    assert found["agreement"][0] == pytest.approx(100 * (said == true).mean(), abs=0.05)
    for name in ("precision", "recall", "agreement"):
        value, low, high = found[name]
        assert low < value < high
    assert against([([False], [True])])["precision"] == [None, None, None]


def test_area_is_that_of_another_library():
    generator = np.random.default_rng(1)
    rows = [(generator.integers(0, 9, 3).tolist(), (generator.random(3) < 0.5).tolist())
            for _ in range(15)]  # fmt: skip
    numbers, true = (np.array([x for row in rows for x in row[i]]) for i in (0, 1))
    pairs = mannwhitneyu(numbers[true], numbers[~true]).statistic
    assert area(rows) == pytest.approx(pairs / (true.sum() * (~true).sum()))
    assert np.isnan(area([([1, 2], [True, True])]))


def test_leaks_are_judged_apart_from_those_that_chose_the_bound():
    model, first = CHOSEN_ON
    generator = np.random.default_rng(3)
    rows = [(*row, generator.random(len(row[0])).tolist()) for row in entity_rows(first + 30)]
    found = leaks_of(model, rows)
    for part, own in {"chosen": rows[:first], "others": rows[first:]}.items():
        said, true, added = (np.array([x for row in own for x in row[i]]) for i in range(3))
        assert (found[part]["said"], found[part]["true"]) == (said.sum(), true.sum())
        assert found[part]["precision"][0] == pytest.approx(100 * true[said].mean(), abs=0.05)
        pairs = mannwhitneyu(added[true], added[~true]).statistic
        share = pairs / (true.sum() * (~true).sum())
        assert found[part]["auc"][0] == pytest.approx(share, abs=5e-4)
    assert set(leaks_of("lab:other", rows)) == {"others"}
    assert set(leaks_of(model, rows[:first])) == {"chosen"}


def test_ranks_correlate_as_scipy_says():
    generator = np.random.default_rng(2)
    rows = [
        {
            "overlap": {"value": value},
            "iou_dense": {"value": value + noise},
            "pictures": 4,
            "verdicts": {"sure": int(4 * value)},
        }
        for value, noise in generator.random((30, 2))
    ]
    value, low, high = rank_correlation(rows, "overlap", "iou_dense")
    pairs = [(row["overlap"]["value"], row["iou_dense"]["value"]) for row in rows]
    assert value == pytest.approx(spearmanr(*zip(*pairs, strict=True)).statistic, abs=5e-4)
    assert low < value < high
    assert rank_correlation(rows, "sure", "iou_dense")[0] > 0.3


def test_the_study_at_toy_size(lab_shell, tmp_path):
    few = ("--val", 3, "--test", 3, "--prompts", 2, "--coloured", 2, "--steps", 2)
    asked = ("audit", "--model", "lab:sd1", *few, "--out", tmp_path / "out")
    code, out, err = lab_shell(*asked, "--work", tmp_path / "work")
    assert code == 0, err
    record = json.loads((tmp_path / "out" / "sd1.json").read_text())
    assert record == json.loads(out)
    assert set(record["ranking"]) == {"val", "test"}
    for row in record["prompts"].values():
        assert row["neglected"]["of"] == 4
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("0*.json")}
    lab_shell(*asked, "--work", tmp_path / "work")  # from what is kept
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert json.loads((tmp_path / "out" / "sd1.json").read_text()) == record


def test_a_checkpoint_beside_the_final_model(lab_shell, request, tmp_path):
    """The final model beside itself: nothing is gained, nothing lost."""
    early = request.config.rootpath / "lab" / "models" / "flux-like"
    code, _, err = lab_shell("audit", "--early", early, "--test", 3, "--out", tmp_path)
    assert code == 0, err
    record = json.loads((tmp_path / "checkpoint.json").read_text())
    assert all(difference == [0, 0, 0] for difference in record["difference"].values())
    assert record["gained"] == record["lost"] == []

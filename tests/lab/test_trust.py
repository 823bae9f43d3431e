"""The study of trust: counted by hand, and whole on one scene."""

from collections import Counter

import numpy as np
import pytest
import torch

from lab.probabilities import BINS, ReliabilityCounter
from lab.trust import _rates, study_trust
from pixalign.bench.fitting import TEMPERATURES, best_temperature, logits, near_objects


def test_the_temperature_that_made_the_labels_is_found():
    generator = torch.Generator().manual_seed(0)
    heatmaps, truths = [], []
    true = TEMPERATURES[10]
    for _ in range(4):
        maps = torch.rand(3, 64, 64, generator=generator)
        chances = (logits(maps, 0.4) / true).softmax(0).flatten(1).T
        drawn = torch.multinomial(chances, 1, generator=generator)[:, 0].reshape(64, 64)
        heatmaps.append(maps)
        truths.append(drawn)
    found = best_temperature(heatmaps, truths, 0.4)
    assert abs(TEMPERATURES.index(found) - 10) <= 1


def test_reliability_by_hand():
    probabilities = torch.tensor([[[0.9, 0.6, 0.3]], [[0.1, 0.4, 0.7]]])
    counter = ReliabilityCounter()
    counter.add(probabilities, torch.tensor([[0, 1, 1]]))
    found = counter.reliability()
    assert sum(found.pixels) == 3
    assert len(found.pixels) == BINS
    said, right = np.array([0.9, 0.6, 0.7]), np.array([1, 0, 1])
    assert found.error == pytest.approx(np.abs(said - right).mean(), abs=1e-6)


def test_objects_and_their_borders():
    truth = torch.zeros(11, 11, dtype=torch.int64)
    truth[5, 5] = 2
    near = near_objects(truth)
    assert int(near.sum()) == 7 * 7
    assert near[2, 8]
    assert not near[1, 5]


def test_rates_by_hand():
    counts = {("absent", "absent"): 8, ("sure", "absent"): 2, ("sure", "sure"): 6}
    found = _rates(Counter(counts))
    assert found["absent"] == {"precision": 0.8, "recall": 1.0, "said": 10, "true": 8}
    assert found["sure"]["recall"] == 0.75
    assert found["blind"]["precision"] is None
    assert found["any doubt"] == {"precision": 0.8, "recall": 1.0, "said": 10, "true": 8}


def test_a_scene_of_the_lab():
    found = study_trust("lab:sd2", 1, 0, "cpu", show=False)
    assert found["scenes"] == 1
    assert set(found["miou_of_present"]) == {"alone", "keep", "drop"}
    assert found["average_precision"] is None
    absent = found["verdicts"]["absent"]
    assert absent["true"] == 5
    rates = [found["verdicts"][name] for name in ("sure", "blind", "confused", "absent")]
    assert sum(found["counts"].values()) == sum(each["true"] for each in rates)
    for kind in ("before, all", "after, all"):
        assert sum(found["reliability"][kind]["pixels"]) == 128 * 128

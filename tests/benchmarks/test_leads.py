"""The leads for a cheaper ELBO: what they choose, what they cost, and how they are judged."""

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import pixalign as pa
from lab.measured import scene_groups, scene_losses
from pixalign.config import AlignConfig

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import leads

TELLING = 7  # the one timestep of the grid that orders classes as the reference does
CONFIG = AlignConfig(gamma=0.5).resolved()


def scene(number, classes=3):
    """Losses in a random order, which one timestep of the grid shows and all others reverse."""
    generator = torch.Generator().manual_seed(number)
    truth = torch.randperm(classes, generator=generator).float()
    grid = -truth[:, None] + 0.05 * torch.randn(classes, leads.GRID, generator=generator)
    grid[:, TELLING] += 101 * truth
    losses = {"grid": grid}
    for name, steps in (("full", 20), ("negated", 20), ("reference", leads.REFERENCE)):
        losses[name] = truth[:, None] + torch.randn(classes, steps, generator=generator)
    subject = SimpleNamespace(index=number, labels=tuple(range(classes)))
    return leads.Scene(subject, None, losses)


@pytest.fixture(scope="module")
def scenes():
    return [scene(number, 2 + number % 3) for number in range(12)]


@pytest.fixture
def few(monkeypatch):
    """A handful of timesteps instead of many."""
    for name, value in {"REFERENCE": 4, "GRID": 4, "BUDGETS": (1, 2, 4)}.items():
        monkeypatch.setattr(leads, name, value)


def test_pairs_by_hand():
    values = torch.tensor([[5.0], [2.0], [1.0]])
    assert leads.pair_differences(values).tolist() == [[3.0], [4.0], [1.0]]
    assert leads.pair_differences(values[:1]).shape == (0, 1)


def test_the_telling_timestep_is_chosen_first(scenes):
    assert leads.greedy(scenes, 1).nonzero().flatten().tolist() == [TELLING]
    assert int(leads.greedy(scenes, 5).sum()) == 5


def test_weights_favour_what_follows_the_reference(scenes):
    places = leads.spread(leads.GRID, leads.GRID)
    assert torch.equal(places, torch.ones(leads.GRID, dtype=torch.float64))
    assert int(leads.inverse_variance(scenes, leads.GRID).argmin()) == TELLING  # loud
    assert int(leads.matched(scenes, leads.GRID).argmax()) == TELLING  # but right


def test_each_half_takes_what_the_other_chose(scenes, monkeypatch):
    asked = {"even": lambda known, budget: torch.full((1,), float(known[0].subject.index))}
    monkeypatch.setattr(leads, "ALLOCATIONS", asked)
    for _, lead in leads.allocations(scenes):
        assert [float(one) for one in lead.weights] == [1, 0]


def test_passes_count_arithmetic():
    found = dict(leads.fixed_leads(20, 0.25))
    assert {name: lead.passes for name, lead in found.items()} == {
        "shared noise, 5": 5, "independent noise, 5": 5,
        "shared noise, 10": 10, "independent noise, 10": 10, "eps and -eps, 10": 10,
        "full": 20, "independent noise, 20": 20, "eps and -eps, 20": 20,
        "reference": 100, "half side, 20": 5, "half side, less noise, 20": 5,
    }  # fmt: skip
    for lead in found.values():
        assert lead.against is None or lead.against in found


def test_closeness_by_hand(scenes):
    every = torch.ones(leads.REFERENCE, dtype=torch.float64)
    last = torch.zeros(leads.GRID, dtype=torch.float64)
    last[-1] = 1
    asked = {
        "reference": leads.Lead(("reference",), (every, every)),
        "reversed": leads.Lead(("grid",), (last, last), against="reference"),
    }
    weights = torch.ones(1, len(scenes), dtype=torch.float64)
    rows = leads.closeness(scenes, asked, CONFIG, weights)
    assert rows["reference"]["agreement"] == {"value": 1, "low": 1, "high": 1}
    assert rows["reference"]["error"]["value"] == 0
    assert rows["reversed"]["agreement"]["value"] == 0
    assert rows["reversed"]["agreement_minus"]["value"] == -1
    assert rows["reversed"]["error"]["value"] > 0.5


def test_variances_of_independent_noise():
    """All three noises are independent here, so nothing is saved and halves are halves."""
    weights = torch.ones(1, 300, dtype=torch.float64)
    found = leads.variances([scene(number) for number in range(300)], weights)
    wanted = {"independent": 1, "shared": 1, "two noises": 0.5, "eps and -eps": 0.5}
    for name, value in wanted.items():
        assert found[name]["value"] == pytest.approx(value, abs=0.05)


def test_a_run(wide, few, monkeypatch, tmp_path, capsys):
    model = pa.load(wide("sd1"))
    monkeypatch.setattr(leads.pa, "load", lambda **_: model)
    monkeypatch.setattr(leads, "AlignConfig", partial(AlignConfig, elbo_steps=4, collect_steps=1))
    leads.main(["--count", "2", "--device", "cpu", "--out", str(tmp_path / "leads.json")])
    result = json.loads((tmp_path / "leads.json").read_text())
    assert result["images"] == 2
    assert result["rows"]["full"]["minus_full"] == {"value": 0, "low": 0, "high": 0}
    assert result["rows"]["reference"]["agreement"]["value"] == 1
    assert 0.1 < result["half_side_cost"] <= 0.4
    assert "half side, less noise, 4" in capsys.readouterr().out


def test_full_is_what_the_benchmark_measures(wide, few):
    """And every other measurement of a scene has noise of its own."""
    model, config = pa.load(wide("sd1")), AlignConfig(elbo_steps=4, collect_steps=1).resolved()
    group, latents = next(scene_groups(model, "val", 1, show=False))
    found = leads.measured(model, config, group, latents)[0]
    known = scene_losses(model, group, latents, config)[0]
    assert torch.equal(found["full"], known)
    for name in ("negated", "independent", "half", "moved", "grid", "reference"):
        assert found[name].shape == known.shape
        assert not torch.isclose(found[name], known, rtol=1e-4).any()

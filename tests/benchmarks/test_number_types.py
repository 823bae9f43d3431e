"""What other weights change: figures by hand, and a run of toy size."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import number_types as study


def measured(*losses, present=1):
    found = study.Measured()
    found.losses = [np.asarray(own, dtype=np.float32)[:, None] for own in losses]
    found.present = [present] * len(losses)
    return found


def test_order_by_hand():
    """Of three classes, the first in the picture, the last two have changed places."""
    reference, found = measured([1, 2, 3], [1, 2, 3]), measured([1, 3, 2], [4, 2, 1])
    counts = list(study.agreeing(found, reference))
    assert counts == [(2, 3), (0, 3)]
    assert list(study.agreeing(found, reference, "mixed")) == [(2, 2), (0, 2)]
    share = study.share(counts)
    assert share["value"] == pytest.approx(100 / 3)
    assert share["pairs"] == 6
    assert share["low"] <= share["value"] <= share["high"]
    two = (measured([1, 2, 3], present=2), measured([2, 1, 3], present=2))
    assert list(study.agreeing(*two, "present")) == [(0, 1)]


def test_float8_is_the_nearest_of_its_numbers():
    """Three bits behind the leading one: off by a sixteenth of a number at most."""
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    off = (study.as_float8(weight) - weight).abs()
    assert (off <= weight.abs() / 16 + weight.abs().max() / 448 / 512).all()
    assert off.max() > weight.abs().max() / 100


def test_a_run_of_toy_size(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study, "TOY", {**study.TOY, "scenes": 1, "types": ["int8", "float16"]})
    study.main(["--toy", "--out", str(tmp_path), "--device", "cpu", "--repeats", "1"])
    record = json.loads((tmp_path / "lab-sd2.json").read_text())
    assert record["rows"]["float16"] == {"left_out": "needs a GPU"}
    own, other = record["rows"]["float32"], record["rows"]["int8"]
    assert own["losses"] == {"median": 0, "max": 0}
    assert own["order"]["all"]["value"] == 100
    assert 0 < other["losses"]["median"] < 0.02
    assert 0 < other["maps"]["dense"]["heatmaps_mean"] < 0.05
    row = json.loads((tmp_path / "tiny.json").read_text())["rows"]["int8"]
    assert row["forwards"]["total"] > 0
    assert row["seconds"]["total"] > 0
    assert "int8" in capsys.readouterr().out

"""Training on drawn pairs: a network and its counts, figures by hand, and a run of toy size."""

import json
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "training"))

import synthetic_training as study


def test_scenes_have_the_classes_alone():
    pairs = study.scene_pairs("test", 0, 12)
    assert pairs["images"].shape == (12, 128, 128, 3)
    assert pairs["scenes, true"].max() <= len(study.CLASSES) == 12
    assert (pairs["scenes, true"].reshape(12, -1).max(1) > 0).all()
    again = study.scene_pairs("test", 0, 12)
    assert (again["images"] == pairs["images"]).all()


def test_prompts_are_the_first_of_more():
    assert study.prompts(3) == study.prompts(8)[:3]
    assert [len(own) for own in study.prompts(4)] == [2, 3, 2, 3]


def test_a_network_and_what_is_counted_of_it():
    """Every pixel is claimed by one label and true of one; pairs of which nothing is known do."""
    torch.manual_seed(0)
    network = study.Segmenter()
    assert 200_000 < sum(p.numel() for p in network.parameters()) < 500_000
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 13, 32, 32)
    images = np.zeros((4, 128, 128, 3), np.uint8)
    unknown = np.full((4, 128, 128), 255, np.uint8)
    counts = study.train_and_test(images, unknown, 0, 2, "cpu", 2)
    assert counts.shape == (2, 13, 3)
    assert (counts[..., 1].sum(1) == 128**2).all()
    assert (counts[..., 2].sum(1) == 128**2).all()
    assert (counts[..., 0] <= counts[..., 1:].min(-1)).all()


def test_miou_by_hand():
    counts = np.zeros((1, 2, 13, 3), dtype=np.int64)
    counts[0, :, 0] = 1000  # the background does not count
    counts[0, 0, 1] = (5, 10, 10)
    counts[0, 1, 2] = (8, 8, 8)
    counts[0, 1, 3] = (0, 4, 0)  # claimed, but nowhere true
    once = torch.ones(1, 2, dtype=torch.float64)
    assert float(study.miou(counts, once)) == (100 / 3 + 100) / 2
    rows = study.summarise({"attention": counts, "dense": counts})
    assert rows["dense"]["minus_attention"]["value"] == 0
    assert rows["attention"]["seeds"] == [66.67]


def test_a_run_of_toy_size(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        study, "TOY", {**study.TOY, "pairs": [2], "drawing_steps": 1, "train_steps": 1, "test": 2}
    )
    study.main(["--toy", "--out", str(tmp_path), "--device", "cpu"])
    result = json.loads((tmp_path / "sd2.json").read_text())
    assert list(result["rows"]["2"]) == [*study.DRAWN, *study.SCENES]
    assert result["trained"] == len(study.DRAWN) + len(study.SCENES)
    assert (tmp_path / "sd2.webp").is_file()
    assert "scenes, true" in capsys.readouterr().out

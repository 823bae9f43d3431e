"""The study of edges: coarse maps by hand, its controls, and both halves from files."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import edges

SIZE = (48, 64)


def disc(number):
    """bool [H, W]: a disc whose place and size depend on the number."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    return (y - 22 - number) ** 2 + (x - 30 + 2 * number) ** 2 < (11 + number) ** 2


@pytest.fixture
def folder(tmp_path):
    """Four pictures of a red disc (class 7) on grey, with a corner that is not counted."""
    for part in ("images", "masks"):
        (tmp_path / part).mkdir()
    for number in range(4):
        picture = np.full((*SIZE, 3), 120, np.uint8)
        picture[disc(number)] = (220, 40, 30)
        mask = np.where(disc(number), 7, 0).astype(np.uint8)
        mask[:4, :4] = 255
        Image.fromarray(picture).save(tmp_path / "images" / f"{number}.jpg", quality=95)
        Image.fromarray(mask).save(tmp_path / "masks" / f"{number}.png")
    return tmp_path


def test_masks_are_averaged_over_cells_and_enlarged(folder):
    photo = edges.open_photo(folder, "1")
    assert photo.labels == [7]
    assert sorted(photo.truth.unique().tolist()) == [0, 1, 255]
    cells = disc(1).reshape(4, 12, 4, 16).mean((1, 3))
    maps = torch.from_numpy((cells - cells.min()) / np.ptp(cells))[None].float()
    expected = edges.enlarge(maps, SIZE)
    torch.testing.assert_close(edges.coarse_heatmaps(photo, 4, 0.0, 0), expected)
    noisy = [edges.coarse_heatmaps(photo, 4, 0.15, seed) for seed in (0, 0, 1)]
    assert torch.equal(noisy[0], noisy[1])
    assert not torch.equal(noisy[0], noisy[2])


def test_steps_keep_flat_maps_and_the_range(folder):
    picture = edges.open_photo(folder, "0").picture
    flat = torch.full((2, *SIZE), 0.4)
    rough = torch.rand(2, *SIZE, generator=torch.Generator().manual_seed(0))
    for name, step in (edges.VARIANTS | edges.SETTINGS).items():
        made = step(rough, picture, 6.0)
        assert 0 <= made.min() <= made.max() <= 1, name
        if not name.startswith("pamr"):  # min-max makes 0 of a constant
            torch.testing.assert_close(step(flat, picture, 6.0), flat)


def test_both_halves_from_files(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(edges, "CELLS", (8,))
    monkeypatch.setattr(edges, "DRAWS", 50)
    out = tmp_path / "photos.json"
    result = edges.main(["--photos", str(folder), "--out", str(out)])
    assert json.loads(out.read_text()) == result
    assert result["photographs"] == [2, 2]
    for half in ("chosen", "judged"):
        rows = result[half]["cells 8, noise 0"]
        assert rows["none"]["iou_gain"] == [0, 0, 0]
        gain, low, _ = rows["guided"]["iou_gain"]
        assert gain >= low > 1  # with an epsilon of 1e-4 JPEG's noise makes it 0
        assert gain == pytest.approx(rows["guided"]["iou"] - rows["none"]["iou"], abs=0.011)
    # The threshold is the first half's.
    chosen, judged = (result[half]["cells 8, noise 0.15"] for half in ("chosen", "judged"))
    assert all(judged[name]["threshold"] == chosen[name]["threshold"] for name in judged)
    assert all(judged[name]["oracle_iou"] >= judged[name]["iou"] for name in judged)
    assert "cells 8, noise 0.15" in capsys.readouterr().out

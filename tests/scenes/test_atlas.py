"""The classes: licensed drawings, plain names, known frequencies."""

import json
import re

import numpy as np
import pytest
import torch

from pixalign.scenes.atlas import (
    CELL,
    DATA,
    STYLES,
    class_names,
    plurals,
    sprites,
    training_ranks,
    training_shares,
)
from pixalign.scenes.sample import COLOURS


def test_atlas_is_small_and_licensed():
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 3_000_000
    text = (DATA / "LICENSES.md").read_text(encoding="utf-8")
    assert "SIL OPEN FONT LICENSE Version 1.1" in text
    assert "Permission is hereby granted, free of charge, to any person obtaining a copy" in text
    assert "Copyright (c) Microsoft Corporation" in text
    for style in STYLES:
        assert f"{style}.webp" in text


def test_names_are_plain_and_distinct():
    names = class_names()
    assert 104 <= len(names) <= 112
    assert len(set(names)) == len(set(plurals())) == len(names) == len(plurals())
    for name in (*names, *plurals()):
        assert re.fullmatch(r"[a-z]+( [a-z]+)?", name)
    # A caption's words must not mean two things.
    assert not set(names) & {*COLOURS, "small", "large", "two", "three"}


def test_every_drawing_fills_its_cell():
    drawings = sprites()
    assert drawings.shape == (len(class_names()), len(STYLES), 4, CELL, CELL)
    assert drawings.dtype == torch.uint8
    solid = drawings[:, :, 3] > 127
    height, width = solid.any(-1).sum(-1), solid.any(-2).sum(-1)
    assert torch.maximum(height, width).min() >= 0.85 * CELL  # a soft glow may take the rest
    covered = solid.float().mean((-2, -1))
    assert 0.08 < covered.min() < covered.max() < 0.9
    rows = json.loads((DATA / "classes.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in rows] == list(class_names())


def test_training_shares_follow_zipf():
    shares = training_shares()
    assert shares.sum() == pytest.approx(1)
    assert shares.min() > 0.0015
    falling = np.sort(shares)[::-1]
    np.testing.assert_allclose(falling / falling[0], np.arange(1, len(shares) + 1) ** -0.8)
    assert sorted(training_ranks()) == list(range(len(shares)))
    assert np.argmax(shares) == np.argmin(training_ranks())

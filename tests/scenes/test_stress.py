"""Dials: each changes one thing of the base scene."""

import numpy as np
import pytest
import torch

from pixalign.scenes import stress as stress_room
from pixalign.scenes.atlas import class_names, training_ranks
from pixalign.scenes.render import render
from pixalign.scenes.stress import DIALS, MAX_COPIES, OTHER, TARGET, stress
from scene_pictures import same


@pytest.mark.parametrize("dial", DIALS)
def test_level_zero_is_the_base_scene(dial):
    base = stress("size", 0, 250, 20)
    assert same(base, stress(dial, 0, 250, 20))
    assert same(base[3:4], stress(dial, 0, 253, 1))
    assert ((base.labels >= 0).sum(1) == 2).all()
    assert (training_ranks()[base.labels[:, TARGET]] < stress_room.FREQUENT).all()
    assert render(base, 64).visible_shares()[:, TARGET].min() > 0.97


def test_size_shrinks_the_target_alone():
    areas = [render(stress("size", level, 0, 16), 128).areas for level in (0, 0.5, 1)]
    assert (areas[1][:, TARGET] < 0.5 * areas[0][:, TARGET]).all()
    assert (areas[2][:, TARGET] < 0.25 * areas[1][:, TARGET]).all()
    assert (areas[2][:, TARGET] > 5).all()
    assert torch.equal(areas[0][:, OTHER], areas[2][:, OTHER])


def test_occlusion_hides_the_target():
    levels = np.linspace(0, 1, 6)
    visible = torch.stack(
        [render(stress("occlusion", x, 0, 48), 64).visible_shares()[:, TARGET] for x in levels]
    )
    means = visible.mean(1)
    assert (means.diff() < -0.02).all()
    assert means[-1] < 0.45


def test_copies_are_added_behind_the_target():
    before, after = stress("copies", 0, 0, 32), stress("copies", 1, 0, 32)
    assert (after.labels[:, :MAX_COPIES] == after.labels[:, [OTHER]]).all()
    half = (stress("copies", 0.5, 0, 32).labels >= 0).sum(1)
    assert (half == 2 + round(0.5 * MAX_COPIES)).all()
    assert before.captions == after.captions
    painted = render(after, 64)
    assert painted.visible_shares()[:, TARGET].min() > 0.97
    assert painted.visible_shares()[:, :MAX_COPIES].mean() > 0.85


def test_rarity_replaces_the_target():
    base, rare = stress("rarity", 0, 0, 256), stress("rarity", 1, 0, 256)
    count = len(class_names())
    assert (training_ranks()[rare.labels[:, TARGET]] >= count - stress_room.FREQUENT - 1).all()
    np.testing.assert_array_equal(base.labels[:, OTHER], rare.labels[:, OTHER])
    for level in np.linspace(0, 1, 12):
        labels = stress("rarity", level, 0, 256).labels
        assert (labels[:, TARGET] != labels[:, OTHER]).all()
    assert len(set(rare.labels[:, TARGET])) >= stress_room.FREQUENT


def test_wrong_dials_say_what_is_allowed():
    with pytest.raises(ValueError, match="dial is 'blur'; allowed: 'size', 'occlusion'"):
        stress("blur", 0.5, 0, 1)
    with pytest.raises(ValueError, match="level is 2; allowed: 0 to 1"):
        stress("size", 2, 0, 1)

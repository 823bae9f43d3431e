"""The lab's classifier: what its cells should say, and what is read from what they say."""

import json

import pytest
import torch
from torch.nn import functional

from lab.classifier import (
    HIGHEST,
    PRESENT,
    SceneClassifier,
    blurred,
    cell_losses,
    cell_targets,
    colour_of,
    found_class,
    load_classifier,
    look,
    presence,
    recognised,
    save_classifier,
    scene_figures,
    visible,
)
from lab.data import rendered, scenes
from lab.networks import parameter_count
from lab.recipe import complete
from lab.stages import ClassifierStage
from pixalign.scenes.atlas import class_names
from pixalign.scenes.draw import draw_scenes
from pixalign.scenes.sample import COLOURS

CLASSES = len(class_names())
SMALL = {"channels": (8, 16, 16, 16), "groups": 4}


def said(shares):
    """Logits whose probabilities are the shares."""
    return shares.clamp_min(1e-12).log()


def painted(colours):
    """Logits of colours int64 [B, h, w]; nothing is said where there is none."""
    known = functional.one_hot(colours.clamp_min(0), len(COLOURS)) * (colours >= 0)[..., None]
    return 9.0 * known.permute(0, 3, 1, 2)


def cells_of(places, side=4):
    """float32 [1, 1 + classes, side, side]: {class: {cell: share}}, the rest is background."""
    shares = torch.zeros(1, 1 + CLASSES, side, side)
    for label, cells in places.items():
        for cell, share in cells.items():
            shares[0, 1 + label, cell[0], cell[1]] = share
    shares[:, 0] = 1 - shares.sum(1)
    return shares


@pytest.fixture(scope="module")
def drawn():
    return rendered(draw_scenes("val", 60), 128, "cpu")


# ---- the network ----


def test_sizes_of_the_answers():
    model = SceneClassifier(CLASSES, **SMALL)
    for size, cells in (((128, 128), (16, 16)), ((64, 96), (8, 12)), ((100, 72), (13, 9))):
        classes, colours = model(torch.rand(2, 3, *size))
        assert classes.shape == (2, 1 + CLASSES, *cells)
        assert colours.shape == (2, len(COLOURS), *cells)


def test_cells_see_around_themselves(monkeypatch):
    """Half the picture and more, norms aside, which see all of it."""
    monkeypatch.setattr(torch.nn.GroupNorm, "forward", lambda self, hidden: hidden)
    torch.manual_seed(0)
    model = SceneClassifier(CLASSES, **complete("classifier")["classifier"]).eval()
    images = torch.rand(1, 3, 128, 128, requires_grad=True)
    model(images)[0][0, :, 8, 8].sum().backward()
    reach = (images.grad[0].abs().sum(0) > 0).nonzero()
    assert (reach.amax(0) - reach.amin(0)).min() > 64


def test_a_saved_classifier_is_small_and_the_same(tmp_path):
    config = {**complete("classifier")["classifier"], "classes": CLASSES}
    model = SceneClassifier(**config).half().float()
    assert parameter_count(model) < 950_000
    save_classifier(model, config, tmp_path)
    assert (tmp_path / "classifier.safetensors").stat().st_size < 1.9e6
    assert json.loads((tmp_path / "classifier.json").read_text())["classes"] == CLASSES
    images = torch.rand(5, 3, 32, 32)
    again = load_classifier(tmp_path, "cpu")
    assert not again.training
    for answer, other in zip(look(again, images, size=2), model(images), strict=True):
        torch.testing.assert_close(answer, other, atol=1e-5, rtol=1e-4)


# ---- targets and losses ----


def reference_targets(slots, labels, tints, cell):
    """Pixel by pixel."""
    count, height, width = slots.shape
    classes = torch.zeros(count, 1 + CLASSES, height // cell, width // cell)
    colours = torch.full((count, height // cell, width // cell), -1)
    for scene, row, column in torch.cartesian_prod(*map(torch.arange, colours.shape)).tolist():
        top, left = row * cell, column * cell
        pixels = slots[scene, top : top + cell, left : left + cell].flatten().tolist()
        for slot in pixels:
            label = labels[scene, slot - 1] + 1 if slot else 0
            classes[scene, label, row, column] += 1 / cell**2
        objects = [slot for slot in pixels if slot]
        for slot in sorted(set(objects), key=objects.count):
            if 2 * objects.count(slot) >= cell**2:
                colours[scene, row, column] = tints[scene, slot - 1]
    return classes, colours


def test_targets_pixel_by_pixel():
    some = scenes("val", 0, 12, 32, "cpu")
    for cell in (4, 8):
        classes, colours = cell_targets(some.slots, some.labels, some.tints, cell)
        expected = reference_targets(some.slots, some.labels, some.tints, cell)
        torch.testing.assert_close(classes, expected[0])
        assert torch.equal(colours, expected[1])
    assert (colours > 0).any()
    assert (colours == -1).any()


def test_targets_by_hand():
    """Two objects of one class add up; of half a cell the colour is known, of less it is not."""
    slots = torch.zeros(1, 4, 4, dtype=torch.uint8)
    slots[0, 0, :2], slots[0, 1, :1], slots[0, 1, 1] = 1, 2, 3  # a cell of 2, 1 and 1 pixels
    slots[0, 2, 2] = 2
    labels, tints = torch.tensor([[7, 7, 5, -1]]), torch.tensor([[4, 4, 2, 0]])
    classes, colours = cell_targets(slots, labels, tints, 2)
    assert classes[0, 8].tolist() == [[0.75, 0], [0, 0.25]]
    assert classes[0, 6].tolist() == [[0.25, 0], [0, 0]]
    assert classes[0, 0].tolist() == [[0, 1], [1, 0.75]]
    assert colours[0].tolist() == [[4, -1], [-1, -1]]


def test_scenes_that_cells_do_not_fill_are_refused():
    slots = torch.zeros(1, 20, 24, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"20 x 24 pixels.*8"):
        cell_targets(slots, torch.tensor([[1]]), torch.tensor([[0]]))


def test_losses_cell_by_cell():
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(2, n, 2, 2, generator=generator) for n in (4, 3)]
    shares = torch.rand(2, 4, 2, 2, generator=generator)
    shares /= shares.sum(1, keepdim=True)
    colours = torch.tensor([[[0, 2], [-1, 1]], [[-1, -1], [2, 2]]])
    weights = torch.tensor([1.0, 2.0, 5.0])
    found = cell_losses(tuple(logits), (shares, colours), weights)

    sums = {"object": [0.0, 0.0], "ground": [0.0, 0.0], "colour": [0.0, 0.0]}
    for scene, row, column in torch.cartesian_prod(*map(torch.arange, (2, 2, 2))).tolist():
        at = (scene, slice(None), row, column)
        likely = logits[0][at].softmax(0).log()
        for label in range(4):
            kind = "object" if label else "ground"
            sums[kind][0] -= shares[at][label] * likely[label]
            sums[kind][1] += shares[at][label]
        colour = colours[scene, row, column]
        if colour >= 0:
            sums["colour"][0] -= weights[colour] * logits[1][at].softmax(0).log()[colour]
            sums["colour"][1] += weights[colour]
    means = {name: total / weight for name, (total, weight) in sums.items()}
    torch.testing.assert_close(found[0], (means["object"] + means["ground"]) / 2)
    torch.testing.assert_close(found[1], means["colour"])


def test_empty_pictures_have_a_loss():
    logits = (torch.zeros(1, 4, 2, 2), torch.zeros(1, 3, 2, 2))
    shares = functional.one_hot(torch.zeros(1, 2, 2, dtype=torch.long), 4).permute(0, 3, 1, 2)
    nowhere = torch.full((1, 2, 2), -1)
    classes, colours = cell_losses(logits, (shares, nowhere), torch.ones(3))
    assert classes.item() == pytest.approx(torch.log(torch.tensor(4.0)).item() / 2)
    assert colours.item() == 0


def test_blurred_pictures_lose_detail_alone(drawn):
    images = drawn.images[:8]
    done = blurred(images, 0.5, 2.5, seed=1)
    assert torch.equal(done[4:], images[4:])
    assert done.shape == images.shape
    details = [x[:4].diff(dim=-1).square().mean((1, 2, 3)) for x in (done, images)]
    assert (details[0] < details[1]).all()
    means = [functional.avg_pool2d(x[:4], 32) for x in (done, images)]
    torch.testing.assert_close(*means, atol=0.02, rtol=0)
    assert torch.equal(done, blurred(images, 0.5, 2.5, seed=1))
    assert not torch.equal(done, blurred(images, 0.5, 2.5, seed=2))
    torch.testing.assert_close(blurred(images, 1.0, 1.0, seed=1), images)
    assert torch.equal(blurred(images, 0.0, 2.5, seed=1), images)


# ---- what is read ----


def test_presence_is_the_mean_of_the_highest_cells():
    shares = cells_of({3: {(0, 0): 0.9, (0, 1): 0.6, (1, 0): 0.3, (2, 2): 0.1}, 5: {(3, 3): 0.6}})
    found = presence(said(shares))
    assert HIGHEST == 3
    assert found.shape == (1, CLASSES)
    assert found[0, 3].item() == pytest.approx(0.6)
    assert found[0, 5].item() == pytest.approx(0.2)
    assert found.sum().item() == pytest.approx(0.8)
    assert found_class(said(shares)).tolist() == [3]
    only = said(cells_of({2: {(0, 0): 0.75}}, side=1))
    assert presence(only)[0, 2].item() == pytest.approx(0.75)


def test_every_visible_object_could_be_found(drawn):
    """Of cells that say the truth, presence tells every class that can be asked for."""
    shares, _ = cell_targets(drawn.slots, drawn.labels, drawn.tints)
    found = presence(said(shares)).gather(1, drawn.labels.clamp_min(0))
    assert found[visible(drawn)].min() > PRESENT
    assert (found.amax(1) <= 1 + 1e-6).all()


def test_colour_of_a_class_is_read_where_it_stands():
    shares = cells_of({3: {(0, 0): 0.9, (0, 1): 0.4}, 5: {(0, 1): 0.6, (3, 3): 1.0}})
    colours = torch.zeros(1, 8, 4, 4)
    colours[0, 2, 0, 0], colours[0, 6, 0, 1], colours[0, 6, 3, 3] = 1.0, 1.5, 1.0
    both = [part.expand(2, -1, -1, -1) for part in (said(shares), colours)]
    assert colour_of(*both, torch.tensor([3, 5])).tolist() == [2, 6]
    colours[0, 6, 0, 1] = 3.0  # 0.4 * 3 > 0.9 * 1
    assert colour_of(*both, torch.tensor([3, 5])).tolist() == [6, 6]


def test_a_mask_shows_what_it_covers():
    shares = cells_of({3: {(0, 0): 0.9, (0, 1): 0.2}, 0: {(0, 1): 0.3, (3, 3): 0.1}})
    logits = said(shares).expand(5, -1, -1, -1)
    masks = torch.zeros(5, 32, 32, dtype=torch.bool)
    masks[0, :8, :8] = True
    masks[1, :8, 8:16] = True
    masks[2, :8, 2:16] = True
    masks[3, 24:, 24:] = True  # nearly all background, which does not count
    labels = torch.tensor([3, 0, 3, 0, 0])
    assert recognised(logits, masks, labels).tolist() == [True, True, True, True, False]
    assert not recognised(logits, masks, 1 + labels).any()
    coarse = functional.max_pool2d(masks[:2].float(), 16).bool()  # other sizes are cells as well
    assert recognised(logits[:2], coarse, torch.tensor([3, 3])).all()


def test_the_true_masks_show_their_classes(drawn):
    shares, _ = cell_targets(drawn.slots, drawn.labels, drawn.tints)
    masks = drawn.masks == 1 + drawn.labels[:, 0, None, None]
    seen = visible(drawn)[:, 0]
    assert seen.sum() > 50
    assert recognised(said(shares), masks, drawn.labels[:, 0])[seen].float().mean() > 0.95


# ---- figures ----


def test_visible_objects_by_hand(drawn):
    asked = visible(drawn)
    for scene in range(len(asked)):
        for slot in range(asked.shape[1]):
            pixels = int((drawn.slots[scene] == slot + 1).sum())
            enough = pixels >= 0.01 * 128**2 and pixels >= 0.5 * int(drawn.areas[scene, slot])
            assert asked[scene, slot] == (enough and drawn.labels[scene, slot] >= 0)
    assert (asked != (drawn.labels >= 0)).any()


def test_figures_of_the_truth_and_of_errors(drawn):
    shares, colours = cell_targets(drawn.slots, drawn.labels, drawn.tints)
    perfect = scene_figures(said(shares), painted(colours), drawn)
    assert perfect == dict.fromkeys(
        ("recall", "recall_tinted", "precision", "colour", "colour_tinted"), 1
    )

    plain = scene_figures(said(shares), painted(colours.clamp_max(0)), drawn)
    tinted = drawn.tints[visible(drawn)] > 0
    assert plain["colour"] == pytest.approx(1 - tinted.float().mean().item())
    assert plain["colour_tinted"] == 0

    missed = shares.clone()
    first = drawn.labels[0, 0]
    missed[0, 0] += missed[0, 1 + first]
    missed[0, 1 + first] = 0
    objects = visible(drawn)
    lost = (objects[0] & (drawn.labels[0] == first)).sum()
    figures = scene_figures(said(missed), painted(colours), drawn)
    assert figures["recall"] == pytest.approx(1 - (lost / objects.sum()).item())
    tints = objects & (drawn.tints > 0)
    lost = (tints[0] & (drawn.labels[0] == first)).sum()
    assert figures["recall_tinted"] == pytest.approx(1 - (lost / tints.sum()).item())
    assert figures["precision"] == 1

    absent = next(label for label in range(CLASSES) if label not in drawn.labels[0])
    invented = missed.clone()
    invented[0, 1 + absent, 0, :HIGHEST], invented[0, 0, 0, :HIGHEST] = 1, 0
    found = int((presence(said(invented)) >= PRESENT).sum())
    figures = scene_figures(said(invented), painted(colours), drawn)
    assert figures["precision"] == pytest.approx(1 - 1 / found)

    nothing = scene_figures(said(cells_of({}, 16)).expand(60, -1, -1, -1), painted(colours), drawn)
    assert set(nothing.values()) == {0.0}


# ---- learning ----


def test_it_learns_the_scenes_that_it_sees():
    torch.manual_seed(0)
    quick = {"size": 64, "batch": 4, "bank": 4, "held_out": 9, "noise": 0.0, "blurred": 0.0}
    recipe = complete("classifier", {**quick, "classifier": {"channels": (16, 32, 32, 32)}})
    stage = ClassifierStage(recipe, "cpu")
    optimizer = torch.optim.AdamW(stage.model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    values = []
    for _ in range(200):
        losses = stage.losses(0, generator)
        optimizer.zero_grad()
        losses["loss"].backward()
        optimizer.step()
        values.append(losses["loss"].item())
    figures = scene_figures(*look(stage.model, stage.bank.images / 255), stage.bank)
    assert values[-1] < 0.2 * values[0]
    assert figures["recall"] > 0.6
    assert figures["precision"] > 0.9
    assert figures["colour"] > 0.9

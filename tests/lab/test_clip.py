"""The lab's CLIP at toy size, captions that are nearly right, and the CLIP score."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import CLIPModel, CLIPTokenizer

from lab.clip import ClipStage, Towers, _choice, describe, described_scenes
from lab.data import rendered
from lab.hard_negatives import tinted, without_one, wrong_captions
from lab.recipe import complete
from lab_runs import RECIPES
from pixalign.bench.metrics import clip_score
from pixalign.diffusion.sampling import to_pictures
from pixalign.scenes.sample import COLOURS, attribute_captions, full_captions, sample_scenes

# ---- captions ----


def words_of(caption):
    return caption.replace(",", "").split()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 50_000))
def test_exchanged_colours_are_the_same_words_in_another_order(start):
    rng = np.random.default_rng(start)
    scenes = tinted(sample_scenes("train", start, 8), 0.7, rng)
    right = attribute_captions(scenes)
    wrong = wrong_captions(scenes, "colour", np.random.default_rng(start))
    for row, (one, other) in enumerate(zip(right, wrong, strict=True)):
        present = scenes.labels[row] >= 0
        if len(set(scenes.tints[row][present].tolist())) == 1:
            assert one == other
        elif len(words_of(one)) < 14:  # a long caption drops attributes
            assert one != other
            assert sorted(words_of(one)) == sorted(words_of(other))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 50_000), st.sampled_from(["extra", "other"]))
def test_a_wrong_caption_names_one_class_that_is_not_there(start, kind):
    scenes = sample_scenes("train", start, 8)
    wrong = wrong_captions(scenes, kind, np.random.default_rng(start))
    right = full_captions(scenes)
    for row, caption in enumerate(wrong):
        there = len(set(scenes.labels[row][scenes.labels[row] >= 0].tolist()))
        named = caption.count(",") + 1
        if kind == "extra" and (scenes.labels[row] >= 0).all():
            assert named == there
        else:
            assert named == there + (kind == "extra")
            assert caption != attribute_captions(scenes)[row]
    assert right == full_captions(scenes)  # the scenes themselves stay


def test_tints_of_copies_are_alike_and_frequent():
    scenes = tinted(sample_scenes("train", 0, 500), 0.5, np.random.default_rng(0))
    present = scenes.labels >= 0
    share = (scenes.tints[present] > 0).mean()
    assert abs(share - 0.5) < 0.05
    assert scenes.tints.max() < len(COLOURS)
    for labels, tints in zip(scenes.labels, scenes.tints, strict=True):
        for label in set(labels[labels >= 0].tolist()):
            assert len(set(tints[labels == label].tolist())) == 1


def test_a_removed_class_leaves_the_picture():
    scenes = sample_scenes("val", 0, 40, objects=3)
    less = without_one(scenes, np.random.default_rng(1))
    for before, after in zip(scenes.labels, less.labels, strict=True):
        gone = set(before.tolist()) - set(after.tolist())
        assert len(gone) == 1
        assert (after[before == gone.pop()] == -1).all()
    assert less.captions == scenes.captions


def test_descriptions_are_a_function_of_the_number():
    first, again = (described_scenes(0.5, 64, 16) for _ in range(2))
    assert torch.equal(first.wrong, again.wrong)
    assert torch.equal(first.rich, again.rich)
    assert not torch.equal(describe(sample_scenes("train", 64, 16), 0.5, 65).rich, first.rich)


# ---- training ----


def test_the_loss_by_hand():
    torch.manual_seed(0)
    stage = ClipStage(complete("clip", {**RECIPES["clip"], "batch": 4}), "cpu")
    _, plain, rich, wrong = stage.bank
    asked = []

    def network(images, ids):
        asked[:] = ids, Towers(stage.model)(images, ids)
        return asked[1]

    stage.network = network
    loss = stage.losses(0, torch.Generator().manual_seed(1))["loss"]
    ids, (pictures, texts, scale) = asked
    right = ids[:4]
    total = 0.0
    for i in range(4):
        texts_of_row, texts_of_column = [], []
        for j in range(4):
            if i == j or not torch.equal(right[i], right[j]):
                texts_of_row.append(scale * pictures[i] @ texts[j])
                texts_of_column.append(scale * pictures[j] @ texts[i])
        own = scale * pictures[i] @ texts[i]
        for kind in range(3):
            caption = ids[4 + 3 * i + kind]
            place = (wrong[:, kind].long() == caption).all(1).nonzero()[0, 0]
            if not torch.equal(caption, rich[place].long()):
                texts_of_row.append(scale * pictures[i] @ texts[4 + 3 * i + kind])
        total += (torch.stack(texts_of_row).logsumexp(0) - own) / 8
        total += (torch.stack(texts_of_column).logsumexp(0) - own) / 8
    assert loss.item() == pytest.approx(total.item(), rel=1e-5)
    assert all((plain == row).all(1).any() or (rich == row).all(1).any() for row in right)


def test_choice_by_hand():
    ids = torch.arange(40)[:, None]
    perfect = torch.eye(40)
    assert _choice(perfect, perfect, ids) == 1
    assert _choice(perfect, perfect.roll(1, 0), ids) == 0
    twins = ids.clone()
    twins[1] = twins[0]
    vectors = perfect.clone()
    vectors[1] = vectors[0]
    assert _choice(vectors, vectors, twins) == 1  # an equal caption is no wrong choice


# ---- the score ----


def pictures(count):
    return to_pictures(rendered(sample_scenes("val", 0, count), 48, "cpu").images)


def test_the_score_is_that_of_transformers(finished):
    images, folder = pictures(3), finished("clip") / "clip"
    texts = ["a photo of dog", "a photo of red hot dog, two cats", "a photo of tree"]
    found = clip_score(images, texts, model=str(folder), device="cpu")
    model = CLIPModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = CLIPTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    pixels = torch.tensor(np.stack(images)).permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        logits = model(**tokens, pixel_values=pixels).logits_per_image / model.logit_scale.exp()
    np.testing.assert_allclose(found.scores, 100 * logits.diagonal().numpy(), rtol=1e-4)
    assert found.model == str(folder) in str(found)
    assert found.mean == pytest.approx(found.scores.mean())


def test_the_score_refuses_what_it_cannot_read(finished, tmp_path):
    with pytest.raises(ValueError, match="2 images and 1 texts"):
        clip_score(pictures(2), ["a photo of dog"], model=str(finished("clip") / "clip"))
    with pytest.raises(OSError, match="cannot load a CLIP from"):
        clip_score(pictures(1), ["dog"], model=str(tmp_path), device="cpu")
    with pytest.raises(FileNotFoundError, match="there is no CLIP in"):
        clip_score(pictures(1), ["dog"], model=str(tmp_path / "none"), device="cpu")

"""Scenes by seed: the same by every road, true captions, known frequencies."""

import re
from collections import Counter

import numpy as np
import pytest

from pixalign.scenes.atlas import class_names, plurals, training_shares
from pixalign.scenes.sample import (
    CHUNK,
    COLOURS,
    LARGE,
    MAX_WORDS,
    PREFIX,
    SMALL,
    SPLITS,
    attribute_captions,
    full_captions,
    sample_scenes,
)
from scene_pictures import same


@pytest.fixture(scope="module")
def train():
    return sample_scenes("train", 0, 20_000)


@pytest.fixture(scope="module")
def test():
    return sample_scenes("test", 0, 20_000)


def test_scene_is_the_same_in_any_batch():
    start, count = CHUNK - 7, CHUNK + 20  # over three chunks
    whole = sample_scenes("train", start, count)
    assert len(whole) == count
    assert same(whole, sample_scenes("train", start, count))
    for index in (0, 6, 7, 8, CHUNK + 6, CHUNK + 7, count - 1):
        assert same(whole[index : index + 1], sample_scenes("train", start + index, 1))


def test_splits_differ():
    assert tuple(SPLITS) == ("train", "val", "test")
    batches = [sample_scenes(split, 0, 64) for split in SPLITS]
    for index, left in enumerate(batches):
        for right in batches[:index]:
            assert not np.isclose(left.backgrounds, right.backgrounds).all(1).any()


def test_ranges_and_types(train):
    full = train.labels >= 0
    assert train.labels.max() < len(class_names())
    assert (np.diff(full.astype(int), axis=1) <= 0).all()  # empty slots come last
    counts = np.bincount(full.sum(1), minlength=5) / len(train)
    assert counts[:2] == pytest.approx([0, 0.12], abs=0.01)
    assert counts[0] == 0
    assert counts[2:].min() > 0.25
    sizes = train.sizes[full]
    assert np.float32(0.15) <= sizes.min() < 0.5 < np.quantile(sizes, 0.95)
    assert sizes.max() <= np.float32(0.65)
    assert 0 < train.centres.min() < train.centres.max() < 1
    assert np.abs(train.angles).max() <= np.deg2rad(25)
    for column in (train.flips, train.styles):
        assert column[full].mean() == pytest.approx(0.5, abs=0.01)
    assert (train.tints[full] > 0).mean() == pytest.approx(0.15, abs=0.01)
    assert set(train.tints[full]) == set(range(len(COLOURS)))
    for name in ("centres", "sizes", "angles", "backgrounds"):
        assert getattr(train, name).dtype == np.float32


def test_at_least_85_percent_show_several_classes(train):
    distinct = np.array([len(set(row[row >= 0])) for row in train.labels])
    copies = (train.labels >= 0).sum(1) - distinct
    assert (distinct >= 2).mean() >= 0.85
    assert 0.05 < (copies > 0).mean() < 0.15
    assert copies.max() == 2
    for objects in (1, 2, 3, 4):  # their number can be forced
        batch = sample_scenes("val", 300, 100, objects=objects)
        assert ((batch.labels >= 0).sum(1) == objects).all()


def test_classes_follow_their_training_shares(train):
    """Counted against the multinomial's own spread: systematic sampling varies no more."""
    labels = train.labels[train.labels >= 0]
    expected = training_shares() * len(labels)
    counts = np.bincount(labels, minlength=len(expected))
    deviations = (counts - expected) / np.sqrt(expected)
    assert np.abs(deviations).max() < 4.5
    assert np.sqrt((deviations**2).mean()) < 1.3
    assert np.abs(counts / expected - 1)[expected > 1000].max() < 0.08


def test_classes_are_uniform_in_test(test):
    labels = test.labels[test.labels >= 0]
    counts = np.bincount(labels, minlength=len(class_names()))
    assert np.abs(counts / counts.mean() - 1).max() < 0.25
    assert counts.std() / np.sqrt(counts.mean()) < 1.3


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"split": "dev"}, "split is 'dev'; allowed: 'train', 'val', 'test'"),
        ({"objects": 5}, "objects is 5; allowed: 1, 2, 3, 4"),
        ({"start": -1}, "start is -1"),
        ({"count": 0}, "count is 0"),
    ],
)
def test_wrong_requests_say_what_is_allowed(wrong, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        sample_scenes(**{"split": "train", "start": 0, "count": 1, **wrong})


def parts(caption):
    assert caption.startswith(PREFIX)
    return caption.removeprefix(PREFIX).split(", ")


def test_full_captions_name_every_class_once(train, test):
    for batch in (train[:2000], test[:2000]):
        for caption, labels in zip(full_captions(batch), batch.labels, strict=True):
            named = parts(caption)
            assert len(named) == len(set(named))
            assert set(named) == {class_names()[label] for label in labels[labels >= 0]}
    assert list(test.captions) == full_captions(test)


def test_order_of_names_tells_nothing_about_depth(train):
    several = (train.labels >= 0).all(1)
    first = train.order[several, 0]
    assert np.abs(np.bincount(first) / several.sum() - 0.25).max() < 0.03


def test_training_captions_have_their_shares(train):
    full, rich = full_captions(train), attribute_captions(train)
    kinds = Counter()
    for caption, whole, described in zip(train.captions, full, rich, strict=True):
        known = {"": "empty", described: "rich", whole: "full"}
        kinds[known.get(caption, "one")] += 1
        assert caption in known or caption.removeprefix(PREFIX) in parts(whole)
    shares = {kind: count / len(train) for kind, count in kinds.items()}
    assert shares["empty"] == pytest.approx(0.10, abs=0.01)
    assert shares["one"] == pytest.approx(0.17, abs=0.012)
    assert shares["full"] >= 0.60
    assert 0.04 < shares["rich"] <= 0.11  # some have no attribute to tell and count as full


def test_captions_are_short(train):
    for caption in (*train.captions, *attribute_captions(train)):
        assert len(re.findall(r"[a-z]+|,", caption)) <= MAX_WORDS <= 20


def test_attributes_are_true(train):
    """Read the captions back with a parser of their own."""
    seen = set()
    for index, caption in enumerate(attribute_captions(train[:4000])):
        labels, sizes = train.labels[index], train.sizes[index]
        for phrase in parts(caption):
            words = phrase.split()
            count = {"two": 2, "three": 3}.get(words[0])
            words = words[1:] if count else words
            size = words.pop(0) if words[0] in ("small", "large") else None
            colour = words.pop(0) if words[0] in COLOURS else None
            noun = " ".join(words)
            label = (plurals() if count else class_names()).index(noun)
            slots = np.flatnonzero(labels == label)
            assert len(slots) == count or (count is None and len(slots) >= 1)
            if size == "small":
                assert (sizes[slots] < SMALL).all()
            if size == "large":
                assert (sizes[slots] > LARGE).all()
            if colour:
                assert (train.tints[index, slots] == COLOURS.index(colour)).all()
            seen |= {count, size, colour}
    assert seen == {None, 2, 3, "small", "large", *COLOURS[1:]}

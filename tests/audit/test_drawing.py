"""Drawn prompts: what is missing, in one place, or described by another's words."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from pixalign.audit.drawing import (
    LEAKED,
    MERGED,
    _texts,
    drawn_record,
    explained_in,
    faults,
    overlap,
)
from pixalign.core.values import Evidence
from pixalign.methods.dense import Dense
from pixalign.text.entities import given_entities

PROMPT = "a photo of a red dog and a hot cat"


def rectangle(top, left, height, width, size=(12, 16)):
    found = torch.zeros(size)
    found[top : top + height, left : left + width] = 1
    return found


def test_overlap_is_the_iou_of_regions():
    one, two = rectangle(0, 0, 4, 8), rectangle(2, 0, 4, 8)
    assert overlap(one, two) == pytest.approx(16 / 48)
    assert overlap(one, 7 * one + 2) == 1
    assert overlap(one, rectangle(8, 8, 4, 8)) == 0
    assert overlap(one, one + 0.4 * rectangle(8, 0, 4, 16)) == 1  # below half of the peak


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**16), st.integers(1, 3))
def test_explained_is_the_mean_fall_of_the_error(seed, share):
    """Cell by cell in plain loops, for regions of whole and of half cells."""
    generator = np.random.default_rng(seed)
    evidence = Evidence(*(torch.from_numpy(generator.random((2, 3, 4))).float() for _ in "pe"))
    regions = [np.zeros((6, 8), dtype=bool) for _ in range(2)]
    regions[0][: 2 * share, :2], regions[1][:2, 4:5] = True, True  # half of cell (0, 2)
    found = explained_in(evidence, regions)
    falls = [2 * p - e for p, e in zip(evidence.projection, evidence.energy, strict=True)]
    assert found[0] == pytest.approx(np.mean([float(falls[0][y, 0]) for y in range(share)]), 1e-4)
    assert found[1] == pytest.approx(float(falls[1][0, 2]), 1e-4)


def test_the_first_word_is_replaced(tiny_model, few):
    """What a rule takes for a description may belong to the noun."""
    prompt = "a big red fire truck, a dog"
    entities = given_entities(prompt, ["big red fire truck", "dog"])
    assert [[text.removeprefix("a photo of ") for text in row]
            for row in _texts(tiny_model, prompt, entities, ["old"], few)] == [
        ["big red fire truck", "dog"], ["red fire truck", "dog"], ["old red fire truck", "old dog"]
    ]  # fmt: skip


@pytest.fixture(scope="module")
def record(tiny_model, few):
    entities = given_entities(PROMPT, ["red dog", "hot cat"])
    return drawn_record(tiny_model, PROMPT, entities, 2, None, few, 3)


def test_the_picture_is_what_plain_sampling_draws(record, tiny_model):
    plain = tiny_model.generate(PROMPT, method="plain", steps=2, seed=3)
    assert np.array_equal(np.asarray(record["picture"]), np.asarray(plain.image))


def test_entities_are_judged_in_the_picture(record, tiny_model, few):
    picture = record["picture"]
    names = {"dog": "red dog", "cat": "hot cat"}
    result = tiny_model.align(picture, names, config=few, seed=3, method="dense")
    for row, trust in zip(record["classes"], result.trust, strict=True):
        assert row["verdict"] == trust.verdict
        assert row["standing"] == pytest.approx(trust.numbers["standing"], rel=1e-4, abs=1e-9)
    assert [(row["name"], row["phrase"]) for row in record["classes"]] == list(names.items())


def test_words_are_measured_on_every_entity(record, tiny_model, few):
    """As further classes of the same picture are: one text more changes no other's errors."""
    template = tiny_model.resolve(few, "dense").template
    texts = ["red dog", "hot cat", "dog", "cat", "red cat", "hot dog"]
    dense = Dense(tiny_model)
    image = tiny_model.encode(record["picture"], config=few)
    names = {"dog": "red dog", "cat": "hot cat"}
    asked = dense.conclude(dense.measure(image, names, config=few, seed=3), few)
    errors = dense.measure(image, texts, config=few, seed=3).task.errors
    mask = asked.mask()
    for owner, noun in enumerate(("dog", "cat")):
        assert (mask == owner + 1).any()
        cover = torch.from_numpy(mask == owner + 1).float()[None, None]

        def explained(text, cover=cover):
            evidence = errors.of([template.format(text)]).evidence()
            fall = 2 * evidence.projection - evidence.energy
            weights = interpolate(cover, fall.shape[-2:], mode="area")[0]
            return pytest.approx(float((fall * weights).sum() / weights.sum()), rel=1e-3)

        asked_as = [explained(texts[owner]), explained(noun)]
        assert record["classes"][owner]["explained"] == max(asked_as, key=lambda x: x.expected)
        for each in record["attributes"]:
            assert each["with"][owner] == explained(f"{each['word']} {noun}")


def test_pairs_and_attributes_of_what_is_there(record):
    """Each by what its numbers say, and only among entities that are there."""
    (pair,), words = record["pairs"], record["attributes"]
    assert pair["of"] == [0, 1]
    assert [(each["word"], each["of"]) for each in words] == [("red", 0), ("hot", 1)]
    everything = faults({**record, "absent_below": 0.0})
    assert everything.neglected == (False, False)
    assert everything.pairs == ((0, 1, pair["overlap"] >= MERGED),)
    for (place, rival, added, leaked), owner in zip(everything.attributes, (0, 1), strict=True):
        assert (place, rival) == (owner, 1 - owner)
        own, explained = record["classes"][rival]["explained"], words[owner]["with"][rival]
        assert leaked == (explained > 0 and max(own, 0) < (1 - LEAKED) * explained)
        assert leaked == (added > LEAKED)
    nothing = faults({**record, "absent_below": 1.0})
    assert nothing.neglected == (True, True)
    assert nothing.pairs == nothing.attributes == ()


def test_nouns_that_come_twice_have_no_map(tiny_model, few):
    prompt = "a red dog and a hot dog"
    entities = given_entities(prompt, ["red dog", "hot dog"])
    made = drawn_record(tiny_model, prompt, entities, 2, None, few, 0)
    assert [row["name"] for row in made["classes"]] == ["dog", "dog"]
    assert made["pairs"] == []
    twice = "a dog and a dog"
    made = drawn_record(tiny_model, twice, given_entities(twice, ["dog"])[:1], 2, None, few, 0)
    assert made["attributes"] == []

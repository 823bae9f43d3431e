"""Drawn prompts: what is missing, in one place, or described by another's words."""

import numpy as np
import pytest
import torch

from pixalign.audit.drawing import MERGED, drawn_record, faults, overlap, strengths
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


def test_strengths_are_means_over_regions():
    word = torch.arange(12.0).reshape(3, 4)
    regions = [np.zeros((3, 4), dtype=bool) for _ in range(3)]
    regions[0][0], regions[1][2, 1:3] = True, True
    assert strengths(word, regions) == [1.5, 9.5, 0.0]


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


def test_pairs_and_attributes_of_what_is_there(record):
    """Each by what its numbers say, and only among entities that are there."""
    (pair,), words = record["pairs"], record["attributes"]
    assert pair["of"] == [0, 1]
    assert [(each["word"], each["of"]) for each in words] == [("red", 0), ("hot", 1)]
    everything = faults({**record, "absent_below": 0.0})
    assert everything.neglected == (False, False)
    assert everything.pairs == ((0, 1, pair["overlap"] >= MERGED),)
    leaked = [each["strengths"][1 - each["of"]] > each["strengths"][each["of"]] for each in words]
    assert everything.attributes == ((0, 1, leaked[0]), (1, 0, leaked[1]))
    nothing = faults({**record, "absent_below": 1.0})
    assert nothing.neglected == (True, True)
    assert nothing.pairs == nothing.attributes == ()


def test_words_that_come_twice_have_no_map(tiny_model, few):
    prompt = "a red dog and a hot dog"
    entities = given_entities(prompt, ["red dog", "hot dog"])
    made = drawn_record(tiny_model, prompt, entities, 2, None, few, 0)
    assert [row["name"] for row in made["classes"]] == ["dog", "dog"]
    assert made["pairs"] == []
    twice = "a dog and a dog"
    made = drawn_record(tiny_model, twice, given_entities(twice, ["dog"])[:1], 2, None, few, 0)
    assert made["attributes"] == []

"""Prompt sets: what the generators draw, and what the readers accept."""

import json
import re
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.generation import LAB_SETS
from lab.vocabulary import LENGTH, build_tokenizer, vocabulary_words
from pixalign.generation.prompt_sets import (
    ANIMALS,
    DVMP_KINDS,
    GROUPS,
    OBJECTS,
    PROMPT_COLOURS,
    PROMPT_SETS,
    WORN,
    SetPrompt,
    attend_excite,
    dvmp,
    read_abc6k,
    read_attend_excite,
)
from pixalign.scenes.atlas import class_names
from pixalign.scenes.sample import COLOURS as LAB_COLOURS
from pixalign.scenes.sample import MAX_WORDS, PREFIX
from pixalign.text.prompts import occurrences_of

SETS = PROMPT_SETS | LAB_SETS
COUNTED = ("dvmp", *LAB_SETS)

seeds = st.integers(0, 2**63)


def check_prompts(prompts):
    """No text twice, every entity in its text, as whole words and in order."""
    assert len({prompt.text for prompt in prompts}) == len(prompts)
    for prompt in prompts:
        reach = 0
        for entity in prompt.entities:
            starts = [span for span in occurrences_of(entity, prompt.text) if span[0] >= reach]
            assert starts, prompt
            reach = starts[0][1]


def written(folder, content):
    path = folder / "set.txt"
    path.write_text(content, encoding="utf-8")
    return path


def check_articles(text):
    assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", text), text
    for phrase in re.split(r", | and | with ", text):
        assert phrase.startswith(("a ", "an ")) != phrase.endswith("glasses"), text


@pytest.mark.parametrize(
    ("name", "count", "first"),
    [
        ("ae-animals", 66, "a cat and a dog"),
        ("ae-animals-objects", 144, "a cat and an orange backpack"),
        ("ae-objects", 66, "a brown backpack and red glasses"),
        ("dvmp", 600, "a big purple peach, a yellow hat and a spoon"),
        ("lab-pairs", 222, "a photo of cupcake, turtle"),
        ("lab-attributes", 222, "a photo of orange avocado, yellow pig"),
        ("lab-three", 222, "a photo of palm tree, croissant, bat"),
    ],
)
def test_sets_are_frozen(name, count, first):
    draw = SETS[name]
    prompts = draw()
    assert prompts == draw()
    check_prompts(prompts)
    assert all(prompt.entities for prompt in prompts)
    if name != "ae-animals":  # which holds all pairs, without a draw
        assert draw(seed=1) != draw(seed=2)
    assert len(prompts) == count
    assert prompts[0].text == first


# Attend-and-Excite


@given(seed=seeds)
def test_attend_and_excite(seed):
    groups = attend_excite(seed)
    assert tuple(groups) == GROUPS
    assert [len(prompts) for prompts in groups.values()] == [66, 144, 66]
    for prompts in groups.values():
        check_prompts(prompts)
        for prompt in prompts:
            check_articles(prompt.text)
    assert [prompt.entities for prompt in groups["animals"]] == list(combinations(ANIMALS, 2))
    for prompt in groups["animals_objects"]:
        animal, (colour, thing) = prompt.entities[0], prompt.entities[1].split()
        assert animal in ANIMALS
        assert colour in PROMPT_COLOURS
        assert (" with " in prompt.text) == (thing in WORN)
        assert (" and " in prompt.text) == (thing not in WORN)
    for prompt, things in zip(groups["objects"], combinations(OBJECTS, 2), strict=True):
        (one, first), (other, second) = (entity.split() for entity in prompt.entities)
        assert (first, second) == things
        assert one != other
        assert {one, other} <= set(PROMPT_COLOURS)


def test_attend_and_excite_uses_every_colour_and_article():
    groups = attend_excite()
    drawn = {prompt.entities[1].split()[0] for prompt in groups["animals_objects"]}
    assert drawn == set(PROMPT_COLOURS)
    assert len(PROMPT_COLOURS) == 11
    texts = {prompt.text for prompt in groups["animals"]}
    assert {"a cat and an elephant", "an elephant and a monkey"} < texts


def test_read_attend_and_excite(tmp_path):
    groups = attend_excite(7)
    content = {group: [prompt.text for prompt in prompts] for group, prompts in groups.items()}
    assert read_attend_excite(written(tmp_path, json.dumps(content))) == groups


@pytest.mark.parametrize(
    ("text", "entities"),
    [
        ("A Red car and a bench", ("Red car", "bench")),
        ("a cat and a cat", ("cat", "cat")),
        ("a catfish and a dog", ()),
        ("a cat, a dog and a bird", ()),
        ("a zebra and a spoon", ()),
    ],
)
def test_read_entities(tmp_path, text, entities):
    content = {"animals": [], "animals_objects": [], "objects": [text]}
    read = read_attend_excite(written(tmp_path, json.dumps(content)))
    assert read["objects"] == (SetPrompt(text, entities),)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "holds list; allowed: lists of texts named animals, animals_objects, objects"),
        ('{"animals": []}', r"holds \['animals'\]"),
        (
            '{"animals": ["a"], "animals_objects": "b", "objects": []}',
            "'b' as 'animals_objects'",
        ),
        ('{"animals": ["a"], "animals_objects": [3], "objects": []}', "3 in 'animals_objects'"),
        ('{"animals": [" "], "animals_objects": [], "objects": []}', "' ' in 'animals'"),
    ],
)
def test_read_attend_and_excite_refuses(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read_attend_excite(written(tmp_path, content))


# DVMP


@given(seed=seeds)
def test_dvmp(seed):
    nouns = {noun: kind for kind in DVMP_KINDS for noun in kind.nouns}
    prompts = dvmp(40, seed)
    check_prompts(prompts)
    for prompt in prompts:
        check_articles(prompt.text)
        words = [word for entity in prompt.entities for word in entity.split()]
        assert len(set(words)) == len(words)
        assert 1 <= len(prompt.entities) <= 3
        assert len(words) > len(prompt.entities)
        for entity in prompt.entities:
            *modifiers, noun = entity.split()
            assert len(modifiers) <= 3
            lists = [
                next(place for place, words in enumerate(nouns[noun].modifiers) if word in words)
                for word in modifiers
            ]
            assert lists == sorted(set(lists))


def test_dvmp_draws_everything():
    nouns = [noun for kind in DVMP_KINDS for noun in kind.nouns]
    assert len(set(nouns)) == len(nouns)  # kinds share none
    prompts = dvmp()
    sizes = Counter(len(prompt.entities) for prompt in prompts)
    assert min(sizes[1], sizes[2], sizes[3]) > 100
    modifiers = Counter(len(entity.split()) - 1 for p in prompts for entity in p.entities)
    assert set(modifiers) == {0, 1, 2, 3}
    used = {word for prompt in prompts for entity in prompt.entities for word in entity.split()}
    for kind in DVMP_KINDS:
        assert used >= set(kind.nouns)
        assert all(used >= set(words) for words in kind.modifiers)


@pytest.mark.parametrize("name", COUNTED)
@given(count=st.integers(1, 60), seed=seeds)
def test_fewer_prompts_are_the_first_of_more(name, count, seed):
    assert SETS[name](count, seed) == SETS[name](60, seed)[:count]


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize(("count", "seed"), [(0, 1), (-3, 1), (5, -1)])
def test_counts_and_seeds_are_checked(name, count, seed):
    with pytest.raises(ValueError, match=f"seed is {seed}|count is {count}"):
        SETS[name](count, seed)


# ABC-6K


def test_read_abc6k(tmp_path):
    path = written(tmp_path, "\ufeffa red dog\r\na blue dog \n\n a café\n\nb\u2028c\n")
    texts = ("a red dog", "a blue dog", "a café", "b\u2028c")
    assert read_abc6k(path) == tuple(SetPrompt(text, ()) for text in texts)


@pytest.mark.parametrize(("content", "count"), [("a\nb\n\nc\n", 3), ("\n \n", 0)])
def test_read_abc6k_refuses(tmp_path, content, count):
    with pytest.raises(ValueError, match=rf"set.txt' has {count} captions; allowed: pairs"):
        read_abc6k(written(tmp_path, content))


# The lab's


@pytest.mark.parametrize(("name", "size"), zip(LAB_SETS, (2, 2, 3), strict=True))
@given(seed=seeds, count=st.integers(1, 222))
def test_lab_prompts(name, size, seed, count):
    prompts = SETS[name](count, seed)
    check_prompts(prompts)
    used = Counter(dict.fromkeys(class_names(), 0))
    for prompt in prompts:
        assert prompt.text == PREFIX + ", ".join(prompt.entities)
        classes = prompt.entities
        if name == "lab-attributes":
            colours, classes = zip(*(e.split(" ", 1) for e in prompt.entities), strict=True)
            assert len(set(colours)) == 2
            assert set(colours) <= set(LAB_COLOURS[1:])
        assert len(set(classes)) == len(classes) == size
        used.update(classes)
    assert set(used) == set(class_names())
    assert max(used.values()) - min(used.values()) <= 2


@pytest.mark.parametrize("name", LAB_SETS)
def test_lab_prompts_are_words_of_the_lab(name):
    prompts = SETS[name]()
    words = set(vocabulary_words())
    tokenizer = build_tokenizer()
    for prompt in prompts:
        spoken = prompt.text.replace(",", " ,").split()
        assert set(spoken) <= words
        assert len(spoken) <= MAX_WORDS
        assert len(tokenizer(prompt.text)["input_ids"]) == len(spoken) + 2 <= LENGTH
    entities = [entity for prompt in prompts for entity in prompt.entities]
    used = Counter(e if e in class_names() else e.split(" ", 1)[1] for e in entities)
    assert set(used) == set(class_names())
    assert len(set(used.values())) == 1


def test_no_lab_combination_comes_twice():
    assert len({frozenset(prompt.entities) for prompt in SETS["lab-pairs"](4000)}) == 4000
    with pytest.raises(ValueError, match="count is 6106; so many different prompts"):
        SETS["lab-pairs"](6106)  # of 111 * 110 / 2 pairs

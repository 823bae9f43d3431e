"""Entities of a prompt: spaCy's noun chunks, and phrases that the user names."""

import re
import subprocess
import sys
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pixalign.generation.prompt_sets import ANIMALS, OBJECTS, attend_excite
from pixalign.scenes.atlas import class_names
from pixalign.text import entities as module
from pixalign.text.entities import (
    MODELS,
    NON_ENTITIES,
    Entity,
    entities_of,
    given_entities,
    read_non_entities,
)


def written(prompt, entities):
    """["text: noun < modifiers", ...] as they stand in the prompt."""
    assert all(prompt[slice(*entity.span)] == entity.text for entity in entities)
    spans = [(entity.text, entity.head, entity.modifiers) for entity in entities]
    words = [(t, prompt[slice(*h)], *(prompt[slice(*m)] for m in ms)) for t, h, ms in spans]
    return [f"{text}: {' < '.join(rest)}" for text, *rest in words]


def texts(entities):
    return [entity.text for entity in entities]


def check_spans(prompt, entities):
    for entity in entities:
        start, end = entity.span
        assert prompt[start:end] == entity.text != ""
        places = sorted([*entity.modifiers, entity.head])
        assert all(begin < stop for begin, stop in places)
        assert places[0][0] >= start
        assert places[-1][1] <= end
        assert places[-1] == entity.head or not entity.modifiers
        assert all(one[1] <= other[0] for one, other in pairwise(places))
    spans = [entity.span for entity in entities]
    assert all(one[1] <= other[0] for one, other in pairwise(spans))


# Found by spaCy


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a red car", ["red car: car < red"]),
        (
            "A black cat is inside a white toilet.",
            ["black cat: cat < black", "white toilet: toilet < white"],
        ),
        ("a blue palm tree", ["blue palm tree: palm tree < blue"]),
        ("two fluffy white dogs", ["two fluffy white dogs: dogs < fluffy < white"]),
        ("a man in a blue t-shirt", ["man: man", "blue t-shirt: t-shirt < blue"]),
        (
            "The man's dog and her very big black-and-white cat",
            ["man's dog: dog", "very big black-and-white cat: cat < very < big < black < white"],
        ),
        ("brown hi-top shoes", ["brown hi-top shoes: shoes < brown < hi < top"]),
        ("Paris with the Eiffel Tower", ["Paris: Paris", "Eiffel Tower: Eiffel Tower"]),
        ("she sees it", []),
        ("", []),
    ],
)
def test_attributes_and_nouns(prompt, expected):
    assert written(prompt, entities_of(prompt)) == expected


def test_a_colour_is_no_half_of_a_compound():
    """The model calls some of these compounds."""
    prompts = [f"a dog and an orange {thing}" for thing in OBJECTS if thing != "glasses"]
    for prompt in prompts:
        noun = prompt.split()[-1]
        assert written(prompt, entities_of(prompt))[1] == f"orange {noun}: {noun} < orange"


def test_repeated_phrases_are_entities_of_their_own():
    prompt = "a red dog beside a cat and a red dog"
    found = entities_of(prompt)
    assert texts(found) == ["red dog", "cat", "red dog"]
    assert [entity.span for entity in found] == [(2, 9), (19, 22), (29, 36)]
    assert found[2] == Entity("red dog", (29, 36), (33, 36), ((29, 32),))


def test_non_entities():
    prompt = "A photo of a group of people on the left side, a pair of red shoes in the background"
    assert texts(entities_of(prompt)) == ["people", "red shoes"]
    everything = texts(entities_of(prompt, ignored=frozenset()))
    assert {"photo", "group", "pair", "background"} < set(everything)
    assert texts(entities_of("two Dogs and a cat", ignored=frozenset({"dog"}))) == ["cat"]


def test_the_releases_rule_keeps_articles():
    prompt = "a red car and the two dogs"
    assert [entity.text for entity in entities_of(prompt, determiners=True)] == [
        "a red car",
        "the two dogs",
    ]
    ours = [entity.text for entity in entities_of(prompt)]
    assert ours == ["red car", "two dogs"]


def test_own_list_spares_things_that_the_sets_draw():
    things = {name.split()[-1] for name in class_names()} | set(ANIMALS) | set(OBJECTS)
    assert not things & NON_ENTITIES
    assert {"group", "bunch", "lot", "piece", "kind", "pair", "photo", "background"} < NON_ENTITIES
    code = Path(module.__file__).read_text(encoding="utf-8")
    source = re.search(r'NON_ENTITIES = frozenset\(\s*"""(.*?)"""', code, re.DOTALL)
    words = source[1].split()
    assert words == sorted(set(words))


def test_every_entity_of_attend_and_excite_is_found():
    for prompts in attend_excite().values():
        for prompt in prompts:
            assert tuple(texts(entities_of(prompt.text))) == prompt.entities


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_found_in_either_unicode_form(form):
    prompt = unicodedata.normalize(form, "a café and a brown dog")
    found = entities_of(prompt)
    assert texts(found) == [unicodedata.normalize(form, "café"), "brown dog"]
    check_spans(prompt, found)


WORDS = "a the her two red orange shiny dog café cafe\u0301 t-shirt 犬 🐶 and , with of photo men's"


@given(st.lists(st.sampled_from([*WORDS.split(), "\n", "“big”"]), max_size=12))
def test_found_spans_are_in_order_and_apart(words):
    prompt = " ".join(words)
    check_spans(prompt, entities_of(prompt))


# spaCy is an extra


@pytest.fixture
def forgotten():
    """No pipeline is kept from before the test, nor after it."""
    module._pipeline.cache_clear()
    yield
    module._pipeline.cache_clear()


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("missing", ["spacy", "model"])
def test_missing_spacy(monkeypatch, missing):
    for name in MODELS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    loaded = [name for name in sys.modules if name.startswith("spacy.")]
    for name in ("spacy", *loaded) if missing == "spacy" else MODELS:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r'pip install "pixalign\[nlp\]".*--entity') as caught:
        entities_of("a red car")
    assert isinstance(caught.value.__cause__, ImportError)
    assert texts(given_entities("a red car", ["red car"])) == ["red car"]


@pytest.mark.usefixtures("forgotten")
def test_spacys_own_model_will_do(monkeypatch):
    preferred, own = MODELS
    __import__(preferred)
    monkeypatch.setitem(sys.modules, own, sys.modules[preferred])
    monkeypatch.setitem(sys.modules, preferred, None)
    assert texts(entities_of("a red car")) == ["red car"]


def test_importing_does_not_load_spacy():
    code = "import sys, pixalign.text.entities; print('spacy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# Named by the user


def test_given_entities_stand_in_the_prompts_order():
    prompt = "a Red  Dog, a hot dog and a red dog; a dog"
    found = given_entities(prompt, ["dog", "hot dog", "red dog"])
    expected = ["Red  Dog: Dog < Red", "hot dog: dog < hot", "red dog: dog < red", "dog: dog"]
    assert written(prompt, found) == expected
    check_spans(prompt, found)


@pytest.mark.parametrize(
    "expected",
    [
        "dog: dog",
        "a big red dog: dog < big < red",
        "my two small dogs: dogs < small",
        "tall man riding a horse: man < tall",
        "well-known café: café < well-known",
        "🐶: 🐶",
    ],
)
def test_given_head_and_modifiers(expected):
    phrase = expected.split(":")[0]
    prompt = f"here: {phrase}, there"
    assert written(prompt, given_entities(prompt, [phrase])) == [expected]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("prompt_form", ["NFC", "NFD"])
def test_given_in_another_unicode_form(form, prompt_form):
    prompt = unicodedata.normalize(prompt_form, "naïve art in a blue café")
    found = given_entities(prompt, [unicodedata.normalize(form, "blue café")])
    expected = unicodedata.normalize(prompt_form, "café")
    assert written(prompt, found) == [f"blue {expected}: {expected} < blue"]


@pytest.mark.parametrize(
    ("prompt", "phrases", "message"),
    [
        ("a dog", ["dog", "red cat"], "entity 'red cat' does not occur in the prompt 'a dog'"),
        ("two dogs", ["dog"], "entity 'dog' does not occur"),
        ("a hot dog", ["dog", "hot dog"], "entity 'dog' occurs only inside another entity"),
        ("a dog", ["dog", "Dog "], "entity 'Dog' is given twice"),
        ("a dog", [" "], "entity 1 of 1 is empty"),
        ("a dog", "dog", "entities is 'dog'; give a list"),
    ],
)
def test_given_entities_that_are_refused(prompt, phrases, message):
    with pytest.raises(ValueError, match=message):
        given_entities(prompt, phrases)


@given(st.lists(st.sampled_from(["dog", "red dog", "red", "café au lait", "犬"]), min_size=1))
def test_given_entities_are_found_as_often_as_they_stand(chosen):
    prompt = unicodedata.normalize("NFD", "a " + ", a ".join(chosen))
    found = given_entities(prompt, list(dict.fromkeys(chosen)))
    assert [unicodedata.normalize("NFC", entity.text) for entity in found] == chosen
    check_spans(prompt, found)


@given(st.text() | st.text("aeqo\u0301\u0307\u0323\u0335가\u1100\u1161\u11a8\u0958 "))
@example("a\u0335\u0301")  # the second accent joins the letter, past the first
def test_composed_text_knows_where_it_came_from(text):
    composed, starts = module._composed(text)
    assert composed == unicodedata.normalize("NFC", text)
    assert len(starts) == len(composed) + 1
    assert starts[-1] == len(text)
    assert starts == sorted(starts)
    if unicodedata.is_normalized("NFC", text):
        assert starts == list(range(len(text) + 1))


# Other lists


def test_read_non_entities(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("\ufeffGroup\n\nlot, piece,\n kind \n", encoding="utf-8")
    assert read_non_entities(path) == {"group", "lot", "piece", "kind"}
    for content, message in (
        ("", "lists no word; allowed"),
        ("a lot\n", "'a lot'; allowed: single"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_non_entities(path)

"""PromptPlan to tokens: every way in which it has gone wrong elsewhere."""

import itertools
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import CanineTokenizer

import tiny
from pixalign.backbones import wrap
from pixalign.core.values import Phrase
from pixalign.text.prompts import (
    as_phrases,
    canonical_order,
    compose,
    find,
    head_noun,
    locate,
    name_span,
    split,
    token_columns,
)
from pixalign.text.streams import TextStream

TEMPLATE = "a photo of {}"


def words_at(prompt):
    return [[prompt.text[a:b] for a, b in spans] for spans in prompt.spans]


def tokens_of(tokenizer, text, spans):
    """Decoded tokens of the columns: what the model sees at these places."""
    encoded = tokenizer(text, return_offsets_mapping=True)
    columns = token_columns(encoded["offset_mapping"], spans)
    return tokenizer.decode([encoded["input_ids"][column] for column in columns])


@pytest.mark.parametrize("tokenizer", [tiny.clip_tokenizer(), tiny.t5_tokenizer()])
@pytest.mark.parametrize(
    "classes",
    [
        ["screen", "screen door"],
        ["screen door", "screen"],
        ["dog", "hot dog", "dog house"],
        ["Zebra", "TRAFFIC light", "café"],
        ["t-shirt", "St. Bernard", "rock 'n' roll", "a, b"],
        ["tree", "a photo of"],
    ],
)
def test_composed_columns_are_exactly_the_class(tokenizer, classes):
    prompt = compose(as_phrases(classes), range(len(classes)), TEMPLATE)

    assert prompt.text == "a photo of " + ", ".join(classes)
    for name, spans in zip(classes, prompt.spans, strict=True):
        decoded = tokens_of(tokenizer, prompt.text, spans)
        squeezed = decoded.replace(" ", "").casefold()
        assert squeezed == name.replace(" ", "").casefold()


def test_columns_of_different_classes_are_disjoint(pipeline):
    backbone = wrap(pipeline("sd3-t5"))
    phrases = as_phrases(["screen", "screen door", "door", "zebra"])
    spans = backbone.token_spans(compose(phrases, range(4), TEMPLATE), 333)

    for one, other in itertools.combinations(spans.columns, 2):
        assert not set(one) & set(other)


def test_t5_columns_follow_clips_and_can_be_left_out(pipeline):
    backbone = wrap(pipeline("sd3-t5"))
    prompt = compose(as_phrases(["dog"]), [0], TEMPLATE)

    # CLIP: start, a, photo, of, dog. T5 has no start token.
    assert backbone.token_spans(prompt, 333).columns == ((4, 77 + 3),)
    assert backbone.token_spans(prompt, 333, "clip").columns == ((4,),)
    assert wrap(pipeline("sd3")).token_spans(prompt, 333).columns == ((4,),)


def test_averaging_matrix(pipeline):
    backbone = wrap(pipeline("sd1"))
    phrases = as_phrases(["dog", "hot dog"])
    matrix = backbone.token_spans(compose(phrases, [0, 1], TEMPLATE), 77).averaging_matrix(2)

    # start a photo of | dog | , | hot dog
    assert matrix[:, 0].nonzero().flatten().tolist() == [4]
    assert matrix[:, 1].nonzero().flatten().tolist() == [6, 7]
    assert matrix.sum(0).tolist() == [1, 1]


def test_caption_finds_every_occurrence_as_a_whole_word():
    phrases = as_phrases(["dog", "hot dog", "cat"])
    prompt = locate(phrases, "A Dog sees a HOT  dog, a dog and a cat; no dogma.")
    assert words_at(prompt) == [["Dog", "dog"], ["HOT  dog"], ["cat"]]
    caption = unicodedata.normalize("NFD", "a café")
    assert words_at(locate(as_phrases(["café"]), caption)) == [["café"]]
    assert find(as_phrases(["dog", "cat"]), "a cat").classes == (1,)  # what is missing is skipped


@pytest.mark.parametrize(
    ("classes", "caption", "message"),
    [
        (["dog", "cat"], "a dog", "'cat' does not occur"),
        (["dog"], "dogs", "'dog' does not occur"),
        (["screen", "screen door"], "a screen door", "'screen' occurs only inside another class"),
    ],
)
def test_class_missing_from_the_caption_is_named(classes, caption, message):
    with pytest.raises(ValueError, match=message):
        locate(as_phrases(classes), caption)


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        (Phrase("dog", "a golden dog"), "dog"),
        (Phrase("Dog", "a golden dog with a dog tag"), "dog"),
        (Phrase("sofa", "a big red couch"), "couch"),
        (Phrase("person", "a tall man with a hat"), "man"),
        (Phrase("hot dog", "two hot dogs"), "dogs"),
        (Phrase("suitcase", "a pink modern wooden suitcase"), "suitcase"),
        (Phrase("thing", "with"), "with"),
        (Phrase("x", "???"), "???"),
    ],
)
def test_class_inside_its_phrase(phrase, expected):
    start, end = name_span(phrase)
    assert phrase.phrase[start:end] == expected


def test_phrase_columns_whole_or_name():
    phrases = as_phrases([Phrase("dog", "a golden dog"), Phrase("car", "two red cars")])
    caption, wholes = "two red cars and a golden dog", [["a golden dog"], ["two red cars"]]
    for whole, words in ((False, [["dog"], ["cars"]]), (True, wholes)):
        assert words_at(compose(phrases, [0, 1], TEMPLATE, whole)) == words
        assert words_at(locate(phrases, caption, whole)) == words


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([], "no classes"),
        (["dog", " "], "class 2 of 2 is empty"),
        (["dog", "cat", "Dog"], "'Dog' is given twice"),
        (["hot  dog", "hot dog"], "'hot dog' is given twice"),
        ("dog", "give a list"),
        ([3], "class 1 is 3"),
    ],
)
def test_bad_classes_are_refused(classes, message):
    with pytest.raises(ValueError, match=message):
        as_phrases(classes)


def test_class_beyond_the_columns_is_refused(pipeline):
    prompt = compose(as_phrases(["cat", "dog"]), [0, 1], TEMPLATE)
    with pytest.raises(ValueError, match="no tokens of 'dog'"):
        wrap(pipeline("sd1")).token_spans(prompt, 6)


@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=30), limit=st.integers(14, 40))
def test_split_is_the_fewest_even_prompts_that_fit(lengths, limit):
    names = [chr(97 + i % 26) * length + str(i) for i, length in enumerate(lengths)]
    phrases = as_phrases(names)
    order = canonical_order(phrases)

    def fits(text: str) -> bool:
        return len(text) <= limit + len("a photo of ")

    prompts = split(phrases, order, TEMPLATE, fits)
    assert [index for prompt in prompts for index in prompt.classes] == order
    sizes = [len(prompt.classes) for prompt in prompts]
    assert max(sizes) - min(sizes) <= 1
    assert all(fits(prompt.text) for prompt in prompts)
    for fewer in range(1, len(prompts)):
        assert not any(
            all(fits(compose(phrases, part, TEMPLATE).text) for part in parts)
            for parts in even_partitions(order, fewer)
        )


def even_partitions(order, count):
    """Every cut into runs whose sizes differ by at most one, by brute force."""
    size, larger = divmod(len(order), count)
    for big in itertools.islice(itertools.combinations(range(count), larger), 500):
        parts, start = [], 0
        for group in range(count):
            stop = start + size + (group in big)
            parts.append(order[start:stop])
            start = stop
        yield parts


def test_class_too_long_for_any_prompt_is_named(pipeline):
    long = "zebra " * 40
    with pytest.raises(ValueError, match=r"zebra zebra .* alone is longer"):
        split(as_phrases(["dog", long]), [0, 1], TEMPLATE, wrap(pipeline("sd1")).fits)


@given(st.permutations(["dog", "Cat", "zebra", "apple", "cat house"]))
def test_canonical_order_ignores_the_given_one(names):
    phrases = as_phrases(names)
    assert [names[i] for i in canonical_order(phrases)] == sorted(names, key=str.casefold)


def test_tokenizers_without_offsets_are_refused():
    with pytest.raises(ValueError, match=r"CanineTokenizer .* fast tokenizers"):
        TextStream("clip", CanineTokenizer(), 0, 77).offsets("dog")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a woman sitting on a bench", "woman"),
        ("a cup next to a plate", "cup"),
        ("a dog, brown and white", "dog"),
        ("a man riding a horse", "man"),
        ("a car parked outside", "car"),
        ("a man and a horse", "man"),
        ("a car (red)", "car"),
        ("the tall building with windows", "building"),
        ("a building", "building"),
        ("a white wedding", "wedding"),
        ("three baby rabbits", "rabbits"),
        ("an unmade bed by the wall", "bed"),
        ("with", "with"),
        ("", ""),
    ],
)
def test_head_noun(text, expected):
    assert text[slice(*head_noun(text))] == expected


def test_claims_do_not_depend_on_the_order_of_classes():
    caption = "hot dog car, hot dog, dog car"
    one = locate(as_phrases(["hot dog", "dog car"]), caption)
    other = locate(as_phrases(["dog car", "hot dog"]), caption)
    assert one.spans == other.spans[::-1]


def test_a_cut_prompt_ends_with_the_end_token(pipeline):
    """The last column of a text that is too long is not the word that would stand there."""
    backbone = wrap(pipeline("sd1"))
    text = "a " * 75 + "dog " + "a " * 9  # dog is token 76 of 0..76
    prompt = find(as_phrases(["dog"]), text)
    assert backbone.columns(prompt.text, prompt.spans, 77, backbone.streams) == ((),)
    fitting = find(as_phrases(["dog"]), "a " * 74 + "dog")
    assert backbone.columns(fitting.text, fitting.spans, 77, backbone.streams) == ((75,),)


def test_t5_reads_as_much_as_the_call_allows(pipeline):
    backbone = wrap(pipeline("sd3-t5"))
    prompt = find(as_phrases(["dog"]), "a " * 300 + "dog")
    assert backbone.columns(prompt.text, prompt.spans, 77 + 256, backbone.streams) == ((),)
    assert backbone.columns(prompt.text, prompt.spans, 77 + 512, backbone.streams) == ((77 + 300,),)

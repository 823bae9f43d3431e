"""Which columns of two prompts correspond."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from pixalign.backbones import wrap
from pixalign.text.pairing import align_words, columns_of, pair, word_spans

LENGTH = 77


@pytest.fixture(scope="module")
def backbone(sd1):
    return wrap(sd1)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("a tree and a cat", "a bush and a cat",
         ["equal: a > a", "replace: tree > bush", "equal: and a cat > and a cat"]),
        ("a car", "a red car with two dogs",
         ["equal: a > a", "insert:  > red", "equal: car > car", "insert:  > with two dogs"]),
        ("a hot dog", "A dog", ["equal: a > A", "delete: hot > ", "equal: dog > dog"]),
        ("a tree, well-known", "an oak, well-known",
         ["equal: a > an", "replace: tree > oak", "equal: , well-known > , well-known"]),
    ],
)  # fmt: skip
def test_words_correspond_in_groups(source, target, expected):
    ours, theirs = ([text[slice(*s)] for s in word_spans(text)] for text in (source, target))
    found = [
        f"{group.kind}: {' '.join(ours[word] for word in group.source)} > "
        f"{' '.join(theirs[word] for word in group.target)}"
        for group in align_words(source, target)
    ]
    assert found == expected


def test_punctuation_and_apostrophes_are_words_of_their_own():
    text = "a dog's well-known hat... (red)"
    found = [text[slice(*span)] for span in word_spans(text)]
    assert found == ["a", "dog's", "well-known", "hat", "...", "(", "red", ")"]


def test_one_token_each(backbone):
    found = pair(backbone, "a dog and a car", "a cat and a car", LENGTH)
    assert torch.equal(found.matrix, torch.eye(LENGTH))
    assert found.blend.all()
    assert [(c.source, c.target, c.columns) for c in found.changes] == [
        ("dog", "cat", (((2,), (2,)),))
    ]


def test_a_word_of_more_tokens(backbone):
    """ "zebra" is five tokens: the text behind it moves, and columns fall off the end."""
    found = pair(backbone, "a dog and a car", "a zebra and a car", LENGTH)
    assert found.changes[0].columns == (((2,), (2, 3, 4, 5, 6)),)
    assert found.matrix[2, 2:7].tolist() == [1] * 5
    assert found.matrix[:, 2:7].sum() == 5
    for source, target in ((0, 0), (1, 1), (3, 7), (4, 8), (5, 9), (6, 10), (72, 76)):
        assert found.matrix[source, target] == 1
    assert found.blend.all()

    back = pair(backbone, "a zebra and a car", "a dog and a car", LENGTH)
    assert back.matrix[2:7, 2].tolist() == pytest.approx([0.2] * 5)
    assert back.matrix[10, 6] == 1  # the end tokens
    assert back.blend.tolist() == [1] * 73 + [0] * 4  # four paddings more than the source has


def test_an_added_word_keeps_its_own_map(backbone):
    found = pair(backbone, "a car", "a red car", LENGTH)
    assert found.blend[2] == 0
    assert found.matrix[:, 2].sum() == 0
    assert found.matrix[2, 3] == 1
    assert not found.changes
    assert found.differs


def test_a_change_of_punctuation_is_no_change_of_words(backbone):
    found = pair(backbone, "a dog, a cat", "a dog and a cat", LENGTH)
    assert not found.changes
    assert found.blend.all()
    found = pair(backbone, "a dog, red", "a cat and red", LENGTH)
    assert [(c.source, c.target) for c in found.changes] == [("dog", "cat and")]
    assert found.changes[0].columns == (((2,), (2, 3)),)


def test_weights_are_of_the_targets_columns(backbone):
    found = pair(backbone, "a dog", "a dog", LENGTH, {"dog": 2.5})
    assert found.differs
    assert found.factors[2] == 2.5
    assert found.factors.sum() == LENGTH + 1.5


LONG = "a zebra " * 15


@pytest.mark.parametrize(
    ("source", "target", "weights", "message"),
    [
        ("a dog", "a dog", {"cat": 2.0}, "'cat' is not in the prompt 'a dog'"),
        ("a dog", "a dog", {"dog": float("nan")}, "'dog' is nan"),
        (LONG + "dog", LONG + "cat", {}, "beyond what the model reads"),
        (LONG + "dog", LONG + "dog", {"dog": 2.0}, "beyond the 77 tokens"),
        (" ", "a dog", {}, "at least one word"),
    ],
)
def test_what_cannot_be_paired(backbone, source, target, weights, message):
    with pytest.raises(ValueError, match=message):
        pair(backbone, source, target, LENGTH, weights)


def test_every_stream_has_columns_of_its_own(pipeline):
    t5 = wrap(pipeline("sd3-t5"))
    length = t5.encode_text(["a"]).embeds.shape[1]
    found = pair(t5, "a dog and a Raze", "a tree and a raze", length)
    assert found.changes[0].columns == (((2,), (2,)), ((78,), (78,)))
    # CLIP reads both in small letters; T5 spells "Raze" with one piece more than "raze".
    assert torch.equal(found.matrix[:77, :77], torch.eye(77))
    raze = columns_of(t5, "a dog and a Raze", "Raze", length)
    razed = columns_of(t5, "a tree and a raze", "raze", length)
    behind = [column for column in razed if column >= 77]
    assert found.matrix[77:, behind].sum(0).allclose(torch.ones(len(behind)))
    assert len(raze) > len(razed)
    assert not found.matrix[:77, 77:].any()
    assert not found.matrix[77:, :77].any()


def test_columns_that_no_text_fills_stay_where_they_are(pipeline):
    """Without T5 the pipeline fills its columns with zeros."""
    found = pair(wrap(pipeline("sd3")), "a dog", "a zebra", 333)
    assert torch.equal(found.matrix[77:, 77:], torch.eye(256))
    assert found.matrix[72, 76] == 1
    assert found.matrix[:, 76].sum() == 1


words = st.lists(
    st.sampled_from(["a", "dog", "cat", "zebra", "red", "and", ",", "Tree", "Élan", "it's", "42"]),
    min_size=1,
    max_size=8,
).map(" ".join)


@given(source=words, target=words)
def test_pairings_are_averages(pipeline, source, target):
    for name in ("sd1", "sd3-t5"):
        backbone = wrap(pipeline(name))
        length = 77 if name == "sd1" else 333
        found = pair(backbone, source, target, length)
        sums = found.matrix.sum(0)
        assert set(found.blend.tolist()) <= {0.0, 1.0}
        torch.testing.assert_close(sums, found.blend)
        assert (found.matrix >= 0).all()
        for change in found.changes:
            for ours, theirs in change.columns:
                # What takes others' place has the mean of these others and nothing else.
                part = found.matrix[:, list(theirs)]
                assert (part[list(ours)] > 0).all()
                assert (part == part[:, :1]).all()


@given(text=words)
def test_a_prompt_corresponds_to_itself(pipeline, text):
    for name in ("sd2-v", "sdxl", "sd3-t5"):
        backbone = wrap(pipeline(name))
        length = 333 if name == "sd3-t5" else 77
        found = pair(backbone, text, text, length)
        assert torch.equal(found.matrix, torch.eye(length))
        assert found.blend.all()
        assert not found.differs
        assert not found.changes


@given(source=words, target=words)
def test_groups_hold_every_word_once_and_in_order(source, target):
    assume(source != target)
    found = align_words(source, target)
    assert [w for g in found for w in g.source] == list(range(len(word_spans(source))))
    assert [w for g in found for w in g.target] == list(range(len(word_spans(target))))
    for group in found:
        assert bool(group.source) == (group.kind != "insert")
        assert bool(group.target) == (group.kind != "delete")

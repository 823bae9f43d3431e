"""What annotators say, and what of it is believed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pixalign as pa
import tiny
from helpers import model_of
from pixalign.bench.annotating import (
    AgreeingAnnotators,
    AlignmentAnnotator,
    AnnotatedObject,
    Annotation,
    Belief,
    GroundedSamAnnotator,
    agreed,
    annotation_of,
)

PHRASES = [pa.Phrase("dog"), pa.Phrase("cat", "red cat")]
QUICK = pa.AlignConfig(method="dense", elbo_steps=3, collect_steps=2)


class Boxes:
    """In the place of the networks: two boxes of the first phrase, one of the second."""

    def boxes(self, image, phrases):
        self.asked = phrases
        return torch.zeros(3, 4), torch.tensor([0.9, 0.6, 0.4]), torch.tensor([1, 0, 0])

    def masks(self, image, boxes):
        found = torch.zeros(3, image.height, image.width, dtype=torch.bool)
        found[0, :, 0], found[1, :, :2], found[2, :, 3] = True, True, True
        return found

    def record(self):
        return {"detector": "none"}


def annotation(mask, verdicts=("sure", "confused"), **numbers):
    objects = [
        AnnotatedObject(p.name, p.phrase, 0.1, verdict, numbers)
        for p, verdict in zip(PHRASES, verdicts, strict=True)
    ]
    return Annotation(np.array(mask, dtype=np.uint8), tuple(objects))


def test_an_alignment_as_an_annotation():
    model = model_of(tiny.sd1(), config=QUICK)
    aligned = model.align(tiny.photo(64, 64), PHRASES, config=QUICK)
    made = annotation_of(aligned)
    np.testing.assert_array_equal(made.mask, aligned.mask())
    np.testing.assert_allclose([o.share for o in made.objects], aligned.shares()[1:], atol=1e-6)
    for number, (said, trust) in enumerate(zip(made.objects, aligned.trust, strict=True), 1):
        assert (said.name, said.verdict) == (aligned.classes[number - 1], trust.verdict)
        gap = trust.numbers["lead"] - trust.numbers["others_lead"]
        assert said.numbers["margin"] == pytest.approx(gap, abs=1e-5)
        own = made.mask == number
        if own.any():
            mean = aligned.probs().max(0)[own].mean()
            assert said.numbers["confidence"] == pytest.approx(mean, abs=1e-5)
    annotator = AlignmentAnnotator(model)
    assert annotator.record()["config"]["method"] == "dense"
    assert "device" not in annotator.record()["model"]


def test_the_highest_score_has_the_pixel():
    networks = Boxes()
    made = GroundedSamAnnotator(networks).annotate(tiny.photo(4, 2), PHRASES, 0)
    assert made.mask.tolist() == [[2, 1, 0, 1]] * 2
    assert [each.numbers["score"] for each in made.objects] == pytest.approx([0.6, 0.9])
    assert networks.asked == ["dog", "red cat"]
    assert [each.share for each in made.objects] == [0.5, 0.25]


def test_annotators_agree_or_nothing_is_known():
    first = annotation([[0, 1, 2, 1]], lead=0.5)
    second = annotation([[0, 1, 1, 0]], (None, None), score=0.7)
    both = agreed(first, second)
    assert both.mask.tolist() == [[0, 1, 255, 255]]
    assert both.objects[0].verdict == "sure"
    assert both.objects[0].numbers == {"lead": 0.5, "score": 0.7}
    assert both.annotated == (True, False)

    class Says:
        def __init__(self, said):
            self.said = said

        def annotate(self, image, phrases, seed):
            return self.said

        def record(self):
            return {"method": "says"}

    pair = AgreeingAnnotators(Says(first), Says(second))
    assert pair.annotate(None, PHRASES, 0).mask.tolist() == both.mask.tolist()
    assert pair.record()["second"] == {"method": "says"}


def test_what_is_not_believed_is_not_counted():
    said = annotation([[0, 1, 2]], lead=0.3)
    assert Belief().applied(said).mask.tolist() == [[0, 1, 255]]
    assert Belief(sure_only=False).applied(said).mask.tolist() == [[0, 1, 2]]
    assert Belief(least={"lead": 0.4}).applied(said).mask.tolist() == [[0, 255, 255]]
    assert Belief(least={"score": 0.4}).applied(said).mask.tolist() == [[0, 1, 255]]
    assert said.mask.tolist() == [[0, 1, 2]]
    unsure = Annotation(said.mask, said.objects, np.array([[0.4, 0.9, 0.9]], np.float32))
    assert Belief(pixels=0.5).applied(unsure).mask.tolist() == [[255, 1, 255]]


@given(st.lists(st.integers(0, 2), min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_bound_keeps_no_more(labels, low, high):
    said = annotation([labels], ("sure", "sure"), lead=0.5)
    kept = [Belief(least={"lead": x}).applied(said).mask for x in sorted((low, high))]
    assert ((kept[1] == 255) >= (kept[0] == 255)).all()
    for mask in kept:
        counted = mask != 255
        assert (mask[counted] == said.mask[counted]).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"least": {"luck": 1.0}}, "a bound is on 'luck'; allowed: confidence, presence"),
        ({"least": {"lead": float("nan")}}, "the bound on lead is nan; allowed: a finite number"),
        ({"pixels": 2.0}, "the bound on pixels is 2.0; allowed: 0 to 1"),
    ],
)
def test_bad_bounds_are_named(options, said):
    with pytest.raises(ValueError, match=said):
        Belief(**options)

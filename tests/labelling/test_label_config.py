"""Labelling interfaces of Label Studio, read."""

import pytest

from labelling_runs import POLYGONS
from pixalign.core.values import Phrase
from pixalign.labelling.formats.label_studio import labelling_interface
from pixalign.labelling.label_config import LabelConfig, read_label_config


def test_our_own_interface():
    classes = ("dog", 'hot "dog" & <co>')
    phrases = tuple(map(Phrase, classes))
    found = read_label_config(labelling_interface(classes))
    assert found == LabelConfig("brushlabels", "label", "image", "image", phrases)


def test_polygons_before_rectangles_and_phrases():
    phrases = (Phrase("dog", "a golden dog"), Phrase("cat"))
    found = read_label_config(POLYGONS)
    assert found == LabelConfig("polygonlabels", "poly", "img", "photo", phrases)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no XML"),
        ("<View>", "no XML"),
        ("<View/>", "allowed: BrushLabels"),
        (POLYGONS.replace('toName="img"', 'toName="other"'), "allowed: BrushLabels"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><View>&b;</View>', "DOCTYPE"),
        ("<View>" + " " * 1_000_001 + "</View>", "too long"),
    ],
)
def test_others_are_refused(text, said):
    with pytest.raises(ValueError, match=said):
        read_label_config(text)

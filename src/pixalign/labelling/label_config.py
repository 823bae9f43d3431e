"""What a Label Studio project asks for: its labelling interface, read."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree

from pixalign.core.values import Phrase
from pixalign.labelling.formats.label_studio import SHAPES

_MOST_CHARACTERS = 1_000_000
_BOUND_TO = "toName"


@dataclass(frozen=True)
class LabelConfig:
    """A control of the interface that draws objects in a picture.

    ``kind`` is a key of `SHAPES`; ``data_key`` is the picture's in a task's data.
    """

    kind: str
    from_name: str
    to_name: str
    data_key: str
    phrases: tuple[Phrase, ...]


def read_label_config(text: str) -> LabelConfig:
    """The first control that can be answered: brushes before polygons before rectangles.

    A label's ``predicted_values`` is the phrase to look for, else its name.
    """
    # Declarations are what an XML bomb is made of, and no interface has any.
    if len(text) > _MOST_CHARACTERS or "<!" in text.replace("<!--", ""):
        raise ValueError("the labelling interface is too long or has a DOCTYPE")
    try:
        view = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"the labelling interface is no XML: {error}") from error
    pictures = {tag.get("name", ""): tag.get("value", "") for tag in view.iter("Image")}
    for kind in SHAPES:
        for control in view.iter():
            if control.tag.lower() != kind or control.get(_BOUND_TO) not in pictures:
                continue
            labels = {label.get("value", ""): label for label in control.iter("Label")}
            phrases = tuple(
                Phrase(name, label.get("predicted_values") or name)
                for name, label in labels.items()
                if name.strip()
            )
            key = pictures[control.get(_BOUND_TO, "")].lstrip("$")
            if phrases and key:
                names = control.get("name", ""), control.get(_BOUND_TO, "")
                return LabelConfig(kind, *names, key, phrases)
    raise ValueError(
        "the labelling interface has no labels to draw in an Image; allowed: BrushLabels, "
        "PolygonLabels or RectangleLabels with a Label of each class"
    )

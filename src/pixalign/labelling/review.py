"""What to look at first: a table of all pictures, a page of the most doubtful, and their files."""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pixalign.core.ahead import read_ahead
from pixalign.core.files import write_text
from pixalign.labelling.finished import FinishedRun
from pixalign.labelling.formats.folder import FormatFolder
from pixalign.labelling.records import LabelledPicture
from pixalign.labelling.uncertainty import doubts, least_certain, uncertainty
from pixalign.pictures.drawing import palette, tinted
from pixalign.pictures.pages import data_uri, environment
from pixalign.pictures.reading import read_image

SHOWN = 100  # pictures on the page
_SIDE = 320  # pixels of a thumbnail
_COLUMNS = (
    "image", "uncertainty", "entropy", "least_certain", "probability", "objects", "classes",
    "in_doubt",
)  # fmt: skip


@dataclass(frozen=True)
class Reviewed:
    """A row of the table; ``place`` is the picture's in the run.

    ``least`` is the class drawn that is least certain, and ``probability`` its own over its pixels.
    """

    place: int
    key: str
    uncertainty: float
    entropy: float
    least: str
    probability: float | None
    objects: int
    classes: tuple[str, ...]
    doubts: tuple[str, ...]

    @classmethod
    def of(cls, place: int, picture: LabelledPicture, names: Sequence[str]) -> Reviewed:
        """That of a picture."""
        record, least = picture.record, least_certain(picture)
        drawn = sorted({segment.label for segment in picture.segments})
        return cls(
            place,
            picture.key,
            uncertainty(picture),
            record["entropy"],
            "" if least is None else names[least[0] - 1],
            None if least is None else least[1],
            len(picture.segments),
            tuple(names[label - 1] for label in drawn),
            tuple(doubts(record)),
        )

    def cells(self) -> list[Any]:
        """What stands in the columns."""
        numbers = [f"{number:.4f}" for number in (self.uncertainty, self.entropy)]
        probability = "" if self.probability is None else f"{self.probability:.4f}"
        said = [self.objects, "; ".join(self.classes), "; ".join(self.doubts)]
        return [self.key, *numbers, self.least, probability, *said]


class Noted:
    """A run's pictures; whoever goes through them fills the table's rows on the way."""

    def __init__(self, run: FinishedRun) -> None:
        self.run, self.classes, self.about = run, run.classes, run.about
        self.rows: list[Reviewed] | None = None

    def __len__(self) -> int:
        return len(self.run)

    def __iter__(self) -> Iterator[LabelledPicture]:
        rows = []
        for place, picture in enumerate(self.run):
            rows.append(Reviewed.of(place, picture, self.classes))
            yield picture
        self.rows = rows

    def by_doubt(self) -> list[Reviewed]:
        """A row a picture, the most doubtful first."""
        if self.rows is None:
            deque(self, maxlen=0)
        assert self.rows is not None
        return sorted(self.rows, key=lambda row: (-row.uncertainty, row.key))


def write_review(run: FinishedRun, rows: Sequence[Reviewed], out: Path) -> None:
    """review.csv with all rows, and review.html with the first of them."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(row.cells() for row in rows)
    write_text(out / "review.csv", table.getvalue())
    colours = palette(len(run.classes))[1:].tolist()

    def card(row: Reviewed) -> dict[str, Any]:
        return _card(row, run[row.place], run.classes, colours)

    with read_ahead(card, rows[:SHOWN]) as made:
        cards = list(made)
    source = resources.files("pixalign.labelling").joinpath("review.html.j2").read_text("utf-8")
    page = environment(html=True).from_string(source)
    write_text(out / "review.html", page.render(cards=cards, count=len(rows), about=run.about))


def write_queue(run: FinishedRun, rows: Sequence[Reviewed], count: int, out: Path) -> None:
    """The pictures of the first rows, in the folder "queue"; those of an earlier one go."""
    files = FormatFolder(out / "queue")
    for row in rows[:count]:
        files.add_picture(row.key, run.items[row.place].picture.path)
    files.finish()


def _card(
    row: Reviewed, picture: LabelledPicture, names: Sequence[str], colours: Sequence[Any]
) -> dict[str, Any]:
    """What the page shows of a picture; one that is gone meanwhile is shown by its mask alone."""
    try:
        image = read_image(picture.path)
    except (OSError, ValueError):
        image = Image.new("RGB", picture.size[::-1])
    image.thumbnail((_SIDE, _SIDE))
    small = Image.fromarray(picture.mask).resize(image.size, Image.Resampling.NEAREST)
    scores: dict[int, list[float]] = {}
    for segment in picture.segments:
        scores.setdefault(segment.label, []).append(segment.score)
    chips = [
        {
            "name": names[label - 1],
            "colour": "#{:02x}{:02x}{:02x}".format(*colours[label - 1]),
            "score": float(np.mean(found)),
            "objects": len(found),
        }
        for label, found in sorted(scores.items())
    ]
    pictures = [image, tinted(image, np.asarray(small))]
    shown = [data_uri(picture, "webp") for picture in pictures]
    return {"row": row, "size": image.size, "pictures": shown, "chips": chips}

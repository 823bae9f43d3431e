"""Anyone's own pictures: images/, masks/ and classes.txt; 255 not counted."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pixalign.bench.datasets.files import (
    PICTURES,
    FileDataset,
    MaskDataset,
    Place,
    files_in,
    paired,
    read_labels,
)

SPLITS = ("all",)
PLACE = Place((".",), ("images", "masks", "classes.txt"))
MOST = 253  # classes


def open_folder(home: Path, split: str) -> FileDataset:
    """Pictures of any kind and indexed PNG masks of the same names; label i + 1 is line i."""
    classes = read_classes(home / "classes.txt")
    images, masks = home / "images", home / "masks"
    pictures, truths = files_in(images, PICTURES), files_in(masks, (".png",))
    keys = paired(pictures, truths, (images, masks))
    return MaskDataset(
        name="folder",
        split=split,
        classes=classes,
        keys=keys,
        masks_from="masks",
        images=pictures,
        masks=truths,
        read=partial(read_labels, classes=len(classes), ignore=True),
    )


def read_classes(path: Path) -> tuple[str, ...]:
    """One class a line; blank lines, doubles and more than 253 classes are refused."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    classes = [" ".join(line.split()) for line in lines]
    first: dict[str, int] = {}
    for number, name in enumerate(classes, 1):
        if not name:
            raise ValueError(f"line {number} of {str(path)!r} is blank; allowed: a class a line")
        if name.casefold() in first:
            raise ValueError(
                f"line {number} of {str(path)!r} is {name!r}, like line {first[name.casefold()]}; "
                "allowed: different classes"
            )
        first[name.casefold()] = number
    if not 1 <= len(classes) <= MOST:
        raise ValueError(f"{str(path)!r} has {len(classes)} classes; allowed: 1 to {MOST}")
    return tuple(classes)

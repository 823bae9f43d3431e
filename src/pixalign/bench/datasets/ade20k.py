"""ADE20K: ade/ADEChallengeData2016 with 150 classes, 0 = other = background."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pixalign.bench.datasets.files import (
    FileDataset,
    MaskDataset,
    Place,
    files_in,
    paired,
    read_labels,
)
from pixalign.bench.datasets.sample import class_list

SPLITS = ("val", "train")
FOLDERS = {"val": "validation", "train": "training"}
PLACE = Place(("ade/ADEChallengeData2016", "ADEChallengeData2016"), ("images", "annotations"))


def open_ade20k(home: Path, split: str) -> FileDataset:
    """All pictures of images/validation or images/training."""
    images, masks = (home / part / FOLDERS[split] for part in PLACE.parts)
    for folder in (images, masks):
        if not folder.is_dir():
            raise FileNotFoundError(f"folder {str(folder)!r} is missing")
    pictures, truths = files_in(images, (".jpg",)), files_in(masks, (".png",))
    keys = paired(pictures, truths, (images, masks))
    classes = class_list("ade20k")
    return MaskDataset(
        name="ade20k",
        split=split,
        classes=classes,
        keys=keys,
        masks_from=f"annotations/{FOLDERS[split]}",
        images=pictures,
        masks=truths,
        read=partial(read_labels, classes=len(classes)),
    )

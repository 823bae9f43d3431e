"""PASCAL Context: VOCdevkit/VOC2010 with the 59 most frequent classes, 0 = everything else."""

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
    read_list,
)
from pixalign.bench.datasets.sample import class_list

SPLITS = ("val", "train")
PLACE = Place(("VOCdevkit/VOC2010",), ("JPEGImages", "SegmentationClassContext"))


def open_context(home: Path, split: str) -> FileDataset:
    """The images of ImageSets/SegmentationContext/SPLIT.txt.

    Where that list is absent, the mask files that VOC's own ImageSets/Main/SPLIT.txt names: masks
    come for train and val together.
    """
    images, masks = home / "JPEGImages", home / "SegmentationClassContext"
    pictures, truths = files_in(images, (".jpg",)), files_in(masks, (".png",))
    own = home / "ImageSets" / "SegmentationContext" / f"{split}.txt"
    main = home / "ImageSets" / "Main" / f"{split}.txt"
    if own.is_file():
        keys = read_list(own)
    elif main.is_file():
        keys = tuple(key for key in read_list(main) if key in truths)
    else:
        raise FileNotFoundError(
            f"neither list {str(own)!r} nor {str(main)!r} is there; one must say which masks are "
            f"of {split}"
        )
    if not keys:
        raise FileNotFoundError(f"there is no mask of {split} in {str(masks)!r}")
    classes = class_list("context")
    return MaskDataset(
        name="context",
        split=split,
        classes=classes,
        keys=paired(pictures, truths, (images, masks), keys),
        masks_from=masks.name,
        images=pictures,
        masks=truths,
        read=partial(read_labels, classes=len(classes)),
    )

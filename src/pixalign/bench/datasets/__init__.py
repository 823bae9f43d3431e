"""Segmentation datasets with one face, one file per layout, and how often captions name a class."""

from pixalign.bench.datasets.base import (
    DATASETS,
    Check,
    Dataset,
    Sample,
    check,
    find_datasets,
    open_dataset,
)

__all__ = [
    "DATASETS",
    "Check",
    "Dataset",
    "Sample",
    "check",
    "find_datasets",
    "open_dataset",
]

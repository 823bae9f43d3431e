"""Reading and writing attention of a running network, which is left exactly as it was."""

from pixalign.attention.reading import AttentionReader, add_by_owner
from pixalign.attention.reprojection import cross_keys
from pixalign.attention.sites import Site, text_layers
from pixalign.attention.tap import run_through
from pixalign.attention.writing import AttentionWriter

__all__ = [
    "AttentionReader",
    "AttentionWriter",
    "Site",
    "add_by_owner",
    "cross_keys",
    "run_through",
    "text_layers",
]

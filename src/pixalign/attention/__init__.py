"""Reading and writing attention of a running network, which is left exactly as it was."""

from pixalign.attention.hooks import network_input, run_until
from pixalign.attention.reading import AttentionReader, add_by_owner, cross_keys
from pixalign.attention.sites import Site, text_layers
from pixalign.attention.writing import AttentionWriter

__all__ = [
    "AttentionReader",
    "AttentionWriter",
    "Site",
    "add_by_owner",
    "cross_keys",
    "network_input",
    "run_until",
    "text_layers",
]

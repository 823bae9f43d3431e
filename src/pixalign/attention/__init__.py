"""Reading attention from a running network, which is left exactly as it was."""

from pixalign.attention.reading import (
    AttentionReader,
    add_by_owner,
    cross_keys,
    network_input,
)
from pixalign.attention.sites import Site, text_layers

__all__ = [
    "AttentionReader",
    "Site",
    "add_by_owner",
    "cross_keys",
    "network_input",
    "text_layers",
]

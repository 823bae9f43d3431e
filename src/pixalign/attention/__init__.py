"""Reading attention from a running network, which is left exactly as it was."""

from pixalign.attention.reading import (
    AttentionReader,
    add_by_owner,
    cross_keys,
    network_input,
)
from pixalign.attention.sites import Site, text_layers
from pixalign.attention.stopping import run_until

__all__ = [
    "AttentionReader",
    "Site",
    "add_by_owner",
    "cross_keys",
    "network_input",
    "run_until",
    "text_layers",
]

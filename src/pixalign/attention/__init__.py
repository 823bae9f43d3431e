"""Reading attention from a running network, which is left exactly as it was."""

from pixalign.attention.reading import AttentionReader, network_input
from pixalign.attention.sites import Site

__all__ = ["AttentionReader", "Site", "network_input"]

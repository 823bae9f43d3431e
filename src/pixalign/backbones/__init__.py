"""The only rooms that know diffusers pipelines, one file per family."""

from pixalign.backbones.base import Backbone
from pixalign.backbones.load import FAMILIES, load, wrap
from pixalign.core.values import TextCondition
from pixalign.text.streams import TextStream

__all__ = ["FAMILIES", "Backbone", "TextCondition", "TextStream", "load", "wrap"]

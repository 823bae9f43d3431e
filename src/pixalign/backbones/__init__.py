"""The only rooms that know diffusers pipelines, one file per family."""

from pixalign.backbones.base import Backbone, TextCondition, TextStream
from pixalign.backbones.load import FAMILIES, load, wrap

__all__ = ["FAMILIES", "Backbone", "TextCondition", "TextStream", "load", "wrap"]

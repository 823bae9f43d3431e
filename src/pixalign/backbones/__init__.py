"""The only rooms that know diffusers pipelines, one file per family."""

from pixalign.backbones.base import Backbone, TextCondition
from pixalign.backbones.load import FAMILIES, load, wrap

__all__ = ["FAMILIES", "Backbone", "TextCondition", "load", "wrap"]

"""The only rooms that know diffusers pipelines, one file per family."""

from pixalign.backbones.base import Backbone
from pixalign.backbones.load import FAMILIES, load_backbone, wrap

__all__ = ["FAMILIES", "Backbone", "load_backbone", "wrap"]

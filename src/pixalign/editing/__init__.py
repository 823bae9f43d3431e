"""Editing: Prompt-to-Prompt on drawn and on given pictures, with calibrated heatmaps."""

from pixalign.editing.plan import EDITING_METHODS
from pixalign.editing.result import Edit
from pixalign.editing.run import edit

__all__ = ["EDITING_METHODS", "Edit", "edit"]

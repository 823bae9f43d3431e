"""Editing: Prompt-to-Prompt on drawn and on given pictures, with calibrated heatmaps."""

from pixalign.editing.preparing import Task
from pixalign.editing.result import Edit
from pixalign.editing.run import edit, edit_many

__all__ = ["Edit", "Task", "edit", "edit_many"]

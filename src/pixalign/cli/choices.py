"""What options may be: types whose values ``--help`` lists and the command line checks."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # each is made of a registry below, and a text to those who read it
    BlendName = str
    CalibrationName = str
    DatasetName = str
    DtypeName = str
    EditingMethodName = str
    EditingRow = str
    GenerationMethodName = str
    InversionName = str
    ListName = str
    MemoryName = str
    MethodName = str
    PresetName = str
    PromptSet = str
    SplitName = str
else:
    from pixalign.backbones.load import DTYPES
    from pixalign.bench.datasets import DATASETS
    from pixalign.bench.datasets.sample import class_lists
    from pixalign.bench.editing_study.study import ROWS
    from pixalign.config import CALIBRATIONS, PRESETS
    from pixalign.core.batching import MEMORY
    from pixalign.editing.inversion import INVERSIONS
    from pixalign.editing.plan import BLENDS, EDITING_METHODS
    from pixalign.generation import GENERATION_METHODS
    from pixalign.generation.prompt_sets import PROMPT_SETS
    from pixalign.methods import METHODS
    from pixalign.scenes.sample import SPLITS

    class Choice(StrEnum):
        """A text out of several, which errors and records show as a text."""

        __repr__ = str.__repr__

    def choices(name: str, values: Iterable[str]) -> type[Choice]:
        """An enum of these texts."""
        return Choice(name, {value: value for value in values})

    BlendName = choices("BlendName", [str(blend or "none") for blend in BLENDS])
    CalibrationName = choices("CalibrationName", CALIBRATIONS)
    DatasetName = choices("DatasetName", DATASETS)
    DtypeName = choices("DtypeName", DTYPES)
    EditingMethodName = choices("EditingMethodName", EDITING_METHODS)
    EditingRow = choices("EditingRow", ROWS)
    GenerationMethodName = choices("GenerationMethodName", GENERATION_METHODS)
    InversionName = choices("InversionName", INVERSIONS)
    ListName = choices("ListName", (*class_lists(), "scenes"))
    MemoryName = choices("MemoryName", MEMORY)
    MethodName = choices("MethodName", [n for n, kind in METHODS.items() if not kind.supervised])
    PresetName = choices("PresetName", PRESETS)
    PromptSet = choices("PromptSet", PROMPT_SETS)
    SplitName = choices("SplitName", SPLITS)

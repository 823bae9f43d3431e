"""A function for ``cvat-cli task auto-annotate TASK --function-module pixalign.cli.cvat``."""

from __future__ import annotations

from pixalign.cli.common import load_model
from pixalign.config import AlignConfig
from pixalign.labelling.cvat import CvatFunction
from pixalign.methods import method_of
from pixalign.text.prompts import typed_classes


def create(
    classes: str,
    model: str = "",
    method: str = "",
    preset: str = "default",
    absent: str = "drop",
    instances: bool = True,
    min_area: int = 64,
    device: str = "auto",
) -> CvatFunction:
    """What cvat-cli calls with its parameters, such as ``-p "classes=str:dog,traffic light"``.

    ``classes`` are the names of the task's labels, with commas; several lines may say
    ``name=phrase``. The others are those of ``pixalign segment``; objects below ``min_area`` pixels
    are left out.
    """
    phrases = typed_classes(classes.splitlines())
    config = AlignConfig.preset(preset, absent=absent)
    config = method_of(config, method or None).configured(config)
    loaded = load_model(model or None, device, progress=False)
    return CvatFunction(loaded, phrases, config, instances=instances, min_area=min_area)

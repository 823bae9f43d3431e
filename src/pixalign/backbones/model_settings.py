"""The settings that a model's folder carries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pixalign.config import MODEL_SETTINGS, AlignConfig
from pixalign.core.checks import check_choice

SETTINGS_FILE = "pixalign.json"


def model_settings(folder: Path) -> dict[str, Any]:
    """What the folder's pixalign.json says of layers, timesteps and thresholds; {} without one."""
    path = folder / SETTINGS_FILE
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        for name in settings:
            check_choice("a name", name, MODEL_SETTINGS)
        plain = {**settings, "threshold": settings.get("uncalibrated_threshold")}
        for values in (settings, plain):
            AlignConfig(**{k: v for k, v in values.items() if k != "uncalibrated_threshold"})
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{str(path)!r} is no model's settings: {error}") from error
    return dict(settings)

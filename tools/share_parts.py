"""Replace parts of a saved pipeline that equal those of another by links to them.

    python tools/share_parts.py lab/models/sd2-like src/pixalign/backbones/weights/sd1-like

Links are relative, so that both folders can be moved together.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file


def share_parts(folder: Path, base: Path) -> list[str]:
    """Link the equal parts; their names."""
    shared = []
    for part in sorted(path for path in folder.iterdir() if path.is_dir()):
        other = base / part.name.removesuffix("_2")
        if not part.is_symlink() and other.is_dir() and _same_part(part, other):
            shutil.rmtree(part)
            part.symlink_to(os.path.relpath(other, folder), target_is_directory=True)
            shared.append(part.name)
    return shared


def _same_part(part: Path, other: Path) -> bool:
    """Whether two folders hold the same weights, or the same files where there are none."""
    weights = [sorted(folder.glob("*.safetensors")) for folder in (part, other)]
    if not all(weights):
        texts = [{p.name: _settled(p) for p in folder.iterdir()} for folder in (part, other)]
        return not any(weights) and texts[0] == texts[1]
    (mine,), (theirs,) = weights
    first, second = load_file(mine), load_file(theirs)
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def _settled(path: Path) -> Any:
    """A JSON file's contents, less what a tokenizer's last call leaves behind."""
    values = json.loads(path.read_text(encoding="utf-8"))
    return {name: value for name, value in values.items() if name not in ("truncation", "padding")}


def main() -> None:
    """Share the parts of one folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("base", type=Path)
    args = parser.parse_args()
    print("shared:", ", ".join(share_parts(args.folder, args.base)) or "nothing")


if __name__ == "__main__":
    main()

"""``pixalign scenes``: synthetic scenes with exact truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pixalign.cli.choices import SplitName


def scenes(
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    split: Annotated[SplitName, typer.Option(help="Whose frequencies and numbers.")] = "test",
    count: Annotated[int, typer.Option(help="How many scenes.", min=1)] = 8,
    start: Annotated[int, typer.Option(help="Number of the first scene.", min=0)] = 0,
    size: Annotated[int, typer.Option(help="Pixels on a side.", min=32)] = 256,
) -> None:
    """Write scenes with exact masks, captions and boxes, and a sheet to look at."""
    from pixalign.scenes.write import write_scenes

    written = write_scenes(split, count, out, start=start, size=size)
    print(f"{len(written)} files written to {out}")

"""What a study leaves of its scenes, to be summarised, or gone on with."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from lab.data import write_state
from pixalign.bench.metrics import Tally

AUTOMATIC = ("uncalibrated", "default")  # variants whose automatic threshold is judged


@dataclass
class Outcome:
    """What a run leaves: a tally of each variant, and what is known of each (image, class) pair.

    ``pairs`` holds, for each image, its labels, areas, visible shares, ELBOs, norms and
    activations; ``automatic[variant][image]`` is the index of Otsu's threshold.
    """

    tallies: dict[str, list[Tally]] = field(default_factory=dict)
    pairs: list[dict[str, Any]] = field(default_factory=list)
    automatic: dict[str, list[int]] = field(default_factory=dict)

    def tally(self, variant: str) -> Tally:
        """All images of a variant."""
        return Tally.concatenate(self.tallies[variant])

    def save(self, path: Path, key: str) -> None:
        """Write what is there; a kill leaves the old file whole."""
        columns = {
            name: {column.name: getattr(self.tally(name), column.name) for column in fields(Tally)}
            for name in self.tallies
        }
        state = {"key": key, "tallies": columns, "pairs": self.pairs}
        write_state({**state, "automatic": self.automatic}, path)

    @classmethod
    def load(cls, path: Path, key: str) -> Outcome:
        """What an earlier run under the same key has finished; nothing without a file."""
        if not path.is_file():
            return cls()
        state = torch.load(path, weights_only=True)
        if state["key"] != key:
            raise ValueError(
                f"{str(path)!r} holds scenes of a study with other settings; move it away"
            )
        tallies = {name: [Tally(**columns)] for name, columns in state["tallies"].items()}
        return cls(tallies, state["pairs"], state["automatic"])

"""How many forward passes go together, and what happens when memory runs out."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from pixalign.core.checks import check_choice
from pixalign.core.progress import Progress

# Latent positions in one automatic batch: 64 images of SD1's 64x64 on a GPU, 8 on a CPU.
_POSITIONS = {"cuda": 2**18, "mps": 2**16, "cpu": 2**14}
MEMORY = {"normal": 1, "low": 4}  # by how much automatic batches are smaller


class BatchSize:
    """The size of a batch: fixed, or automatic; halved for good when memory runs out."""

    def __init__(self, requested: int | str = "auto", memory: str = "normal") -> None:
        check_choice("memory", memory, tuple(MEMORY))
        if requested != "auto" and (not isinstance(requested, int) or requested < 1):
            raise ValueError(f"batch_size is {requested!r}; allowed: 'auto' or a number from 1")
        self.requested = requested
        self.memory = memory
        self.limits: dict[str, int] = {}  # learnt from running out of memory, by kind of work
        self.notes: list[str] = []

    def of(self, latents: Tensor, kind: str) -> int:
        """Images like these latents [1, C, h, w] that go through the network together."""
        most = _POSITIONS.get(latents.device.type, 2**16) // MEMORY[self.memory]
        size = max(1, most // latents[0, 0].numel())
        size = self.requested if isinstance(self.requested, int) else size
        return min(size, self.limits.get(kind, size))

    def each(
        self,
        latents: Tensor,
        total: int,
        kind: str,
        work: Callable[[int, int], None],
        *,
        rows: int = 1,
        restart: Callable[[], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """``work(first, last)`` on one part of 0 .. total - 1 after the other.

        Each of these is ``rows`` images of a batch. Parts are alike: no small one is left over.
        When memory runs out, a part is tried again with half the size, or all are after
        ``restart()``, for sums that a failed part may have touched.
        """
        progress = progress or Progress(0, kind, show=False)
        done = 0
        while done < total:
            size = max(1, self.of(latents, kind) // rows)
            left = total - done
            size = -(-left // -(-left // size))
            last = done + size
            try:
                work(done, last)
            except RuntimeError as error:
                if size == 1 or not out_of_memory(error):
                    raise
            else:
                progress.advance(last - done)
                done = last
                continue
            # Outside the except block, so that the failed pass's tensors are freed first.
            if not self.limits:
                note = f"out of memory with {size * rows} passes at once; going on with fewer"
                self.notes.append(note)
                warnings.warn(note, RuntimeWarning, stacklevel=3)
            self.limits[kind] = size * rows // 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if restart is not None:
                progress.advance(-done)
                done = 0
                restart()


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is an allocator's refusal, on any device."""
    text = str(error).lower()
    said = "out of memory" in text or "can't allocate memory" in text
    return isinstance(error, torch.OutOfMemoryError) or (isinstance(error, RuntimeError) and said)

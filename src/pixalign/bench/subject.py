"""A sample of a dataset with the seed of its noise, and what was measured of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pixalign.alignment.elbo import TextErrors
from pixalign.alignment.plan import plan_timesteps
from pixalign.backbones import Backbone
from pixalign.bench.datasets import Sample
from pixalign.bench.metrics import IGNORE, Tally
from pixalign.config import AlignConfig
from pixalign.core.values import Evidence, Phrase
from pixalign.methods.base import Timesteps


def image_seed(seed: int, key: str) -> int:
    """Where an image's noise begins: the same alone, after a stop, and in any process."""
    digest = hashlib.sha256(f"{seed}/{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # below 2**63


class Subject:
    """A sample with its number in the dataset, and what was measured of it.

    ``errors`` of texts and ``activations`` [N] of maps go by the names of what rows read; ``elbos``
    [N], ``evidence`` and ``tallies`` by rows.
    """

    def __init__(self, sample: Sample, index: int, classes: Sequence[str], seed: int) -> None:
        self.sample, self.index = sample, index
        self.seed = image_seed(seed, sample.key)
        self.labels = sample.present
        self.phrases = [
            Phrase(classes[label], sample.phrases.get(label, classes[label]))
            for label in self.labels
        ]
        self.activations: dict[str, Tensor] = {}
        self.errors: dict[str, TextErrors] = {}
        self.elbos: dict[str, Tensor] = {}
        self.evidence: dict[str, Evidence] = {}
        self.tallies: dict[str, tuple[Tally, ...]] = {}

    @contextmanager
    def naming(self) -> Iterator[None]:
        """What turns out to be no number is told with the image's key."""
        try:
            yield
        except FloatingPointError as error:
            raise FloatingPointError(f"image {self.sample.key!r}: {error}") from error

    @property
    def size(self) -> tuple[int, int]:
        """The picture's (height, width)."""
        return self.sample.image.height, self.sample.image.width

    @cached_property
    def truth(self) -> Tensor:
        """int64 [H, W] by number among the sample's own classes: 0, 1 ... N, or IGNORE."""
        numbers = np.zeros(IGNORE + 1, dtype=np.int64)
        numbers[IGNORE] = IGNORE
        for number, label in enumerate(self.labels, 1):
            numbers[label + 1] = number
        return torch.from_numpy(numbers[self.sample.truth])

    @property
    def target_masks(self) -> np.ndarray:
        """uint8 [N, H, W]: 1 on the class, 0 off it, IGNORE where nothing is counted."""
        numbers = torch.arange(1, len(self.labels) + 1)[:, None, None]
        masks = (self.truth == numbers).to(torch.uint8)
        return masks.masked_fill_(self.truth == IGNORE, IGNORE).numpy()

    def timesteps(self, backbone: Backbone, latents: Tensor, config: AlignConfig) -> Timesteps:
        """Timesteps and noise of collecting and of the ELBO, of which the seed decides."""
        generator = torch.Generator().manual_seed(self.seed)
        return plan_timesteps(backbone.schedule, latents[:1], config, generator)

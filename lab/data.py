"""What the lab trains on: scenes rendered on the device, or encoded once into a bank.

Everything is a function of (split, index), so a run that is stopped and resumed sees the same.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from lab.networks import latent_side
from lab.vocabulary import CaptionEncoder
from pixalign.core.files import writing_whole
from pixalign.scenes.render import Rendered, render
from pixalign.scenes.sample import CHUNK, SceneBatch, sample_scenes

_ENDLESS = 2**40  # scenes
Sampled = TypeVar("Sampled")


@dataclass(frozen=True, eq=False)
class SceneTensors(Rendered):
    """Painted scenes with what is in them: labels, tints and captions.

    ``labels`` int64 [B, K] are the classes, -1 where there is none; ``tints`` int64 [B, K] are
    places in COLOURS.
    """

    labels: Tensor
    tints: Tensor
    captions: tuple[str, ...]


def rendered(batch: SceneBatch, size: int, device: str) -> SceneTensors:
    """Sampled scenes, painted at size x size."""
    with torch.autocast(torch.device(device).type, enabled=False):  # colours keep their digits
        painted = render(batch, size=size, device=device)
    labels, tints = (torch.as_tensor(x).long().to(device) for x in (batch.labels, batch.tints))
    return SceneTensors(**vars(painted), labels=labels, tints=tints, captions=batch.captions)


def scenes(
    split: str, start: int, count: int, size: int, device: str, objects: int | None = None
) -> SceneTensors:
    """Scenes start .. start + count - 1 of a split."""
    return rendered(sample_scenes(split, start, count, objects=objects), size, device)


def sampled_ahead(
    draw: Callable[[int, int], Sampled], start: int, count: int, batch: int, workers: int
) -> Generator[tuple[int, int, Sampled]]:
    """(first, last, what ``draw`` makes of a number and a count) in order, drawn ahead.

    ``workers`` processes draw (0: one thread does). The last batch may be shorter.
    """
    bounds = ((first, min(first + batch, count)) for first in range(0, count, batch))
    pool: Executor = ThreadPoolExecutor(1)
    if workers:  # not forked: the parent has threads and a CUDA context
        pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))

    def submitted(most: int) -> Iterator[tuple[int, int, Future[Sampled]]]:
        for first, last in islice(bounds, most):
            yield first, last, pool.submit(draw, start + first, last - first)

    try:
        waiting = deque(submitted(max(2, 2 * workers)))
        while waiting:
            first, last, future = waiting.popleft()
            sampled = future.result()
            waiting.extend(submitted(1))
            yield first, last, sampled
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class Stream:
    """Batch i of a split is its scenes i B .. (i + 1) B - 1; the next ones are sampled meanwhile.

    Any order of asking is right, the natural one is fast.
    """

    def __init__(self, split: str, batch: int, size: int, device: str, workers: int = 0) -> None:
        self.batch, self.size, self.device, self.workers = batch, size, device, workers
        self.draw = partial(sample_scenes, split)
        self.batches = -(-CHUNK // batch)  # of a block: scenes are drawn in whole chunks anyway
        self._number = -1
        self._block: SceneBatch
        self._ahead: Generator[tuple[int, int, SceneBatch]] | None = None

    def __getitem__(self, index: int) -> SceneTensors:
        number, place = divmod(index, self.batches)
        if number != self._number:
            if self._ahead is None or number != self._number + 1:
                self.close()
                count = self.batch * self.batches
                self._ahead = sampled_ahead(
                    self.draw, number * count, _ENDLESS, count, self.workers
                )
            self._number, self._block = number, next(self._ahead)[2]
        part = self._block[place * self.batch : (place + 1) * self.batch]
        return rendered(part, self.size, self.device)

    def close(self) -> None:
        """Stop sampling ahead."""
        if self._ahead is not None:
            self._ahead.close()


@dataclass(frozen=True)
class Bank:
    """Encoded scenes on the device: scaled latents float16 [N, C, h, w], ids int16 [N, L]."""

    latents: Tensor
    ids: Tensor

    def __len__(self) -> int:
        return len(self.latents)


def in_parts(function: Callable[[Tensor], Tensor], values: Tensor, size: int = 64) -> Tensor:
    """The function of [B, ...] values, so many at once."""
    parts = [function(values[i : i + size]) for i in range(0, len(values), size)]
    return torch.cat(parts)


@torch.no_grad()
def encode(vae: Any, images: Tensor) -> Tensor:
    """Scaled posterior means float32 [B, C, h, w] of images [B, 3, s, s] in [0, 1]."""
    posterior = vae.encode(images * 2 - 1).latent_dist
    latents: Tensor = posterior.mode().float() * vae.config.scaling_factor
    return latents


@torch.no_grad()
def decode(vae: Any, latents: Tensor) -> Tensor:
    """Images [B, 3, s, s] in [0, 1] of scaled latents."""
    images: Tensor = vae.decode(latents / vae.config.scaling_factor).sample.float()
    return (images / 2 + 0.5).clamp(0, 1)


def build_bank(
    vae: Any,
    encoder: CaptionEncoder,
    *,
    start: int,
    count: int,
    size: int,
    device: str,
    batch: int = 1024,
    workers: int = 0,
) -> Bank:
    """Encode train scenes start .. start + count - 1, as they are drawn at size x size."""
    begun = time.monotonic()
    side = latent_side(vae, size)
    shape = (count, vae.config.latent_channels, side, side)
    latents = torch.empty(shape, dtype=torch.float16, device=device)
    ids = torch.empty(count, encoder.length, dtype=torch.int16, device=device)
    draw = partial(sample_scenes, "train")
    for first, last, sampled in sampled_ahead(draw, start, count, batch, workers):
        drawn = rendered(sampled, size, device)
        latents[first:last] = encode(vae, drawn.images).half()
        ids[first:last] = encoder(drawn.captions).to(device, torch.int16)
        if last == count or (first // batch) % 20 == 0:
            seconds = time.monotonic() - begun
            print(f"bank: {last}/{count} scenes in {seconds:.0f} s", file=sys.stderr)
    return Bank(latents, ids)


def kept_bank(
    folder: Path | None, vae: Any, encoder: CaptionEncoder, *, device: str, **options: Any
) -> Bank:
    """`build_bank`, or what a folder keeps of an earlier call with the same VAE and options."""
    if folder is None:
        return build_bank(vae, encoder, device=device, **options)
    weights = b"".join(tensor.float().cpu().numpy().tobytes() for tensor in vae.parameters())
    named = {name: options[name] for name in ("start", "count", "size")}
    key = hashlib.sha256(weights + json.dumps([named, vae.config.scaling_factor]).encode())
    path = folder / f"bank-{key.hexdigest()[:16]}.pt"
    if path.is_file():
        return Bank(**torch.load(path, map_location=device, weights_only=True))
    bank = build_bank(vae, encoder, device=device, **options)
    folder.mkdir(parents=True, exist_ok=True)
    write_state({"latents": bank.latents, "ids": bank.ids}, path)
    return bank


def write_state(state: Mapping[str, Any], path: Path) -> None:
    """torch.save, of which a kill leaves the old file whole."""
    with writing_whole(path) as file:
        torch.save(dict(state), file)

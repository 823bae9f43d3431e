"""What is a network worth that learns from drawn pictures and the masks that we gave them?

python examples/training/synthetic_training.py --out runs/training --model lab:sd2 --pairs 128 512

A lab model draws prompts of twelve classes; one measurement a picture gives the masks of
"attention", "elbo" and "dense". A small U-Net learns from N pairs and is tested on scenes whose
masks are exact. Beside these rows stand references: the same pictures with masks by the lab's
dense classifier, and rendered scenes with their true masks or with those of "dense". Every row has
the same number of pictures, of steps and of draws.

--toy is a run of a minute on one core. On a GPU, --workers processes share it. OUT/NAME.json is
written anew after each training; OUT/NAME.webp shows the first pictures with the masks of each row.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

import pixalign as pa
from lab.classifier import load_classifier, look_at
from pixalign.backbones.load import hide_loading_bars, resolve_device
from pixalign.backbones.locations import located
from pixalign.bench.annotating import Belief, annotation_of
from pixalign.bench.generation_study import result_name
from pixalign.bench.metrics import IGNORE, bootstrap_weights, interval
from pixalign.core.files import make_folder, write_json
from pixalign.core.provenance import device_name, versions
from pixalign.generation.plan import GenerationRequest, GenerationSettings
from pixalign.generation.run import GENERATION_METHODS, draw_requests
from pixalign.methods import METHODS
from pixalign.pictures.drawing import tinted
from pixalign.pictures.grid import picture_grid
from pixalign.scenes.atlas import class_names, training_ranks
from pixalign.scenes.render import render
from pixalign.scenes.sample import PREFIX, sample_scenes

SIDE, CHUNK, BATCH = 128, 32, 16
EVERY = 9  # of the lab's 111 classes by training frequency, the first, the tenth and so on
CLASSES = tuple(class_names()[c] for c in np.argsort(training_ranks())[::EVERY][:12])
ASKED = ("attention", "elbo", "dense")
# What is believed of "dense": the default, and the best filter of docs/synthetic.md at 80 %, whose
# bounds were set on other pictures and prompts of lab:sd2. The rest of the pixels is unknown.
BELIEFS = {
    "dense, sure": Belief(),
    "dense, filtered": Belief(least={"confidence": 0.84, "standing": 0.004}),
}
DRAWN = (*ASKED, *BELIEFS, "classifier")  # of drawn pictures
SCENES = ("scenes, dense", "scenes, true")
CHANNELS = (16, 32, 64, 96)


# ---- pairs of pictures and masks ----


def prompts(count: int) -> list[tuple[str, ...]]:
    """Two or three of the CLASSES each, in turn, drawn by seed."""
    rng = np.random.default_rng(0)
    return [tuple(rng.permutation(CLASSES)[: 2 + n % 2].tolist()) for n in range(count)]


@cache
def loaded(model: str, device: str) -> tuple[pa.Model, nn.Module]:
    """The model and the lab's classifier, once a process."""
    hide_loading_bars()
    classifier = load_classifier(Path(located("lab:classifier")), str(resolve_device(device)))
    return pa.load(model, device=device, dtype="float32"), classifier


def drawn_pairs(model: str, device: str, first: int, count: int, steps: int) -> dict[str, Any]:
    """Pictures uint8 [N, S, S, 3] of some prompts, and masks uint8 [N, S, S] by row."""
    loaded_model, classifier = loaded(model, device)
    names = prompts(first + count)[first:]
    requests = [
        GenerationRequest(PREFIX + ", ".join(own), first + n) for n, own in enumerate(names)
    ]
    settings = GenerationSettings(steps, loaded_model.backbone.guidance)
    made = draw_requests(loaded_model, requests, settings, GENERATION_METHODS["plain"])
    images = [each.image for each in made]
    masks = method_masks(loaded_model, images, names)
    masks["classifier"] = classifier_masks(classifier, images)
    return {"images": np.stack([np.asarray(image) for image in images]), **masks}


def method_masks(
    model: pa.Model, images: Sequence[Image.Image], names: Sequence[Sequence[str]]
) -> dict[str, np.ndarray]:
    """By each method that is ASKED, and what of "dense" is believed; one measurement a picture."""
    methods = {name: METHODS[name](model) for name in ASKED}
    masks: dict[str, list[np.ndarray]] = {name: [] for name in (*ASKED, *BELIEFS)}
    for number, (image, own) in enumerate(zip(images, names, strict=True)):
        labels = np.array([0, *(1 + CLASSES.index(name) for name in own)], dtype=np.uint8)
        table = np.concatenate([labels, np.full(256 - len(labels), IGNORE, dtype=np.uint8)])
        measured = methods["dense"].measure(model.encode(image), list(own), seed=number)
        for name, method in methods.items():
            annotation = annotation_of(method.conclude(measured))
            masks[name].append(table[annotation.mask])
        for name, belief in BELIEFS.items():  # "dense" is the last that was asked
            masks[name].append(table[belief.applied(annotation).mask])
    return {name: np.stack(each) for name, each in masks.items()}


def classifier_masks(classifier: nn.Module, images: Sequence[Image.Image]) -> np.ndarray:
    """The most probable of the CLASSES and the background in each cell of 8 x 8 pixels, enlarged.

    Probabilities are enlarged smoothly before the most probable is taken.
    """
    known = [0, *(1 + class_names().index(name) for name in CLASSES)]
    likely = look_at(classifier, images)[0].softmax(1)[:, known]
    large = functional.interpolate(likely, images[0].size[::-1], mode="bilinear")
    masks: np.ndarray = large.argmax(1).byte().cpu().numpy()
    return masks


def scene_pairs(split: str, first: int, count: int) -> dict[str, Any]:
    """Rendered scenes whose objects are of the CLASSES, with exact masks."""
    sampled = sample_scenes(split, first, count)
    ours = np.array([class_names().index(name) for name in CLASSES])
    labels = np.where(sampled.labels < 0, -1, ours[sampled.labels % len(CLASSES)])
    painted = render(replace(sampled, labels=labels), SIDE)
    table = np.zeros(256, dtype=np.uint8)
    table[1 + ours] = 1 + np.arange(len(ours))
    return {"images": painted.pictures(), "scenes, true": table[painted.masks.numpy()]}


@cache
def tested_scenes(count: int) -> dict[str, Any]:
    """Test scenes, rendered once a process."""
    return scene_pairs("test", 0, count)


def annotated_scenes(model: str, device: str, first: int, count: int) -> dict[str, Any]:
    """Training scenes with their true masks and with those of "dense"."""
    pairs = scene_pairs("train", first, count)
    present = [np.unique(mask).tolist() for mask in pairs["scenes, true"]]
    names = [[CLASSES[label - 1] for label in own if label] for own in present]
    masks = method_masks(
        loaded(model, device)[0], [Image.fromarray(p) for p in pairs["images"]], names
    )
    return pairs | {"scenes, dense": masks["dense"]}


# ---- a network that learns from them ----


class Segmenter(nn.Module):
    """A U-Net of about a third of a million parameters, trained from nothing."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [3, *CHANNELS]
        self.down = nn.ModuleList(_block(a, b) for a, b in zip(sizes, CHANNELS, strict=False))
        self.up = nn.ModuleList(
            _block(CHANNELS[n] + CHANNELS[n - 1], CHANNELS[n - 1])
            for n in range(len(CHANNELS) - 1, 0, -1)
        )
        self.head = nn.Conv2d(CHANNELS[0], 1 + len(CLASSES), 1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, 1 + classes, H, W] of images [B, 3, H, W] in [-1, 1]."""
        levels = [self.down[0](images)]
        for block in self.down[1:]:
            levels.append(block(functional.max_pool2d(levels[-1], 2)))
        hidden = levels.pop()
        for block in self.up:
            hidden = functional.interpolate(hidden, scale_factor=2.0)
            hidden = block(torch.cat([hidden, levels.pop()], 1))
        logits: Tensor = self.head(hidden)
        return logits


def _block(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU()]
    return nn.Sequential(*layers)


def train_and_test(
    images: np.ndarray,
    masks: np.ndarray,
    seed: int,
    steps: int,
    device: str,
    test: int,
    side: int = SIDE,
) -> np.ndarray:
    """int64 [test scenes, 1 + classes, 3]: hits, claimed and true pixels of a trained network.

    Pictures are made smaller first, to ``side`` pixels.
    """
    torch.manual_seed(seed)
    where = resolve_device(device)
    network = Segmenter().to(where)
    optimiser = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=1e-2, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
    pictures, labels = _on(images, side, where), _labels(masks, side).to(where)
    generator = torch.Generator().manual_seed(seed)
    loss_of = gradients_of(network, side, where)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (BATCH,), generator=generator).to(where)
        flips = (torch.rand(BATCH, generator=generator) < 0.5).to(where)
        shades = 1 + 0.2 * torch.randn(BATCH, 3, 1, 1, generator=generator).to(where)
        x, y = pictures[rows] * shades, labels[rows]
        x = torch.where(flips[:, None, None, None], x.flip(3), x)
        loss_of(x, torch.where(flips[:, None, None], y.flip(2), y))
        optimiser.step()
        schedule.step()
    network.eval()
    scenes, counts = tested_scenes(test), []
    with torch.no_grad():
        for first in range(0, test, 64):
            said = network(_on(scenes["images"][first : first + 64], side, where)).argmax(1)
            true = _labels(scenes["scenes, true"][first : first + 64], side).to(where)
            known = torch.arange(1 + len(CLASSES), device=where)[:, None, None]
            claims, truths = said[:, None] == known, true[:, None] == known
            sums = [part.sum((2, 3)) for part in (claims & truths, claims, truths)]
            counts.append(torch.stack(sums, -1).cpu().numpy())
    return np.concatenate(counts)


def gradients_of(
    network: nn.Module, side: int, device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    """What puts the gradients of a batch's mean loss into the network; on a GPU one launch."""

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        network.zero_grad(set_to_none=False)
        losses = functional.cross_entropy(network(x), y, ignore_index=IGNORE, reduction="sum")
        loss = losses / (y != IGNORE).sum().clamp_min(1)
        loss.backward()
        return loss.detach()

    for weight in network.parameters():
        weight.grad = torch.zeros_like(weight)
    if device.type != "cuda":
        return loss_of
    x = torch.zeros(BATCH, 3, side, side, device=device)
    y = torch.zeros(BATCH, side, side, dtype=torch.long, device=device)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            loss_of(x, y)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = loss_of(x, y)

    def replayed(images: Tensor, labels: Tensor) -> Tensor:
        x.copy_(images)
        y.copy_(labels)
        graph.replay()
        return loss

    return replayed


def _on(images: np.ndarray, side: int, device: torch.device) -> Tensor:
    """Pictures uint8 [N, SIDE, SIDE, 3] as float32 [N, 3, side, side] in [-1, 1]."""
    pixels = torch.from_numpy(images).to(device).permute(0, 3, 1, 2).float() / 127.5 - 1
    return functional.avg_pool2d(pixels, SIDE // side)


def _labels(masks: np.ndarray, side: int) -> Tensor:
    """Masks uint8 [N, SIDE, SIDE] as int64 [N, side, side]: the middle one of each square."""
    step = SIDE // side
    return torch.from_numpy(masks[:, step // 2 :: step, step // 2 :: step]).long()


# ---- figures ----


def miou(counts: np.ndarray, weights: Tensor) -> Tensor:
    """float64 [B]: mIoU in percent over the CLASSES under weights [B, scenes], seeds' mean.

    ``counts`` int64 [seeds, scenes, 1 + classes, 3]; the background is no class here.
    """
    pooled = torch.einsum("bi,sick->bsck", weights, torch.from_numpy(counts).double()[:, :, 1:])
    hits, claimed, true = pooled.unbind(-1)
    ious = 100 * hits / (claimed + true - hits).clamp_min(1)
    there = (true > 0).double()
    each: Tensor = (ious * there).sum(-1) / there.sum(-1)
    return each.mean(1)


def summarise(found: Mapping[str, np.ndarray], base: str = "attention") -> dict[str, Any]:
    """Each row's mIoU with a 95 % interval over test scenes and seeds, and minus the base's.

    Resamples draw scenes, and seeds: a row's seeds are drawn anew for each.
    """
    if not found:
        return {}
    scenes = next(iter(found.values())).shape[1]
    draws = bootstrap_weights(scenes, 1000)
    drawn, whole = {}, {}
    for place, (name, counts) in enumerate(found.items()):
        each = torch.stack([miou(counts[[s]], draws) for s in range(len(counts))], 1)
        picks = bootstrap_weights(len(counts), len(draws), seed=1 + place) / len(counts)
        drawn[name] = (each * picks).sum(1)
        once = torch.ones(1, scenes, dtype=torch.float64)
        whole[name] = [round(float(miou(counts[[s]], once)), 2) for s in range(len(counts))]
    rows = {}
    for name, values in drawn.items():
        rows[name] = {"seeds": whole[name], **_entry(np.mean(whole[name]), values)}
        if base in drawn and name != base:
            gap = np.mean(whole[name]) - np.mean(whole[base])
            rows[name][f"minus_{base}"] = _entry(gap, values - drawn[base])
    return rows


def _entry(value: float, drawn: Tensor) -> dict[str, float]:
    low, high = interval(drawn)
    return {"value": round(float(value), 2), "low": round(low, 2), "high": round(high, 2)}


# ---- the whole ----

Work = tuple[Callable[..., Any], tuple[Any, ...]]


def done(work: Sequence[Work], workers: int) -> Iterator[tuple[int, Any]]:
    """What each piece of work gives, with its number, as it is done."""
    if workers == 1:
        yield from ((number, call(*given)) for number, (call, given) in enumerate(work))
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _one_thread) as pool:
        futures = {pool.submit(call, *given): n for n, (call, given) in enumerate(work)}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _one_thread() -> None:
    torch.set_num_threads(1)


def joined(parts: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The pairs of all parts, in order."""
    listed = list(parts)
    return {name: np.concatenate([part[name] for part in listed]) for name in listed[0]}


def made_pairs(given: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """All drawn pictures and all scenes with their masks."""
    most, where = max(given.pairs), (given.model, given.device)
    parts = [(first, min(CHUNK, most - first)) for first in range(0, most, CHUNK)]
    work: list[Work] = [(drawn_pairs, (*where, *part, given.drawing_steps)) for part in parts]
    work += [(annotated_scenes, (*where, *part)) for part in parts]
    found = dict(done(work, given.workers))
    pairs = [found[number] for number in range(len(work))]
    return joined(pairs[: len(parts)]), joined(pairs[len(parts) :])


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Draw, annotate, train and test; what is known is written after each training."""
    out, begun = make_folder(given.out), time.perf_counter()
    name = result_name(loaded(given.model, given.device)[0])
    drawn, scenes = made_pairs(given)
    sheet(drawn).save(out / f"{name}.webp", quality=88)
    settings = {k: v for k, v in vars(given).items() if k not in ("out", "toy", "workers")}
    result: dict[str, Any] = {
        **settings,
        "classes": CLASSES,
        "parameters": sum(p.numel() for p in Segmenter().parameters()),
        "device_name": device_name(resolve_device(given.device)),
        "versions": versions(),
        "annotated_seconds": round(time.perf_counter() - begun, 1),
        "unknown": {row: round(float((drawn[row] == IGNORE).mean()), 4) for row in BELIEFS},
        "rows": {},
    }
    runs = [
        (count, row, seed)
        for seed in range(given.seeds)
        for count in given.pairs
        for row in given.rows
    ]
    work: list[Work] = []
    for count, row, seed in runs:
        pairs = drawn if row in drawn else scenes
        about = (seed, given.train_steps, given.device, given.test, given.side)
        work.append((train_and_test, (pairs["images"][:count], pairs[row][:count], *about)))
    counts: dict[tuple[int, str], list[np.ndarray]] = {}
    for number, tested in done(work, given.workers):
        count, row, _ = runs[number]
        counts.setdefault((count, row), []).append(tested)
        for size in given.pairs:
            rows = {r: np.stack(counts[size, r]) for r in given.rows if (size, r) in counts}
            result["rows"][str(size)] = summarise(rows)
        result["trained"] = number + 1
        result["seconds"] = round(time.perf_counter() - begun, 1)
        write_json(out / f"{name}.json", result)
    return result


def sheet(drawn: Mapping[str, Any], shown: int = 6) -> Image.Image:
    """The first drawn pictures with the masks of each row; what is unknown is white."""

    def cell(pixels: np.ndarray, mask: np.ndarray) -> Image.Image:
        image = np.asarray(tinted(Image.fromarray(pixels), np.where(mask == IGNORE, 0, mask)))
        return Image.fromarray(np.where((mask == IGNORE)[..., None], np.uint8(255), image))

    rows = [
        [Image.fromarray(pixels), *(cell(pixels, drawn[row][n]) for row in DRAWN)]
        for n, pixels in enumerate(drawn["images"][:shown])
    ]
    return picture_grid(rows, headings=["drawn", *DRAWN], side=SIDE)


def print_rows(result: Mapping[str, Any]) -> None:
    """A line a row."""
    for count, rows in result["rows"].items():
        print(f"{count} pairs, mIoU over {len(CLASSES)} classes on {result['test']} test scenes")
        for name, row in rows.items():
            gap = row.get("minus_attention")
            said = f"{gap['value']:+.1f} ({gap['low']:+.1f} to {gap['high']:+.1f})" if gap else ""
            seeds = ", ".join(f"{x:.1f}" for x in row["seeds"])
            span = f"({row['low']:.1f} to {row['high']:.1f})"
            print(f"  {name:<20}{row['value']:6.1f} {span:<16} {said:<24} seeds {seeds}")


TOY = {"pairs": [4], "drawing_steps": 5, "train_steps": 4, "seeds": 1, "test": 8}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison on one model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="lab:sd2")
    parser.add_argument("--pairs", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--rows", nargs="+", default=[*DRAWN, *SCENES], help="what is trained on")
    parser.add_argument("--drawing-steps", type=int, default=50)
    parser.add_argument("--train-steps", type=int, default=1200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--test", type=int, default=500, help="scenes")
    parser.add_argument("--side", type=int, default=SIDE, choices=(32, 64, 128))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--toy", action="store_true", help=f"{TOY}")
    given = parser.parse_args(arguments)
    if given.toy:
        vars(given).update(TOY)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print_rows(run(given))


if __name__ == "__main__":
    main()

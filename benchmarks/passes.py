"""How few passes does the evidence of "dense" need, and which are they?

python benchmarks/passes.py --model lab:sd2 --scenes 120 --split test --out runs/passes

Attention and pictures are the same in all rows; only the passes that the evidence is made of
differ: their timesteps, their noise and their texts. A row is compared with `AlignConfig.fast()`
without edges ("5 in [0.2, 0.8]") by mIoU at its best threshold. Scenes have the names of their own
classes, or absent ones beside them, to 8 and to 16 names; there, the mIoU is over the classes that
are in the scene.

--toy is a run of a minute on one core. OUT/NAME.json is written anew every forty scenes.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from passes_designs import (
    CROWDED,
    FAST,
    GRID,
    NOW,
    VARIANTS,
    Beside,
    Design,
    Halves,
    Names,
    Point,
    Variant,
)
from torch import Tensor

import pixalign as pa
from pixalign.alignment.elbo import TextErrors, encoded_texts
from pixalign.alignment.evidence import local_cosine
from pixalign.alignment.plan import NoisedTimesteps, fresh_noise
from pixalign.backbones.load import hide_loading_bars
from pixalign.bench.datasets import open_dataset
from pixalign.bench.generation_study import result_name
from pixalign.bench.metrics import (
    Tally,
    bootstrap_weights,
    figures,
    interval,
    tally,
)
from pixalign.bench.subject import Subject, image_seed
from pixalign.core.files import make_folder, write_json
from pixalign.core.progress import Progress
from pixalign.core.provenance import device_name, versions
from pixalign.core.values import Evidence, Phrase
from pixalign.methods.dense import Dense
from pixalign.text.prompts import compose

NOISES = 20  # of a scene: the preset's five, and further ones
TINY = torch.finfo(torch.float32).tiny
TOGETHER = 8  # names in one text
EVERY = 40  # scenes between two writings

# ---- a scene ----


class Scene:
    """A picture and names, its attention, and the network's errors under texts at points.

    ``errors`` are those of the picture that are known; the others are added.
    """

    def __init__(
        self,
        method: Dense,
        subject: Subject,
        phrases: Sequence[Phrase],
        variants: Mapping[str, Variant],
        errors: dict[tuple[str, Point], Tensor],
    ) -> None:
        self.method, self.subject, self.errors = method, subject, errors
        picture = method.model.encode(subject.sample.image)
        self.measured = method.measure(picture, phrases, config=FAST, seed=subject.seed)
        task = self.measured.task
        assert task.scoring is not None
        self.names = Names(task.plan.phrases, task.plan.elbo_texts, seed=subject.seed)
        self.latents, own = task.encoded.latents, task.scoring.noise
        generator = torch.Generator().manual_seed(image_seed(subject.seed, "passes"))
        further = fresh_noise(NOISES - len(own), self.latents, generator)
        self.noise = torch.cat([own, further])
        self.maps: dict[tuple[Design, Point], tuple[Tensor, Tensor]] = {}
        self._pass_all(variants)

    def _pass_all(self, variants: Mapping[str, Variant]) -> None:
        """Each pass that any variant asks for, once, in large batches."""
        asked = {
            (text, point): None
            for variant in variants.values()
            for point in variant.points
            for text in variant.design.texts(self.names, point)
            if (text, point) not in self.errors
        }
        if not asked:  # an earlier set of names has asked for all of it
            return
        texts = list(dict.fromkeys(text for text, _ in asked))
        order = {text: n for n, text in enumerate(texts)}
        pairs, backbone = list(asked), self.method.backbone
        if long := [text for text in texts if not backbone.fits(text)]:
            raise ValueError(f"text {long[0]!r} is longer than the model's text encoder reads")
        conditions, device = encoded_texts(backbone, texts), self.latents.device

        def work(first: int, last: int) -> None:
            part = pairs[first:last]
            noised = self.noised([point for _, point in part])
            shown = conditions[torch.tensor([order[text] for text, _ in part], device=device)]
            z = noised.steps.noised(self.latents, noised.noise)
            errors = backbone.epsilon(z, noised.steps, shown) - noised.noise
            self.errors.update(zip(part, errors.float().cpu(), strict=True))

        self.method.model.batch_size.each(self.latents, len(pairs), "elbo", work)

    def noised(self, points: Sequence[Point]) -> NoisedTimesteps:
        """The points' timesteps, and the noise of each."""
        places = torch.tensor([point.place for point in points], dtype=torch.float64)
        which = torch.tensor([point.noise for point in points], device=self.noise.device)
        signs = torch.tensor([point.sign for point in points], device=self.noise.device)
        noise = self.noise[which] * signs[:, None, None, None]
        return NoisedTimesteps(self.method.backbone.schedule.at_positions(places), noise)

    def at(self, design: Design, point: Point) -> tuple[Tensor, Tensor]:
        """Maps [2, N, h, w] and losses [N] of a point, as in `TextErrors`."""
        if (design, point) not in self.maps:
            texts = design.texts(self.names, point)
            errors = torch.stack([self.errors[text, point] for text in texts])
            missed, added = design.parts(errors, self.names, point)
            products = torch.stack([missed * added, added.square()]).mean(2)
            scale = missed.square().mean((1, 2, 3))[:, None, None].clamp_min(TINY)
            losses = (missed - added).square().mean((1, 2, 3))
            self.maps[design, point] = products / scale, losses
        return self.maps[design, point]

    def text_errors(self, variant: Variant) -> TextErrors:
        """What `task.errors` would be if the variant's passes were the method's."""
        each = [self.at(variant.design, point) for point in variant.points]
        maps = torch.stack([maps for maps, _ in each], 2)
        if isinstance(variant.design, Halves) and variant.design.how == "solve":
            maps[0] = variant.design.solved(self.names, variant.points, maps[0])
        losses = torch.stack([losses for _, losses in each], 1)
        return TextErrors(self.names.each, self.noised(variant.points).steps, losses, maps)

    def heatmaps(self, variant: Variant) -> Tensor:
        """float32 [N, H, W]: what the method concludes."""
        task = replace(self.measured.task, errors=self.text_errors(variant))
        config = replace(FAST, evidence_blur=variant.blur)
        result = self.method.conclude(replace(self.measured, task=task), config)
        return torch.from_numpy(result.heatmaps)

    def tallied(self, variants: Mapping[str, Variant]) -> dict[str, Tally]:
        """The pixels of each variant; those of absent names, which come last, are left out."""
        own, count = self.subject.labels, len(self.names.each)
        absent = range(1000, 1000 + count - len(own))
        labels = [*(label + 1 for label in own), *absent]
        maps = torch.stack([self.heatmaps(variant) for variant in variants.values()])
        drawn = tally(maps, self.subject.truth, labels, self.subject.index)
        present = drawn[0].label < 1000
        return {name: own.select(present) for name, own in zip(variants, drawn, strict=True)}

    def ordered(self) -> Tensor:
        """float64 [20]: at each point of the grid, the share of the objects' cells where their own
        class has the highest local cosine."""
        maps = torch.stack([self.at(Beside(), point)[0] for point in GRID])
        best = torch.stack(
            [local_cosine(Evidence(*each), FAST.evidence_blur).argmax(0) for each in maps]
        )
        rows, columns = (
            (torch.arange(cells) * 2 + 1) * side // (2 * cells)
            for cells, side in zip(best.shape[1:], self.subject.truth.shape, strict=True)
        )
        truth = self.subject.truth[rows][:, columns]
        inside = (truth > 0) & (truth <= len(self.names.each))
        return (best + 1 == truth)[:, inside].double().mean(1)


def crowd(
    subject: Subject, classes: Sequence[str], count: int, fits: Callable[[str], bool]
) -> list[Phrase]:
    """The scene's classes and absent ones, so many in all, of which any eight fit into one text."""
    others = [name for label, name in enumerate(classes) if label not in subject.labels]
    random.Random(subject.seed).shuffle(others)
    phrases = list(subject.phrases)
    while len(phrases) < count and others:
        more = [*phrases, Phrase(others.pop())]
        longest = sorted(more, key=lambda phrase: -len(phrase.name.split()))[:TOGETHER]
        if fits(compose(longest, range(len(longest)), FAST.template).text):
            phrases = more
    return phrases


# ---- figures ----


def summarise(
    found: Sequence[Mapping[str, Tally]], variants: Mapping[str, Variant], weights: Tensor
) -> dict[str, Any]:
    """Each row's mIoU in percent, and minus that of the base; intervals are over scenes."""
    rows: dict[str, Any] = {}
    base, first = torch.empty(0), 0.0
    for name in (NOW, *(name for name in variants if name != NOW)):
        variant = variants[name]
        values, drawn = figures(Tally.concatenate([scene[name] for scene in found]), weights, None)
        if name == NOW:
            base, first = drawn, values.miou
        ten, eight = variant.passes(10), variant.passes(8)
        each = (ten - eight) // 2
        rows[name] = {
            "group": variant.group,
            "timesteps": len(variant.points),
            "passes": [each, ten - 10 * each],  # a, b of a N + b
            "passes_at_10": ten,
            "threshold": values.threshold,
            **_entry(values.miou, drawn),
            "minus_now": _entry(values.miou - first, drawn - base),
        }
    return rows


def _entry(value: float, drawn: Tensor) -> dict[str, float]:
    low, high = interval(drawn)
    return {"value": round(value, 2), "low": round(low, 2), "high": round(high, 2)}


def order_shares(orders: Sequence[Tensor], weights: Tensor) -> list[dict[str, float]]:
    """By point of the grid, the mean over the scenes of what `Scene.ordered` gives, in percent."""
    values = 100 * torch.stack(list(orders), 1)
    drawn = values @ weights.T / weights.sum(1)
    return [
        {"place": point.place, **_entry(float(mean), own)}
        for point, mean, own in zip(GRID, values.mean(1), drawn, strict=True)
    ]


def run(given: argparse.Namespace) -> dict[str, Any]:
    """All scenes of one model; what is known is written every forty."""
    hide_loading_bars()
    out, begun = make_folder(given.out), time.perf_counter()
    model = pa.load(given.model, device=given.device, dtype="float32")
    method, dataset = Dense(model), open_dataset("lab", None, given.split, given.scenes)
    own: list[dict[str, Tally]] = []
    more: dict[int, list[dict[str, Tally]]] = {count: [] for count in CROWDED}
    orders: list[Tensor] = []
    result: dict[str, Any] = {
        "model": model.name,
        "split": given.split,
        "scenes": given.scenes,
        "device_name": device_name(model.backbone.device),
        "versions": versions(),
        "base": NOW,
    }
    with Progress(len(dataset), f"passes of {model.name}", True, "scene") as progress:
        for done in range(1, len(dataset) + 1):
            subject = Subject(dataset[done - 1], done - 1, dataset.classes, 0)
            errors: dict[tuple[str, Point], Tensor] = {}
            scene = Scene(method, subject, subject.phrases, VARIANTS, errors)
            own.append(scene.tallied(VARIANTS))
            orders.append(scene.ordered())
            for count, rows in CROWDED.items():
                phrases = crowd(subject, dataset.classes, count, model.backbone.fits)
                more[count].append(Scene(method, subject, phrases, rows, errors).tallied(rows))
            progress.advance(1)
            if done % EVERY and done < len(dataset):
                continue
            weights = bootstrap_weights(done, given.draws if done == len(dataset) else 50)
            result |= {
                "done": done,
                "rows": summarise(own, VARIANTS, weights),
                "crowded": {
                    str(count): summarise(more[count], rows, weights)
                    for count, rows in CROWDED.items()
                },
                "ordered": order_shares(orders, weights),
                "seconds": round(time.perf_counter() - begun, 1),
            }
            write_json(out / f"{result_name(model)}.json", result)
    return result


def print_rows(result: Mapping[str, Any]) -> None:
    """A line a row."""
    print(f"{result['model']}: mIoU on {result['done']} {result['split']} scenes")
    for count, rows in {"10": result["rows"], **result["crowded"]}.items():
        about = "the scene's names" if rows is result["rows"] else f"{count} names"
        print(f"{about}, passes at {count}, mIoU, minus {NOW}")
        for name, row in rows.items():
            each, once = row["passes"]
            gap = row["minus_now"]
            said = f"{gap['value']:+.1f} ({gap['low']:+.1f} to {gap['high']:+.1f})"
            print(f"  {name:<42}{each * int(count) + once:4} {row['value']:6.1f}  {said}")
    shares = [f"{entry['place']:g}: {entry['value']:.0f}" for entry in result["ordered"]]
    print(f"cells of objects whose class leads, %, by timestep: {', '.join(shares)}")


TOY = {"scenes": 2, "draws": 20, "model": "lab:sd1"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare the rows on one model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="lab:sd2")
    parser.add_argument("--scenes", type=int, default=120)
    parser.add_argument("--split", default="test", choices=("val", "test"))
    parser.add_argument("--draws", type=int, default=1000, help="resamples of the scenes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--toy", action="store_true", help=f"{TOY}")
    given = parser.parse_args(arguments)
    if given.toy:
        vars(given).update(TOY)
    print_rows(run(given))


if __name__ == "__main__":
    main()

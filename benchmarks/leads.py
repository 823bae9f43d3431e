"""What else could make the ELBO cheaper? Timesteps, noise and resolution on the lab's scenes.

python benchmarks/leads.py --split val --count 60 --device auto --out docs/speed/leads.json

Every scene is measured once: at many timesteps with noise of its own (the reference), with the
library's own budget (full), and in other ways; a lead is a mean of some of these losses. It is
judged by its passes a class (of full resolution), by the share of pairs of classes that it orders
as the reference does, by the distance of its exponents to the reference's (in 1 / gamma - 1, as in
`expected_change`), and by its mIoU. Scenes of even number take what was learnt on odd ones, and
the other way round.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from adaptive import summary
from architectures import Model
from pixalign.alignment.adaptive import stages
from speed import flops_per_forward
from torch import Tensor
from torch.nn.functional import avg_pool2d

import pixalign as pa
from lab.measured import scene_attention, scene_groups
from pixalign.alignment.calibrate import alignment_scores, exponents, weighted_elbo
from pixalign.alignment.elbo import class_losses
from pixalign.alignment.heatmaps import heatmaps_under
from pixalign.alignment.plan import NoisedTimesteps, PromptPlan, plan_prompts, plan_timesteps
from pixalign.backbones import Backbone
from pixalign.backbones.load import hide_loading_bars
from pixalign.bench.measuring import Subject, image_seed
from pixalign.bench.metrics import Tally, bootstrap_weights, interval, pair_means, tally
from pixalign.config import AlignConfig
from pixalign.core.files import write_json
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.provenance import device_name, versions
from pixalign.core.values import AttentionMaps
from pixalign.pictures.reading import to_pixels

REFERENCE = 100  # timesteps
GRID = 40  # timesteps from which some are chosen
BUDGETS = (5, 10, 20)
# Kinds of noise: the first is the library's, and from the last on each class has its own.
_OWN, _REFERENCE, _GRID, _HALF, _ALONE = range(5)


@dataclass(frozen=True, eq=False)
class Scene:
    """One scene: its attention, and by name the losses float32 [N, T] of its classes."""

    subject: Subject
    maps: AttentionMaps
    losses: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Lead:
    """A bound as the mean of some measurements, each weighted over its timesteps.

    ``weights`` [T] are those for scenes of even and those for scenes of odd number; ``cost`` is
    one pass in passes at full resolution; ``against`` is the lead that this one is compared to.
    """

    parts: tuple[str, ...]
    weights: tuple[Tensor, Tensor]
    cost: float = 1.0
    against: str | None = None

    @property
    def passes(self) -> float:
        """Passes a class takes, in passes at full resolution."""
        return int((self.weights[0] != 0).sum()) * len(self.parts) * self.cost

    def bounds(self, scene: Scene) -> Tensor:
        """float64 [N]: the ELBO of each class."""
        weights = self.weights[scene.subject.index % 2]
        losses = torch.stack([scene.losses[part] for part in self.parts]).double().mean(0)
        return weighted_elbo(losses, weights / weights.sum())


def noised(
    backbone: Backbone,
    config: AlignConfig,
    subject: Subject,
    latents: Tensor,
    kind: int,
    steps: int,
) -> NoisedTimesteps:
    """``steps`` even timesteps for a scene, with noise of that kind; kind 0 is the benchmark's."""
    generator = torch.Generator().manual_seed(image_seed(kind, subject.sample.key))
    settings = replace(config, elbo_steps=steps)
    timesteps = plan_timesteps(backbone.schedule, latents[:1], settings, generator)[1]
    assert timesteps is not None
    return timesteps


def with_less_noise(backbone: Backbone, full: NoisedTimesteps) -> NoisedTimesteps:
    """Timesteps where noise is half as strong: a picture of half the side is hidden as much."""
    table = backbone.schedule.at_positions(torch.linspace(0, 1, 1000))
    levels = (table.sigma / table.alpha).log()
    wanted = (full.steps.sigma / full.steps.alpha / 2).log()
    nearest = (levels[None] - wanted[:, None]).abs().argmin(1)
    return NoisedTimesteps(table[nearest], full.noise)


def named_losses(
    model: AlignmentModel,
    latents: Tensor,
    plans: Sequence[PromptPlan],
    timesteps: Sequence[dict[str, NoisedTimesteps]],
) -> list[dict[str, Tensor]]:
    """Each image's losses [N, T] by the names of its timesteps; all go through together."""
    joint = [NoisedTimesteps.concatenate(list(own.values())) for own in timesteps]
    quiet = Progress(0, "", show=False)
    losses = class_losses(model.backbone, latents, plans, joint, model.batch_size, quiet)
    lengths = [len(part.steps) for part in timesteps[0].values()]
    return [dict(zip(timesteps[0], torch.split(one, lengths, 1), strict=True)) for one in losses]


def independent_losses(
    model: AlignmentModel, config: AlignConfig, group: Sequence[Subject], latents: Tensor
) -> list[Tensor]:
    """Each scene's losses [N, T] without shared noise: every class is measured alone."""
    sizes = [len(subject.labels) for subject in group]
    owners = torch.arange(len(group)).repeat_interleave(torch.tensor(sizes)).to(latents.device)
    draw = partial(noised, model.backbone, config, latents=latents, steps=config.elbo_steps)
    plans, timesteps = [], []
    for subject in group:
        for label, phrase in zip(subject.labels, subject.phrases, strict=True):
            plans.append(plan_prompts(model.backbone, [phrase], None, config))
            timesteps.append({"own": draw(subject, kind=_ALONE + label)})
    losses = named_losses(model, latents[owners], plans, timesteps)
    return list(torch.split(torch.cat([one["own"] for one in losses]), sizes))


def measured(
    model: AlignmentModel, config: AlignConfig, group: Sequence[Subject], latents: Tensor
) -> list[dict[str, Tensor]]:
    """Each scene's losses in every way that a lead needs."""
    backbone, count = model.backbone, config.elbo_steps
    plans = [plan_prompts(backbone, subject.phrases, None, config) for subject in group]
    pixels = torch.cat([to_pixels(s.sample.image, backbone.native_size) for s in group])
    small = backbone.encode_image(avg_pool2d(pixels, 2))
    wide, narrow = [], []
    for subject in group:
        draw = partial(noised, backbone, config, subject)
        own, half = draw(latents, _OWN, count), draw(small, _HALF, count)
        timesteps = {"full": own, "negated": NoisedTimesteps(own.steps, -own.noise)}
        timesteps["grid"] = draw(latents, _GRID, GRID)
        timesteps["reference"] = draw(latents, _REFERENCE, REFERENCE)
        wide.append(timesteps)
        narrow.append({"half": half, "moved": with_less_noise(backbone, half)})
    losses = named_losses(model, latents, plans, wide)
    less = named_losses(model, small, plans, narrow)
    alone = independent_losses(model, config, group, latents)
    for one, other, third in zip(losses, less, alone, strict=True):
        one |= {**other, "independent": third}
    return losses


def cost_at_half(backbone: Backbone) -> float:
    """The arithmetic of a pass at half the side, as a share of one at full side."""
    channels, side = backbone.denoiser.config.in_channels, backbone.denoiser.config.sample_size
    shapes = [(1, channels, *pair) for pair in ((side, side), (side // 2, side // 2))]
    models = [Model(backbone, torch.zeros(shape).to(backbone.device), ("dog",)) for shape in shapes]
    whole, half = (flops_per_forward(model)[0] for model in models)
    return round(half / whole, 4)


def pair_differences(values: Tensor) -> Tensor:
    """[P, ...]: values [N, ...] of the first class minus the second's, for all pairs of classes."""
    first, second = torch.triu_indices(len(values), len(values), 1)
    return values[first].double() - values[second].double()


def known_pairs(scenes: Sequence[Scene]) -> tuple[Tensor, Tensor]:
    """Differences [P, T] on the grid of all scenes' pairs, and the reference's [P]."""
    grid = torch.cat([pair_differences(scene.losses["grid"]) for scene in scenes])
    reference = torch.cat([pair_differences(scene.losses["reference"]) for scene in scenes])
    return grid, reference.mean(1)


def spread(count: int, budget: int) -> Tensor:
    """[count]: 1 at the first ``budget`` of the timesteps in the library's order, else 0."""
    order = [place for stage in stages(count, BUDGETS[0]) for place in stage]
    weights = torch.zeros(count, dtype=torch.float64)
    weights[order[:budget]] = 1.0
    return weights


def greedy(scenes: Sequence[Scene], budget: int) -> Tensor:
    """One after the other, the timestep with which most pairs are ordered as in the reference."""
    grid, reference = known_pairs(scenes)
    weights = torch.zeros(grid.shape[1], dtype=torch.float64)
    for _ in range(budget):
        sums = (grid @ weights)[:, None] + grid
        right = (sums * reference[:, None] > 0).double()
        margin = (right * reference.abs()[:, None]).sum(0) / reference.abs().sum()
        gain = right.sum(0) + margin / 2  # below 1: it only decides between equals
        gain[weights > 0] = -1
        weights[gain.argmax()] = 1.0
    return weights


def inverse_variance(scenes: Sequence[Scene], budget: int) -> Tensor:
    """Spread; each weighs one over the variance of its differences around the reference's."""
    grid, reference = known_pairs(scenes)
    return spread(GRID, budget) / (grid - reference[:, None]).square().mean(0)


def matched(scenes: Sequence[Scene], budget: int) -> Tensor:
    """Spread; each weighs its signal over its noise: the best weight for a multiple plus noise."""
    grid, reference = known_pairs(scenes)
    slope = (grid * reference[:, None]).mean(0) / reference.square().mean()
    noise = (grid - slope * reference[:, None]).square().mean(0)
    return spread(GRID, budget) * slope.clamp_min(1e-9) / noise


ALLOCATIONS: dict[str, Callable[[Sequence[Scene], int], Tensor]] = {
    "even": lambda scenes, budget: spread(GRID, budget),
    "greedy": greedy,
    "inverse variance": inverse_variance,
    "signal over noise": matched,
}


def allocations(scenes: Sequence[Scene]) -> Iterator[tuple[str, Lead]]:
    """Every allocation at every budget; each half of the scenes takes what the other chose."""
    halves = [[scene for scene in scenes if scene.subject.index % 2 == part] for part in (0, 1)]
    for budget in BUDGETS:
        for name, choose in ALLOCATIONS.items():
            weights = choose(halves[1], budget), choose(halves[0], budget)
            against = None if name == "even" else f"timesteps even, {budget}"
            yield f"timesteps {name}, {budget}", Lead(("grid",), weights, 1.0, against)


def fixed_leads(count: int, half: float) -> Iterator[tuple[str, Lead]]:
    """The leads that learn nothing; ``count`` is the full budget, ``half`` a small pass's cost."""
    for budget in BUDGETS:
        own = "full" if budget == count else f"shared noise, {budget}"
        weights = (spread(count, budget),) * 2
        yield own, Lead(("full",), weights)
        yield f"independent noise, {budget}", Lead(("independent",), weights, 1.0, own)
        if budget % 2 == 0:
            few = (spread(count, budget // 2),) * 2
            yield f"eps and -eps, {budget}", Lead(("full", "negated"), few, 1.0, own)
    yield "reference", Lead(("reference",), (torch.ones(REFERENCE),) * 2, 1.0, "full")
    for part, name in (("half", "half side"), ("moved", "half side, less noise")):
        against = f"shared noise, {count // 4}"  # of about as much arithmetic
        yield f"{name}, {count}", Lead((part,), (spread(count, count),) * 2, half, against)


def powers(bounds: Tensor, config: AlignConfig) -> Tensor:
    """[N]: the exponents that bounds [N] give."""
    assert config.gamma is not None
    return exponents(alignment_scores(bounds, config.gamma), bool(config.centred))


def tallies_of(
    scenes: Sequence[Scene], leads: dict[str, Lead], config: AlignConfig
) -> dict[str, list[Tally]]:
    """Every lead's pixels, scene by scene."""
    tallies: dict[str, list[Tally]] = {name: [] for name in ("uncalibrated", *leads)}
    for scene in scenes:
        subject = scene.subject
        rows = [powers(lead.bounds(scene), config) for lead in leads.values()]
        both = torch.stack([torch.ones_like(rows[0]), *rows])
        heatmaps = heatmaps_under(scene.maps, config.cross_weights, both, subject.size)
        labels = [label + 1 for label in subject.labels]
        counted = tally(heatmaps, subject.truth, labels, subject.index)
        for name, one in zip(tallies, counted, strict=True):
            tallies[name].append(one)
    return tallies


def pair_owners(scenes: Sequence[Scene]) -> tuple[Tensor, Tensor]:
    """The scene's index of each pair of classes [P], and of each class [R]."""
    sizes = torch.tensor([len(scene.subject.labels) for scene in scenes])
    images = torch.tensor([scene.subject.index for scene in scenes])
    return images.repeat_interleave(sizes * (sizes - 1) // 2), images.repeat_interleave(sizes)


def with_ends(value: Tensor, resampled: Tensor) -> dict[str, float]:
    """A value with its interval."""
    low, high = interval(resampled)
    return {"value": round(float(value), 4), "low": round(low, 4), "high": round(high, 4)}


def closeness(
    scenes: Sequence[Scene], leads: dict[str, Lead], config: AlignConfig, weights: Tensor
) -> dict[str, dict[str, Any]]:
    """How near each lead is to the reference, beside what it is compared with."""
    assert config.gamma is not None
    found: dict[str, dict[str, Tensor]] = {"agreement": {}, "error": {}}
    for name, lead in leads.items():
        both = [(lead.bounds(scene), leads["reference"].bounds(scene)) for scene in scenes]
        signs = [[pair_differences(one).sign() for one in pair] for pair in both]
        found["agreement"][name] = torch.cat([own == known for own, known in signs]).double()
        apart = torch.cat([powers(own, config) - powers(known, config) for own, known in both])
        found["error"][name] = apart.abs().double() / (1 / config.gamma - 1)
    rows: dict[str, dict[str, Any]] = {}
    for name, lead in leads.items():
        rows[name] = {"passes": round(lead.passes, 3), "against": lead.against}
        for (label, all_), image in zip(found.items(), pair_owners(scenes), strict=True):
            kinds = {label: all_[name]}
            if lead.against:
                kinds[f"{label}_minus"] = all_[name] - all_[lead.against]
            for kind, values in kinds.items():
                rows[name][kind] = with_ends(values.mean(), pair_means(values, image, weights))
    return rows


def variances(scenes: Sequence[Scene], weights: Tensor) -> dict[str, dict[str, float]]:
    """Variances of a pair's difference at one timestep, as shares of that without shared noise.

    They come from two noises at a timestep (the reference visits the full budget's too). "eps and
    -eps" and "two noises" are means of two passes; "timestep and noise" is the squared distance to
    the reference, "reference" that itself squared.
    """
    found: dict[str, list[Tensor]] = {}
    for scene in scenes:
        full, negated, known = (scene.losses[n] for n in ("full", "negated", "reference"))
        stride = REFERENCE // full.shape[1]
        same = known[:, stride // 2 :: stride]
        own = (full - same).double().square() / 2
        first, again, opposite = map(pair_differences, (full, same, negated))
        mean = pair_differences(known).mean(1, keepdim=True)
        shared, turned = (first - again).square() / 2, (first - opposite).square() / 2
        left, right = torch.triu_indices(len(own), len(own), 1)
        values = {"independent": own[left] + own[right], "shared": shared}
        values |= {"two noises": shared / 2, "eps and -eps": shared - turned / 2}
        values |= {"timestep and noise": (first - mean).square(), "reference": mean.square()}
        for name, one in values.items():
            found.setdefault(name, []).append(one.mean(1))
    image, columns = pair_owners(scenes)[0], {name: torch.cat(v) for name, v in found.items()}
    base, drawn_base = columns["independent"], pair_means(columns["independent"], image, weights)
    return {
        name: with_ends(one.mean() / base.mean(), pair_means(one, image, weights) / drawn_base)
        for name, one in columns.items()
    }


def print_table(result: dict[str, Any]) -> None:
    """One line a lead, then the variances."""

    def ends(value: dict[str, float], style: str) -> str:
        low, high = (format(value[end], style) for end in ("low", "high"))
        return f"{format(value['value'], style)} ({low} to {high})"

    columns = {"agreement": ".3f", "agreement_minus": "+.3f", "error": ".3f"}
    columns |= {"error_minus": "+.3f", "minus_full": "+.2f"}
    print(f"{'':<32}{'passes':>8}" + "".join(f"  {name:<26}" for name in columns))
    for name, row in result["rows"].items():
        cells = [ends(row[key], style) if key in row else "" for key, style in columns.items()]
        print(f"{name:<32}{row.get('passes', 0):>8.2f}" + "".join(f"  {c:<26}" for c in cells))
    for name, value in result["variances"].items():
        print(f"variance, {name:<22} {ends(value, '.4f')}")


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", default="val", choices=("val", "test"))
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    hide_loading_bars()
    model = pa.load(device=args.device, dtype="float32")
    config = model.resolve(AlignConfig())
    scenes = []
    for group, latents in scene_groups(model, args.split, args.count):
        maps = scene_attention(model, group, latents, config)
        losses = measured(model, config, group, latents)
        scenes += [Scene(*each) for each in zip(group, maps, losses, strict=True)]
    half = cost_at_half(model.backbone)
    leads = dict(fixed_leads(config.elbo_steps, half)) | dict(allocations(scenes))
    used: dict[str, Any] = {name: lead.passes for name, lead in leads.items()}
    result = summary(tallies_of(scenes, leads, config), used, len(scenes))
    weights = bootstrap_weights(len(scenes), 1000)
    for name, row in closeness(scenes, leads, config, weights).items():
        result["rows"][name] |= row
    result["variances"] = variances(scenes, weights)
    result["chosen"] = {
        name: [[round(w, 4) for w in (part / part.sum()).tolist()] for part in lead.weights]
        for name, lead in leads.items()
        if lead.parts == ("grid",) and lead.against
    }
    result |= {"half_side_cost": half, "reference": REFERENCE, "grid": GRID}
    result |= {"split": args.split, "gamma": config.gamma, "centred": config.centred}
    result |= {"device": device_name(model.backbone.device), "versions": versions()}
    if args.out:
        write_json(args.out, result)
    print_table(result)
    return result


if __name__ == "__main__":
    main()

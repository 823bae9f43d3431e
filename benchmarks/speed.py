"""How fast is an alignment, and how near to what the device's arithmetic allows?

python benchmarks/speed.py --arch sd15 --classes 10 --device cuda --compile --out FILE

Measures side by side in one run, with the same latents, from latents to heatmaps: "sequential" (the
released computation, `sequential.py`), "elbo" (pixalign, at the released timesteps), "dense" (its
default) and "fast" (`AlignConfig.fast()`); with --compile each of them compiled too. --memory low
and --batches add rows of "dense", or of the last of --kinds without it. With --offload the pipeline
waits in main memory. Seconds are medians of repeats after a first call, which a row says apart, on
a device that has finished. With --again a second process compiles anew, from the first one's files.

The floor is the arithmetic of the network's passes alone, at the rate of a large matrix product of
the same number type; ``floor_share`` is the share of that rate that a row reaches. A row that fails
holds "error", the others still run, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import diffusers
import torch
from architectures import ARCHITECTURES, Model, build, names_of
from PIL import Image
from sequential import PARTS, Clock, Job, Outcome, Sequential
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import pixalign as pa
from pixalign import AlignConfig, Alignment, EncodedImage
from pixalign.alignment.plan import plan_prompts, plan_timesteps
from pixalign.backbones.load import DTYPES, lay_out
from pixalign.core.batching import BatchSize

MANY_CLASSES = 6  # --many: images have 1 to so many classes
SLOW = 5.0  # seconds; a sequential run that takes longer is not repeated
SINGLE_CLASSES = 10  # ... and are compared with one image of so many
OFFICIAL = AlignConfig.official()  # which knows no FLUX
CONFIGS = {
    "elbo": dataclasses.replace(
        OFFICIAL, by_family={**OFFICIAL.by_family, "flux": {"self_attention": "once"}}
    ),
    "dense": AlignConfig(method="dense"),
    "fast": AlignConfig.fast(method="dense"),
}


# ---- one alignment ----


class TimedBatches(BatchSize):
    """Batches as a model makes them, with the seconds of each kind of work."""

    def __init__(self, like: BatchSize, device: torch.device) -> None:
        super().__init__(like.requested, like.memory)
        self.limits, self.notes = like.limits, like.notes
        self.clock = Clock(device)

    def each(self, latents: Tensor, total: int, kind: str, *args: Any, **options: Any) -> None:
        """The same work between two laps."""
        self.clock.lap("heatmaps")
        super().each(latents, total, kind, *args, **options)
        self.clock.lap(kind)


def align_once(
    model: pa.Model, latents: Tensor, names: Sequence[str], config: AlignConfig, **given: Any
) -> Alignment:
    """`Model.align` from latents [1, C, h, w]; its provenance has the seconds of each part.

    What is neither the ELBO's passes nor collecting counts as "heatmaps".
    """
    picture = Image.new("RGB", model.backbone.native_size[::-1])
    encoded = EncodedImage(picture, latents, config.resize, model.pipe.vae)
    usual = model.batch_size
    model.batch_size = timed = TimedBatches(usual, latents.device)
    try:
        result = model.align(encoded, list(names), config=config, **given)
    finally:
        model.batch_size = usual
    timed.clock.lap("heatmaps")
    seconds = {part: timed.clock.laps.get(part, 0.0) for part in PARTS}
    result.provenance["seconds"] = {"total": sum(seconds.values()), **seconds}
    return result


def passes_of(result: Alignment) -> dict[str, int]:
    """How many passes a result took."""
    passes = {part: int(result.provenance["forwards"][part]) for part in ("collect", "elbo")}
    return {"total": sum(passes.values()), **passes}


def reference_job(model: pa.Model, latents: Tensor, names: Sequence[str]) -> Job:
    """The same work for the sequential reference: the same noise, steps and prompts."""
    backbone = model.backbone
    config = model.resolve(AlignConfig.official())
    plan = plan_prompts(backbone, list(names), None, config)
    timesteps = plan_timesteps(backbone.schedule, latents, config, torch.Generator().manual_seed(0))
    assert timesteps[1] is not None
    assert config.elbo_timesteps is not None
    assert config.collect_timesteps is not None
    assert config.gamma is not None
    return Job(
        latents=latents,
        names=list(names),
        prompts=[prompt.classes for prompt in plan.prompts],
        collect_steps=config.collect_timesteps,
        collect_noise=timesteps[0].noise,
        elbo_steps=config.elbo_timesteps,
        elbo_noise=timesteps[1].noise,
        size=backbone.native_size,
        gamma=config.gamma,
    )


def difference(
    found: Alignment, same_scores: Alignment | None, reference: Outcome
) -> dict[str, float | None]:
    """The largest differences: of losses relative, of heatmaps absolute.

    A random network's losses are nearly alike, and their min-max enlarges rounding to scores; so
    heatmaps are also compared under the reference's scores. Of an extrapolated reference there
    are only some losses.
    """
    losses, there = torch.from_numpy(found.losses), torch.isfinite(reference.losses)
    relative = (losses - reference.losses).abs() / reference.losses.abs()

    def apart(result: Alignment | None) -> float | None:
        if result is None or reference.extrapolated:
            return None
        return _plain((torch.from_numpy(result.heatmaps) - reference.heatmaps).abs().max())

    return {
        "losses": _plain(relative[there].max()),
        "heatmaps": apart(found),
        "heatmaps_same_scores": apart(same_scores),
    }


def compare(
    model: pa.Model, latents: Tensor, names: Sequence[str], reference: Outcome
) -> tuple[Alignment, dict[str, float | None]]:
    """The first alignment, and its `difference` to the sequential reference of the image."""
    first, same = align_once(model, latents, names, CONFIGS["elbo"]), None
    if not reference.extrapolated:
        scores = reference.scores.numpy()
        same = align_once(model, latents, names, CONFIGS["elbo"], scores=scores)
    return first, difference(first, same, reference)


# ---- the device ----


@torch.no_grad()
def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a large square matrix product, the median of a few."""
    side, chain = (8192, 16) if device.type == "cuda" else (1024, 1)
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    rates = []
    for _ in range(7):
        clock = Clock(device)
        for _ in range(chain):
            torch.mm(left, right)
        clock.lap("products")
        rates.append(chain * 2 * side**3 / clock.laps["products"])
    return statistics.median(rates[2:])


@torch.no_grad()
def flops_per_forward(model: Model) -> tuple[int, int]:
    """FLOPs of one pass with one image and one text, and those before a layer reads the text.

    The second number is what classes could share. Pooled texts are read from the start.
    """
    backbone, latents = model.backbone, model.latents
    text = backbone.encode_text([f"a photo of {model.names[0]}"])
    step = backbone.schedule.at_indices([1])
    before: list[int] = []
    # Fused attention is not counted on every device; plain products are.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        hooks = [
            site.module.register_forward_pre_hook(
                lambda *_: before.append(counter.get_total_flops())
            )
            for site in backbone.sites
            if site.reads_text
        ]
        backbone.predict(latents, step, text)
    for hook in hooks:
        hook.remove()
    return int(counter.get_total_flops()), 0 if text.pooled is not None else int(before[0])


def _free(device: torch.device) -> None:
    """Let nothing of earlier rows count in the next one's peak."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> float | None:
    """GiB that tensors held at most since `_free`; None on a CPU."""
    if device.type != "cuda":
        return None
    return round(torch.cuda.max_memory_allocated(device) / 2**30, 3)


# ---- rows ----


class Bench:
    """Measures rows on one model; every row is a dictionary that goes into the JSON."""

    def __init__(self, model: Model, classes: int, repeats: int) -> None:
        self.model, self.repeats = model, repeats
        self.names = model.names[:classes]
        self.device = model.latents.device
        self.flops, self.shareable = flops_per_forward(model)
        self.rate = matrix_rate(self.device, model.backbone.dtype)
        lay_out(model.backbone)
        self.reference: Outcome | None = None
        self._sequential_seconds: float | None = None

    def offload(self, how: str) -> None:
        """Keep the pipeline in main memory: whole parts of it, or a "group" of layers, are sent to
        the device when they compute.
        """
        pipe = self.model.pipe.to("cpu")
        _free(self.device)
        if how == "model":
            pipe.enable_model_cpu_offload(device=self.device)
        else:
            stream = {"use_stream": True} if self.device.type == "cuda" else {}
            pipe.enable_group_offload(
                self.device, torch.device("cpu"), "block_level", num_blocks_per_group=1, **stream
            )

    def loaded(self, **options: Any) -> pa.Model:
        """The model as `pa.load` gives it, with its own settings."""
        model = pa.load(self.model.pipe, **options)
        model.settings = dict(self.model.settings)
        return model

    def sequential(self, limit: float | None = None) -> dict[str, Any]:
        """The reference's row, in diffusers' own layout; what follows is compared with it."""
        loaded, network = self.loaded(), self.model.backbone.denoiser
        network.to(memory_format=torch.contiguous_format)
        job = reference_job(loaded, self.model.latents, self.names)
        running = Sequential(loaded.backbone, job)
        started = time.perf_counter()
        pieces = running.pieces_within(math.inf if limit is None else limit)
        warmup = time.perf_counter() - started
        _free(self.device)
        outcomes = [running.run(pieces)]
        quick = outcomes[0].seconds["total"] < SLOW
        outcomes += [running.run(pieces) for _ in range((self.repeats - 1) * quick)]
        lay_out(self.model.backbone)
        self.reference = outcomes[0]
        seconds = _median(outcome.seconds for outcome in outcomes)
        self._sequential_seconds = seconds["total"]
        return {
            **self._row("sequential", seconds, outcomes[0].forwards, warmup),
            "batch_size": {"collect": 1, "elbo": 1},
            "difference": None,
            "extrapolated": outcomes[0].extrapolated,
        }

    def ours(self, kind: str, name: str, loaded: pa.Model) -> dict[str, Any]:
        """A row of pixalign's; its results are those of the first call."""
        work = (loaded, self.model.latents, self.names)
        started, differences = time.perf_counter(), None
        if kind == "elbo" and self.reference is not None:
            first, differences = compare(*work, self.reference)
            seconds_first = float(first.provenance["seconds"]["total"])
        else:
            first = align_once(*work, CONFIGS[kind])
            seconds_first = time.perf_counter() - started
        passes = passes_of(first)
        del first
        _free(self.device)
        seconds = _median(
            align_once(*work, CONFIGS[kind]).provenance["seconds"] for _ in range(self.repeats)
        )
        return {
            **self._row(name, seconds, passes, seconds_first),
            "batch_size": self._batches(loaded, passes),
            "difference": differences,
            "extrapolated": False,
            "notes": list(loaded.batch_size.notes),
        }

    def _row(
        self, name: str, seconds: dict[str, float], passes: dict[str, int], first: float
    ) -> dict[str, Any]:
        """What all rows have; called right after the repeats, for the peak."""
        flops = self.flops * passes["total"]
        floor = flops / self.rate
        slowest = self._sequential_seconds
        return {
            "name": name,
            "seconds": seconds,
            "seconds_per_forward": seconds["total"] / passes["total"],
            "peak_gib": _peak(self.device),
            "forwards": passes,
            "flops": flops,
            "floor_seconds": floor,
            "floor_share": floor / seconds["total"],
            "times_faster": None if slowest is None else slowest / seconds["total"],
            "first_seconds": first,
        }

    def _batches(self, loaded: pa.Model, passes: dict[str, int]) -> dict[str, int]:
        """How many passes at most go together, of each kind."""
        kinds = ("collect", "elbo")
        return {k: min(loaded.batch_size.of(self.model.latents, k), passes[k]) for k in kinds}

    def sweep(
        self, counts: Sequence[int], kind: str, models: dict[str, pa.Model]
    ) -> list[dict[str, Any]]:
        """Seconds and passes for several numbers of classes."""
        rows = []
        for count in counts:
            row: dict[str, Any] = {"classes": count}
            for name, loaded in models.items():
                work = (loaded, self.model.latents, self.model.names[:count], CONFIGS[kind])
                passes = passes_of(align_once(*work))
                _free(self.device)
                seconds = _median(
                    align_once(*work).provenance["seconds"] for _ in range(self.repeats)
                )
                row[name] = {
                    "seconds": seconds,
                    "seconds_per_forward": seconds["total"] / passes["total"],
                    "forwards": passes,
                    "peak_gib": _peak(self.device),
                }
            rows.append(row)
        return rows

    def many(self, count: int, loaded: pa.Model) -> dict[str, Any]:
        """Passes of many small alignments together, against those of one large one."""
        model, config = self.model, CONFIGS["elbo"]
        picture = Image.new("RGB", model.backbone.native_size[::-1])

        def encoded(index: int) -> EncodedImage:
            shifted = model.latents.roll(index, -1)
            return EncodedImage(picture, shifted, config.resize, model.pipe.vae)

        images = [encoded(index) for index in range(count)]
        span = len(model.names) - MANY_CLASSES
        classes = [
            list(model.names[index % span :][: 1 + index % MANY_CLASSES]) for index in range(count)
        ]
        ten = list(model.names[:SINGLE_CLASSES])
        together = self._timed(lambda: loaded.align(images, classes, config=config), repeats=1)
        single = self._timed(
            lambda: [loaded.align(images[0], ten, config=config)], repeats=self.repeats
        )
        return {
            "images": count,
            "classes": f"1 to {MANY_CLASSES}",
            **together,
            "seconds_per_image": together["seconds"] / count,
            "single": {"classes": len(ten), **single},
            "ratio_per_forward": together["seconds_per_forward"] / single["seconds_per_forward"],
        }

    def _timed(self, work: Callable[[], list[Any]], repeats: int) -> dict[str, Any]:
        """Median seconds of an `Model.align`, after a warm-up, and its passes."""
        passes = sum(sum(one.provenance["forwards"].values()) for one in work())
        _free(self.device)
        seconds = []
        for _ in range(repeats):
            clock = Clock(self.device)
            work()
            clock.lap("all")
            seconds.append(clock.laps["all"])
        middle = statistics.median(seconds)
        return {
            "forwards": passes,
            "seconds": middle,
            "seconds_per_forward": middle / passes,
            "peak_gib": _peak(self.device),
        }

    def record(self) -> dict[str, Any]:
        """With what the rows were made."""
        cuda = self.device.type == "cuda"
        said = self.model.backbone.record()
        return {
            "device": torch.cuda.get_device_name(self.device) if cuda else platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "diffusers": diffusers.__version__,
            **{name: said[name] for name in ("dtype", "weights_dtype") if name in said},
            "classes": len(self.names),
            "latents": list(self.model.latents.shape),
            "parameters": self.model.parameters(),
            "resident_gib": round(torch.cuda.memory_allocated(self.device) / 2**30, 3)
            if cuda
            else None,
            "flops_per_forward": self.flops,
            "flops_before_text": self.shareable,
            "matrix_flops_per_second": self.rate,
            "repeats": self.repeats,
        }


def _median(seconds: Iterable[dict[str, float]]) -> dict[str, float]:
    """The median of the total and of every part."""
    runs = list(seconds)
    return {part: statistics.median(run[part] for run in runs) for part in ("total", *PARTS)}


def _plain(value: Tensor) -> float | None:
    """A number that JSON has; None for NaN and infinity."""
    number = float(value)
    return number if math.isfinite(number) else None


def _attempt(name: str, work: Callable[[], Any]) -> Any:
    """What the work gives, or the error it ended with: the rows after it still run."""
    try:
        return work()
    except Exception as error:
        print(f"{name} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return {"name": name, "error": f"{type(error).__name__}: {error}".split("\n")[0]}


# ---- the command ----


def first_result(args: argparse.Namespace) -> float:
    """Seconds to the first compiled result of a model that is built, in this process."""
    model = build(args.arch, args.device, args.dtype)
    loaded, names = pa.load(model.backbone, compile=args.compile), model.names[: args.classes]
    clock = Clock(model.latents.device)
    align_once(loaded, model.latents, names, CONFIGS["fast"])
    clock.lap("first")
    return clock.laps["first"]


def again(args: argparse.Namespace) -> dict[str, Any]:
    """`first_result` in another process, which finds what this one has compiled."""
    names = ("arch", "classes", "device", "dtype", "compile")
    options = [part for name in names for part in (f"--{name}", str(getattr(args, name)))]
    command = [sys.executable, __file__, *options, "--first"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().split("\n")[-1])
    return {"seconds": float(done.stdout.strip().split("\n")[-1])}


def measure(args: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """All rows that were asked for, as one JSON-able record; ``keep`` is given what is there."""
    model = build(args.arch, args.device, args.dtype)
    bench = Bench(model, args.classes, args.repeats)
    record = {"arch": args.arch, **bench.record()}
    models = {"": bench.loaded()}
    if args.compile:
        models[", compiled"] = bench.loaded(compile=args.compile)
    rows: dict[str, Callable[[], Any]] = {}
    if not args.no_sequential:
        rows["sequential"] = lambda: bench.sequential(args.seconds_limit)
    for how, loaded in models.items():
        for kind in args.kinds:
            rows[kind + how] = lambda kind=kind, how=how, loaded=loaded: bench.ours(
                kind, kind + how, loaded
            )
    # What depends on the number of classes or of passes at once is measured by one kind of row.
    chosen = "dense" if "dense" in args.kinds else args.kinds[-1]
    special = {f"{chosen}, batches of {size}": {"batch_size": size} for size in args.batches}
    if args.memory == "low":
        special[f"{chosen}, low"] = {"memory": "low"}
    for name, options in special.items():
        rows[name] = lambda name=name, options=options: bench.ours(
            chosen, name, bench.loaded(**options)
        )
    if args.offload:
        bench.offload(args.offload)
        record |= {"offload": args.offload, "resident_gib": bench.record()["resident_gib"]}
    record["rows"] = []
    for name, work in rows.items():
        record["rows"].append(_attempt(name, work))
        keep(record)
    if args.again:
        record["again"] = _attempt("again", lambda: again(args))
        keep(record)
    failed = {row["name"] for row in record["rows"] if "error" in row}
    working = {chosen + how: loaded for how, loaded in models.items() if chosen + how not in failed}
    if args.sweep:
        low = {f"{chosen}, low": bench.loaded(memory="low")} if args.memory == "low" else {}
        swept = working | low
        record["sweep"] = _attempt("sweep", lambda: bench.sweep(args.sweep, chosen, swept))
    if args.many:
        record["many"] = {
            name: _attempt("many", lambda loaded=loaded: bench.many(args.many, loaded))
            for name, loaded in working.items()
        }
    return record


def failures(record: dict[str, Any]) -> int:
    """How many of a record's measurements ended with an error."""
    sweep = record.get("sweep", {})
    parts = [*record["rows"], *record.get("many", {}).values(), sweep, record.get("again", {})]
    return sum("error" in part for part in parts if isinstance(part, dict))


def table(record: dict[str, Any]) -> str:
    """The record for people."""
    parameters = record["parameters"]["network"] / 1e6
    lines = [
        f"{record['arch']}, {record['classes']} classes, {parameters:.0f} M parameters, "
        f"{record['dtype']}, {record['device']} ({record['threads']} CPU threads), "
        f"torch {record['torch']}, diffusers {record['diffusers']}",
        f"{record['flops_per_forward'] / 1e12:.4g} TFLOP a forward "
        f"({record['flops_before_text'] / record['flops_per_forward']:.1%} before a text), "
        f"products at {record['matrix_flops_per_second'] / 1e12:.4g} TFLOP/s, "
        f"median of {record['repeats']}",
        "",
        f"{'row':<20}{'total s':>9}{'elbo':>9}{'collect':>9}{'heatmaps':>9}{'GiB':>7}{'passes':>8}"
        f"{'batch':>7}{'floor s':>9}{'share':>7}{'faster':>8}{'losses':>9}{'heat':>9}{'same S':>9}"
        f"{'first s':>9}",
        *(_line(row) for row in record["rows"]),
    ]
    if any(row.get("extrapolated") for row in record["rows"]):
        lines += ["* extrapolated from a part of its passes"]
    if isinstance(record.get("sweep"), list):
        lines += ["", "classes  row                   passes   total s  ms a pass      GiB"]
        lines += [
            f"{row['classes']:>7}  {name:<20}{part['forwards']['total']:>8}"
            f"{part['seconds']['total']:>10.3f}{1e3 * part['seconds_per_forward']:>11.3f}"
            f"{_number(part['peak_gib'], '.2f'):>9}"
            for row in record["sweep"]
            for name, part in row.items()
            if name != "classes"
        ]
    for name, part in record.get("many", {}).items():
        if "error" not in part:
            lines += [
                "",
                f"{name}: {part['images']} images of {part['classes']} classes: "
                f"{part['seconds_per_image']:.3f} s an image, "
                f"{1e3 * part['seconds_per_forward']:.3f} ms a pass, "
                f"{part['ratio_per_forward']:.2f} times that of one image of "
                f"{part['single']['classes']} classes",
            ]
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['name']:<20}{row['error']}"
    seconds, apart = row["seconds"], row["difference"] or {}
    return (
        f"{row['name'] + '*' * row['extrapolated']:<20}"
        + "".join(f"{seconds[part]:>9.3f}" for part in ("total", "elbo", "collect", "heatmaps"))
        + f"{_number(row['peak_gib'], '.2f'):>7}{row['forwards']['total']:>8}"
        + f"{row['batch_size']['elbo']:>7}{row['floor_seconds']:>9.3f}{row['floor_share']:>7.1%}"
        + f"{_number(row['times_faster'], '.2f'):>8}{_number(apart.get('losses'), '.1e'):>9}"
        + f"{_number(apart.get('heatmaps'), '.1e'):>9}"
        + f"{_number(apart.get('heatmaps_same_scores'), '.1e'):>9}{row['first_seconds']:>9.2f}"
    )


def _number(value: float | None, style: str) -> str:
    return "-" if value is None else format(value, style)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arch", choices=ARCHITECTURES, required=True)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--device", default="auto", help="cuda, cpu or auto")
    parser.add_argument("--dtype", default="auto", choices=DTYPES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--compile", nargs="?", const="inductor", metavar="BACKEND", help="add the row compiled"
    )
    parser.add_argument("--memory", choices=("normal", "low"), default="normal")
    parser.add_argument(
        "--kinds", nargs="+", choices=CONFIGS, default=list(CONFIGS), help="pixalign's rows"
    )
    parser.add_argument(
        "--batches", nargs="*", type=int, default=[], help="add a row for each size of a batch"
    )
    parser.add_argument(
        "--offload", choices=("model", "group"), help="keep the pipeline in main memory"
    )
    parser.add_argument("--sweep", default="", help="numbers of classes: 1,5,10,20,50")
    parser.add_argument("--many", type=int, default=0, help="images of 1 to 6 classes, together")
    parser.add_argument(
        "--seconds-limit", type=float, help="a sequential run that takes longer is extrapolated"
    )
    parser.add_argument("--no-sequential", action="store_true", help="leave that row out")
    parser.add_argument("--again", action="store_true", help="compile again in a second process")
    parser.add_argument("--first", action="store_true", help="print the first call's seconds alone")
    parser.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    args = parser.parse_args(arguments)
    try:
        args.sweep = [int(count) for count in args.sweep.split(",") if count]
    except ValueError:
        parser.error(f"--sweep is {args.sweep!r}; allowed: whole numbers with commas between")
    most = len(names_of(args.arch))
    if not all(1 <= count <= most for count in (args.classes, *args.sweep)):
        parser.error(f"--classes and --sweep are from 1 to {most}")
    least = min([args.repeats, *args.batches])
    if least < 1 or args.many < 0 or (args.seconds_limit or 1) <= 0:
        parser.error("--repeats, --batches, --many and --seconds-limit are positive")
    if args.offload and not args.no_sequential:
        parser.error("--offload needs --no-sequential: that row reads a model that stays in place")
    return args


def _json(record: dict[str, Any]) -> str:
    return json.dumps(record, indent=1, allow_nan=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say by 0 or 1 whether every row worked."""
    args = parsed(arguments)
    if args.first:
        print(first_result(args))
        return 0

    def keep(record: dict[str, Any]) -> None:
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(_json(record) + "\n", encoding="utf-8")

    record = measure(args, keep)
    keep(record)
    print(_json(record) if args.json else table(record))
    return min(1, failures(record))


if __name__ == "__main__":
    sys.exit(main())

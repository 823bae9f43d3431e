"""Weights of fewer bits: what they change on the lab's models, and what they save on large ones.

python benchmarks/number_types.py --out docs/speed/numbers
python benchmarks/number_types.py --out docs/speed/numbers --models --archs sdxl flux --device cuda

By model, each type is compared with float32 on test scenes, with the same noise: the losses of the
scene's classes and of absent ones, the order of all pairs of them by their ELBO, the heatmaps and
mIoU of "dense" and "elbo". "int8" and "float8" are weights of a byte with a scale for each 32 of
them, computed in float32. "float8, dynamic" is torchao's: activations too are rounded, layer by
layer, and products are float8; it needs a GPU and torchao, and computes the rest in bfloat16.
float16 is slow on a CPU, and left out there.

By architecture (random weights, benchmarks/architectures.py): GiB of the model at rest and at most,
and seconds, of `AlignConfig.fast()`. The large shapes compute in their family's half type.

OUT/lab-NAME.json and OUT/ARCH.json are written anew after each row. --toy is a run of a minute on
one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from architectures import ARCHITECTURES, build
from speed import Bench
from torch import Tensor, nn

import pixalign as pa
from lab.measured import scene_groups
from pixalign import AlignConfig
from pixalign.alignment.elbo import text_errors
from pixalign.alignment.plan import plan_prompts
from pixalign.backbones.load import hide_loading_bars, resolve_device
from pixalign.backbones.weights import Int8Weight, byte_layers, keep_as_int8
from pixalign.bench.generation_study import result_name
from pixalign.bench.metrics import Tally, bootstrap_weights, figures, interval, tally
from pixalign.bench.subject import Subject
from pixalign.core.files import make_folder, write_json
from pixalign.core.progress import Progress
from pixalign.core.provenance import device_name, versions
from pixalign.methods import METHODS
from pixalign.scenes.atlas import class_names

REFERENCE = "float32"
HALF = ("bfloat16", "float16")
BYTES = ("int8", "float8")
FLOAT8 = torch.float8_e4m3fn
DYNAMIC = "float8, dynamic"
TYPES = (REFERENCE, *HALF, *BYTES, DYNAMIC)
METHODS_ASKED = ("elbo", "dense")
MODELS = ("lab:sd1", "lab:sd2", "lab:sdxl", "lab:sd3", "lab:flux")
DRAWS = 1000


# ---- models of each type ----


def of_type(model: str, kind: str, device: str) -> pa.Model:
    """A model whose weights are of a type."""
    number = kind if kind in HALF else "bfloat16" if kind == DYNAMIC else REFERENCE
    loaded = pa.load(model, device=device, dtype=number)
    retyped(loaded.pipe, kind)
    return loaded


def retyped(pipe: Any, kind: str) -> None:
    """Give a pipeline's networks weights of a type that is no number type of torch's layers."""
    if kind == "int8":
        keep_as_int8(pipe)
    elif kind == "float8":
        for layer in byte_layers(pipe):
            layer.weight.data.copy_(as_float8(layer.weight.data))
    elif kind == DYNAMIC:
        from torchao.quantization import (
            Float8DynamicActivationFloat8WeightConfig,
            PerRow,
            quantize_,
        )

        def fits(layer: nn.Module, name: str) -> bool:
            return isinstance(layer, nn.Linear) and not any(
                side % 16 for side in layer.weight.shape
            )

        network = getattr(pipe, "unet", None) or pipe.transformer
        how = Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())
        quantize_(network, how, filter_fn=fits)


def as_float8(weight: Tensor) -> Tensor:
    """The nearest weight of float8 (e4m3) numbers, with a scale for each group of int8's."""
    scales = Int8Weight().right_inverse(weight)[1].float() * 127 / torch.finfo(FLOAT8).max
    groups = weight.float().reshape(*scales.shape[:2], -1) / scales
    return (groups.to(FLOAT8).float() * scales).reshape(weight.shape).to(weight.dtype)


def left_out(kind: str, device: torch.device) -> str | None:
    """Why a type cannot be measured here, if it cannot."""
    if device.type != "cuda" and kind in ("float16", DYNAMIC):
        return "needs a GPU"
    if kind == DYNAMIC:
        try:
            import torchao.quantization  # noqa: F401
        except Exception as error:  # packages without their compiled parts fail in many ways
            return f"torchao is not to be had: {type(error).__name__}: {error}".split("\n")[0]
    return None


# ---- quality ----


class Measured:
    """What a model says of scenes: a list with an entry a scene, of each kind."""

    def __init__(self) -> None:
        self.losses: list[np.ndarray] = []  # [N, T], the scene's own classes before absent ones
        self.present: list[int] = []
        self.heatmaps: dict[str, list[np.ndarray]] = {name: [] for name in METHODS_ASKED}
        self.tallies: dict[str, list[Tally]] = {name: [] for name in METHODS_ASKED}


def measured(model: pa.Model, scenes: int, absent: int) -> Measured:
    """Losses and maps of test scenes; each is asked for so many absent classes too."""
    found = Measured()
    for group, latents in scene_groups(model, "test", scenes):
        for subject, own in zip(group, latents, strict=True):
            found.losses.append(losses_of(model, subject, own[None], absent))
            found.present.append(len(subject.phrases))
            methods = {name: METHODS[name](model) for name in METHODS_ASKED}
            encoded = model.encode(subject.sample.image)
            names = [phrase.name for phrase in subject.phrases]
            asked = methods["dense"].measure(encoded, names, seed=subject.seed)
            labels = [label + 1 for label in subject.labels]
            for name, method in methods.items():
                maps = method.conclude(asked).heatmaps
                found.heatmaps[name].append(maps)
                counts = tally(torch.from_numpy(maps)[None], subject.truth, labels, subject.index)
                found.tallies[name] += counts
    return found


def losses_of(model: pa.Model, subject: Subject, latents: Tensor, absent: int) -> np.ndarray:
    """float32 [N, T] of a scene's classes and of some that are not in it, with one noise."""
    config = model.resolve(AlignConfig(), "elbo")
    own = [phrase.name for phrase in subject.phrases]
    others = [name for name in class_names() if name not in own]
    drawn = np.random.default_rng(subject.seed).permutation(len(others))[:absent]
    plan = plan_prompts(model.backbone, [*own, *(others[n] for n in drawn)], None, config)
    timesteps = subject.timesteps(model.backbone, latents, config)[1]
    assert timesteps is not None
    about = (model.batch_size, Progress(0, "", show=False))
    (errors,) = text_errors(model.backbone, latents, [plan.elbo_texts], [timesteps], *about)
    rows: np.ndarray = errors.of(plan.elbo_texts).losses.numpy()
    return rows


def agreeing(found: Measured, reference: Measured, only: str = "all") -> Iterator[tuple[int, int]]:
    """Of each scene, how many pairs of classes stand in the reference's order, and of how many.

    ``only`` "present" are pairs of classes that are in the picture, "mixed" pairs of one that is
    and one that is not.
    """
    for own, other, present in zip(found.losses, reference.losses, found.present, strict=True):
        first, second = np.triu_indices(len(own), 1)
        kinds = {
            "all": first >= 0,
            "present": second < present,
            "mixed": (first < present) & (second >= present),
        }
        ours, theirs = (rows.astype(np.float64).mean(1) for rows in (own, other))
        same = np.sign(ours[first] - ours[second]) == np.sign(theirs[first] - theirs[second])
        yield int(same[kinds[only]].sum()), int(kinds[only].sum())


def share(counts: Sequence[tuple[int, int]]) -> dict[str, float]:
    """The pooled share in percent, with a 95 % interval over scenes."""
    table = torch.tensor(counts, dtype=torch.float64)
    drawn = bootstrap_weights(len(table), DRAWS) @ table
    low, high = interval(100 * drawn[:, 0] / drawn[:, 1])
    same, pairs = table.sum(0).tolist()
    return {"value": 100 * same / pairs, "low": low, "high": high, "pairs": int(pairs)}


def quality(found: Measured, reference: Measured, threshold: float) -> dict[str, Any]:
    """How far a type's results are from the reference's, and from the truth."""
    apart = [
        np.abs(own.astype(np.float64) / other - 1).ravel()
        for own, other in zip(found.losses, reference.losses, strict=True)
    ]
    losses = np.concatenate(apart)
    order = {
        kind: share(list(agreeing(found, reference, kind))) for kind in ("all", "present", "mixed")
    }
    weights = bootstrap_weights(len(found.losses), DRAWS)
    maps = {}
    for name in METHODS_ASKED:
        pairs = zip(found.heatmaps[name], reference.heatmaps[name], strict=True)
        differences = [np.abs(own - other) for own, other in pairs]
        ours, theirs = (
            figures(Tally.concatenate(each.tallies[name]), weights, threshold)
            for each in (found, reference)
        )
        low, high = interval(ours[1] - theirs[1])
        maps[name] = {
            "heatmaps_mean": float(np.mean([each.mean() for each in differences])),
            "heatmaps_max": float(max(each.max() for each in differences)),
            "miou": ours[0].miou,
            "minus": {"value": ours[0].miou - theirs[0].miou, "low": low, "high": high},
        }
    return {
        "losses": {"median": float(np.median(losses)), "max": float(losses.max())},
        "order": order,
        "maps": maps,
    }


def run_model(model: str, given: argparse.Namespace) -> dict[str, Any]:
    """All rows of one lab model."""
    device = resolve_device(given.device)
    record = about(given, device) | {"scenes": given.scenes, "absent": given.absent}
    reference: Measured | None = None
    for kind in dict.fromkeys((REFERENCE, *given.types)):
        print(f"{model}, {kind}", flush=True)

        def row(kind: str = kind) -> dict[str, Any]:
            nonlocal reference
            loaded = of_type(model, kind, given.device)
            record["model"] = result_name(loaded)
            found = measured(loaded, given.scenes, given.absent)
            reference = reference or found
            return quality(found, reference, loaded.resolve(AlignConfig()).threshold)

        record["rows"][kind] = attempt(kind, device, row)
        if reference is None:
            raise SystemExit(f"{model} cannot be measured: {record['rows'][kind]['left_out']}")
        write_json(given.out / f"lab-{record['model']}.json", record)
    return record


def attempt(kind: str, device: torch.device, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A type's row, or why it is left out; the rows after it are still measured."""
    reason = left_out(kind, device)
    if reason is not None:
        return {"left_out": reason}
    try:
        return work()
    except Exception as error:
        return {"left_out": f"{type(error).__name__}: {error}".split("\n")[0]}


# ---- memory and time ----


def run_arch(arch: str, given: argparse.Namespace) -> dict[str, Any]:
    """All rows of one architecture: GiB at rest and at most, and seconds."""
    device = resolve_device(given.device)
    record = {"arch": arch, **about(given, device), "classes": given.classes}
    for kind in dict.fromkeys(given.types):
        if kind in (REFERENCE, "float8"):
            continue  # large models do not run in float32; weights of float8 take what int8's do
        print(f"{arch}, {kind}", flush=True)
        record["rows"][kind] = attempt(kind, device, lambda kind=kind: arch_row(arch, kind, given))
        write_json(given.out / f"{arch}.json", record)
    return record


def arch_row(arch: str, kind: str, given: argparse.Namespace) -> dict[str, Any]:
    """One type on one architecture."""
    model = build(arch, given.device, kind if kind in (*HALF, "int8") else "auto")
    if kind == DYNAMIC:
        retyped(model.pipe, kind)
    bench = Bench(model, given.classes, given.repeats)
    row = bench.ours("fast", "fast", bench.loaded())
    return {
        "dtype": str(model.backbone.dtype).removeprefix("torch."),
        "resident_gib": bench.record()["resident_gib"],
        "weights_gib": round(weight_bytes(model.pipe) / 2**30, 3),
        **{name: row[name] for name in ("peak_gib", "seconds", "forwards", "batch_size")},
    }


def weight_bytes(pipe: Any) -> int:
    """Bytes of all weights of a pipeline, and of what other libraries' tensors are made of."""

    def size(weight: Tensor) -> int:
        if not hasattr(weight, "__tensor_flatten__"):
            return weight.numel() * weight.element_size()
        return sum(size(getattr(weight, name)) for name in weight.__tensor_flatten__()[0])

    parts = [part for part in pipe.components.values() if isinstance(part, nn.Module)]
    return sum(size(weight.data) for part in parts for weight in part.state_dict().values())


# ---- the whole ----


def about(given: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """With what rows were made."""
    return {"device": device_name(device), "versions": versions(), "rows": {}}


def print_model(record: Mapping[str, Any]) -> None:
    """A line a row."""
    print(f"{record['model']}, {record['scenes']} scenes, {record['device']}")
    for kind, row in record["rows"].items():
        if "left_out" in row:
            print(f"  {kind:<16}{row['left_out']}")
            continue
        losses, order, dense = row["losses"], row["order"]["all"], row["maps"]["dense"]
        gap = dense["minus"]
        print(
            f"  {kind:<16}losses {losses['median']:.1e}, at most {losses['max']:.1e}; order "
            f"{order['value']:.2f} % ({order['low']:.2f} to {order['high']:.2f}) of "
            f"{order['pairs']}; dense {dense['miou']:.2f}, {gap['value']:+.2f} "
            f"({gap['low']:+.2f} to {gap['high']:+.2f})"
        )


def print_arch(record: Mapping[str, Any]) -> None:
    """A line a row."""
    print(f"{record['arch']}, {record['classes']} classes, {record['device']}")
    for kind, row in record["rows"].items():
        said = row.get("left_out") or (
            f"weights {row['weights_gib']} GiB, at rest {row['resident_gib']}, at most "
            f"{row['peak_gib']}, {row['seconds']['total']:.2f} s"
        )
        print(f"  {kind:<16}{said}")


TOY = {"models": ["lab:sd2"], "archs": ["tiny"], "scenes": 2, "absent": 2, "classes": 2}


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare the types on some lab models and architectures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--archs", nargs="*", default=[], choices=ARCHITECTURES)
    parser.add_argument("--types", nargs="+", default=list(TYPES), choices=TYPES)
    parser.add_argument("--scenes", type=int, default=60)
    parser.add_argument("--absent", type=int, default=12, help="absent classes asked for in each")
    parser.add_argument("--classes", type=int, default=10, help="of architectures")
    parser.add_argument("--repeats", type=int, default=3, help="of architectures")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--toy", action="store_true", help=f"{TOY}")
    given = parser.parse_args(arguments)
    if given.toy:
        vars(given).update(TOY)
    make_folder(given.out)
    hide_loading_bars()
    for model in given.models:
        print_model(run_model(model, given))
    for arch in given.archs:
        print_arch(run_arch(arch, given))


if __name__ == "__main__":
    main()

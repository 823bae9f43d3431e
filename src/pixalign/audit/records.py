"""What one picture says of a model: a record that is kept, and small pictures for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pixalign.alignment.heatmaps import layer_correlations
from pixalign.alignment.result import Alignment
from pixalign.bench.metrics import IGNORE
from pixalign.config import AlignConfig
from pixalign.core.maps import resize
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import Phrase
from pixalign.methods.attention import Attention
from pixalign.methods.dense import Dense
from pixalign.methods.elbo import Elbo, Measurement
from pixalign.pictures.drawing import tinted
from pixalign.pictures.pages import data_uri

METHODS: tuple[type[Elbo], ...] = (Attention, Elbo, Dense)  # before, the paper's, ours
SIDE = 160  # pixels of a small picture
Record = dict[str, Any]


def measured_results(
    model: AlignmentModel,
    image: Any,
    phrases: Sequence[Phrase],
    config: AlignConfig,
    seed: int,
    further: Sequence[str] = (),
) -> tuple[dict[str, Alignment], Measurement]:
    """What each of `METHODS` makes of a picture, by name; the network is asked once for all.

    The errors under ``further`` texts are measured in the same passes.
    """
    backbone = model.backbone
    with backbone.lock:
        encoded = model.encode(image, config=config)
        measured = Dense(model).measure(encoded, phrases, config=config, seed=seed, further=further)
        results = {kind.name: kind(model).conclude(measured, config) for kind in METHODS}
    return results, measured


def picture_record(
    model: AlignmentModel,
    image: Any,
    phrases: Sequence[Phrase],
    config: AlignConfig,
    seed: int,
    truth: NDArray[np.int64] | None = None,
) -> Record:
    """All that an audit keeps of a picture; ``truth`` [H, W] is by number of the phrases.

    0 is the background, IGNORE is not counted. Without phrases, all that is true is background.
    """
    if not phrases:
        assert truth is not None
        empty = [[int((truth == 0).sum())]]
        return {"classes": [], "layers": {}, "pixels": {kind.name: empty for kind in METHODS}}
    results, measured = measured_results(model, image, phrases, config, seed)
    record: Record = {
        "classes": class_records(results),
        "layers": layer_record(results[Dense.name], measured),
    }
    picture = results[Dense.name].image
    shown = {"picture": picture}
    if truth is not None:
        record["pixels"] = {
            name: confusion(truth, result.mask(), len(phrases)) for name, result in results.items()
        }
        shown["truth"] = tinted(picture, np.where(truth == IGNORE, 0, truth))
    shown |= {name: tinted(picture, results[name].mask()) for name in ("attention", "dense")}
    return record | {"shown": {name: thumbnail(each) for name, each in shown.items()}}


def class_records(results: Mapping[str, Alignment]) -> list[Record]:
    """A row a class: its verdict and the numbers behind it, and what else needs no mask.

    ``agreement`` is the correlation of attention with the evidence, ``overlap`` the IoU of the
    masks by attention and by "dense", ``confidence`` the mean probability of the pixels that
    "dense" gives the class, ``share`` their share of the picture.
    """
    attention, dense = results[Attention.name], results[Dense.name]
    assert dense.trust is not None
    assert dense.evidence is not None
    agreement = agreements(attention.heatmaps, dense.evidence)
    before, after, sure = attention.mask(), dense.mask(), dense.confidence()
    rows = []
    for index, (phrase, verdict) in enumerate(zip(dense.phrases, dense.trust, strict=True)):
        own, other = after == index + 1, before == index + 1
        rows.append(
            {
                "name": phrase.name,
                "verdict": verdict.verdict,
                "other": verdict.other,
                **{name: rounded(value) for name, value in verdict.numbers.items()},
                "strength": rounded(float(results[Elbo.name].scores[index])),
                "agreement": agreement[index],
                "overlap": rounded(float((own & other).sum() / max(1, (own | other).sum()))),
                "confidence": rounded(float(sure[own].mean())) if own.any() else 0.0,
                "share": rounded(float(own.mean())),
            }
        )
    return rows


def agreements(heatmaps: NDArray[np.float32], evidence: NDArray[np.float32]) -> list[float | None]:
    """Of each class the correlation over places of its heatmap [H, W] and evidence [h, w].

    Both minus their means over the classes, which leaves nothing of a class that stands alone.
    """
    if len(heatmaps) < 2:
        return [None] * len(heatmaps)
    size = (evidence.shape[-2], evidence.shape[-1])
    maps, lead = resize(torch.from_numpy(heatmaps), size), torch.from_numpy(evidence)
    one, two = (_centred(each.double()) for each in (maps, lead))
    scale = (one.norm(dim=1) * two.norm(dim=1)).clamp_min(torch.finfo(torch.float64).tiny)
    return [rounded(value) for value in ((one * two).sum(1) / scale).tolist()]


def _centred(maps: Tensor) -> Tensor:
    """[N, h * w]: minus the mean over the classes, then over the places."""
    flat = (maps - maps.mean(0, keepdim=True)).flatten(1)
    return flat - flat.mean(1, keepdim=True)


def layer_record(dense: Alignment, measured: Measurement) -> dict[str, float]:
    """By layer the correlation of its maps with the evidence; nothing of a single class."""
    if len(dense.phrases) < 2 or dense.evidence is None:
        return {}
    values = layer_correlations(measured.maps, torch.from_numpy(dense.evidence)).tolist()
    return dict(zip(measured.maps.layers.names, map(rounded, values), strict=True))


def confusion(truth: NDArray[np.int64], mask: NDArray[Any], count: int) -> list[list[int]]:
    """Pixels [N + 1, N + 1] of N classes by what they are (rows) and what they are called.

    Row and column 0 are the background; what is IGNORE in the truth does not count.
    """
    known, size = truth != IGNORE, count + 1
    places = truth[known] * size + mask[known].astype(np.int64)
    counts: list[list[int]] = np.bincount(places, minlength=size**2).reshape(size, size).tolist()
    return counts


def thumbnail(image: Image.Image) -> str:
    """A small picture as text for a page."""
    small = image.convert("RGB")
    small.thumbnail((SIDE, SIDE))
    return data_uri(small, "webp")


def rounded(value: float) -> float:
    """Six significant digits."""
    return float(f"{value:.6g}")

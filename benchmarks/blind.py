"""Does a map's peak over its mean tell whether a class is in the picture at all?

python benchmarks/blind.py --count 90 --device auto

Each val scene is asked for its own classes and one that is not in it, uncalibrated. Prints the
activations of both kinds and how many of each lie below some bounds (``min_peak_ratio``).
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from lab.study import native_size
from pixalign.alignment.aligner import Aligner
from pixalign.alignment.heatmaps import activation
from pixalign.alignment.plan import plan_prompts, plan_timesteps
from pixalign.alignment.collect import attention_maps
from pixalign.attention.layers import combine_layers
from pixalign.backbones.load import hide_loading_bars
from pixalign.config import AlignConfig
from pixalign.core.progress import Progress
from pixalign.scenes.atlas import class_names
from pixalign.scenes.draw import draw_scenes
from pixalign.scenes.labelled import labelled_scenes

BOUNDS = (1.2, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0)
_CHUNK = 24


def main(arguments: list[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Measure and print; activations of the classes that are there and of those that are not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=90)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args(arguments)
    hide_loading_bars()
    aligner = Aligner.from_pretrained(device=args.device, dtype="float32")
    backbone, names = aligner.backbone, class_names()
    config = AlignConfig.uncalibrated().resolved(backbone.family, aligner.own)
    assert config.cross_weights is not None
    scenes, rng = draw_scenes("val", args.count), np.random.default_rng(0)
    present, absent = [], []
    with Progress(len(scenes), "scenes", True, "scene") as progress:
        for first in range(0, len(scenes), _CHUNK):
            part = scenes[first : first + _CHUNK]
            group = labelled_scenes(part, native_size(aligner), str(backbone.device), first=first)
            others = [rng.choice(np.setdiff1d(np.arange(len(names)), s.labels)) for s in group]
            words = [
                plan_prompts(backbone, [*s.names, names[other]], None, config)
                for s, other in zip(group, others, strict=True)
            ]
            latents = backbone.encode_image(torch.stack([s.picture for s in group]) * 2 - 1)
            visits = [
                plan_timesteps(
                    backbone.schedule, latents[:1], config, torch.Generator().manual_seed(s.number)
                )[0]
                for s in group
            ]
            how = (config, aligner.batch_size, Progress(0, "", show=False))
            for maps in attention_maps(backbone, latents, words, visits, *how):
                combined = combine_layers(maps.cross, maps.layers, config.cross_weights)
                *there, last = activation(combined).tolist()
                present += there
                absent.append(last)
            progress.advance(len(group))
    kinds = {"present": np.array(present), "absent": np.array(absent)}
    for kind, values in kinds.items():
        low, median, high = np.quantile(values, [0, 0.5, 1])
        print(f"{kind:<8} {len(values):>4} classes: {low:.1f} to {high:.1f}, median {median:.1f}")
    for bound in BOUNDS:
        below = ", ".join(f"{kind} {(v < bound).mean():.1%}" for kind, v in kinds.items())
        print(f"below {bound:g}: {below}")
    return kinds["present"], kinds["absent"]


if __name__ == "__main__":
    main()

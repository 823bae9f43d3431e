"""Does a map's peak over its mean tell whether a class is in the picture at all?

python benchmarks/blind.py --count 90 --device auto

Each val scene is asked for its own classes and one that is not in it, uncalibrated. Prints the
activations of both kinds and how many of each lie below some bounds (``min_peak_ratio``).
"""

from __future__ import annotations

import argparse

import numpy as np

import pixalign as pa
from lab.measured import scene_attention, scene_groups
from pixalign.alignment.heatmaps import activation
from pixalign.attention.layers import combine_layers
from pixalign.backbones.load import hide_loading_bars
from pixalign.scenes.atlas import class_names

BOUNDS = (1.2, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0)


def main(arguments: list[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Measure and print; activations of the classes that are there and of those that are not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=90)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args(arguments)
    hide_loading_bars()
    model, names = pa.load(device=args.device, dtype="float32"), class_names()
    config = model.resolve(pa.AlignConfig.uncalibrated())
    assert config.cross_weights is not None
    rng = np.random.default_rng(0)
    present, absent = [], []
    for group, latents in scene_groups(model, "val", args.count):
        others = [rng.choice(np.setdiff1d(np.arange(len(names)), s.labels)) for s in group]
        classes = [[*s.phrases, names[k]] for s, k in zip(group, others, strict=True)]
        for maps in scene_attention(model, group, latents, config, classes):
            combined = combine_layers(maps.cross, maps.layers, config.cross_weights)
            *there, last = activation(combined).tolist()
            present += there
            absent.append(last)
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

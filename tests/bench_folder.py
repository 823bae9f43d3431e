"""A spec of many settings, and a folder of pictures to run it on."""

import numpy as np
from PIL import Image

import tiny
from pixalign.bench.datasets import open_dataset
from pixalign.bench.metrics import IGNORE

CLASSES = ("dog", "hot dog", "car", "zebra")


SPEC = """
version: 1
label: tab:none
title: Everything at once
datasets: [folder]
preset: default
baseline: plain
rows:
  - name: plain
    method: attention
    set: {collect_steps: 2}
  - name: default
    set: {elbo_steps: 3, collect_steps: 2}
  - name: five
    set: {elbo_steps: 5, collect_steps: 2}
  - name: strong
    set: {elbo_steps: 3, collect_steps: 2, gamma: 1/5, cross_weights: uniform}
  - name: centred
    set: {elbo_steps: 3, collect_steps: 2, centred: true, elbo_weighting: likelihood}
  - name: random
    set: {elbo_steps: 3, elbo_strategy: random, collect_steps: 2, collect_strategy: random}
  - name: random collecting
    set: {elbo_steps: 3, collect_steps: 2, collect_strategy: random}
  - name: random uncalibrated
    method: attention
    set: {collect_steps: 2, collect_strategy: random}
  - name: dense
    method: dense
    set: {elbo_steps: 3, collect_steps: 2}
  - name: dense fast
    preset: fast
    method: dense
    set: {elbo_steps: 6, collect_steps: 2, evidence_form: error, information_weight: 0.3}
  - name: agreement
    method: attention
    set: {elbo_steps: 3, collect_steps: 2, cross_weights: agreement}
  - name: likelihood
    method: likelihood
    set: {elbo_steps: 3, collect_steps: 2, edges: none}
  - name: exchanged
    method: dense
    set: {elbo_steps: 3, collect_steps: 2}
    evidence: exchanged
  - name: kept
    set: {elbo_steps: 3, collect_steps: 2, resize: keep}
  - name: constant
    set: {collect_steps: 2, centred: false}
    scores: 1/2
"""


def folder_of(root, count, sizes=((48, 40),)):
    """A dataset of pictures of those sizes with 0 to 3 classes each."""
    generator = np.random.default_rng(0)
    for name in ("images", "masks"):
        (root / name).mkdir(parents=True)
    (root / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    for index in range(count):
        width, height = sizes[index % len(sizes)]
        tiny.photo(width, height, index).save(root / "images" / f"{index:03d}.png")
        labels = [0, *generator.permutation(len(CLASSES))[: index % 4] + 1, IGNORE]
        mask = generator.choice(labels, (height // 4, width // 4)).repeat(4, 0).repeat(4, 1)
        Image.fromarray(mask.astype(np.uint8)).save(root / "masks" / f"{index:03d}.png")
    return root


def dataset_of(folder, count, **options):
    """The dataset of a new root in a folder."""
    return open_dataset("folder", folder_of(folder / "data", count, **options))

"""
Measure on pictures of known truth
==================================

The benchmark's metric, on six scenes: IoU pooled over pictures, at every threshold at once.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image

import pixalign as pa
from pixalign.bench.datasets import open_dataset
from pixalign.bench.metrics import THRESHOLDS, Tally, curve, tally, threshold_index

dataset = open_dataset("lab", None, "val", limit=6)
model = pa.load("lab:sd2")
configs = {
    "attention": pa.AlignConfig.uncalibrated(),
    "dense, fast": pa.AlignConfig.fast(),
}

# %%
# Heatmaps become counts of right and wrong pixels at 99 thresholds. Labels are numbers of the
# dataset's classes, from 1.

counts = {name: [] for name in configs}
for index in range(len(dataset)):
    sample = dataset[index]
    labels = [c + 1 for c in sample.present]
    names = [dataset.classes[c] for c in sample.present]
    truth = np.searchsorted([0, *labels], sample.truth)  # 0, 1, 2 ... in this picture
    encoded = model.encode(sample.image)
    results = [model.align(encoded, names, config=config) for config in configs.values()]
    heatmaps = torch.from_numpy(np.stack([result.heatmaps for result in results]))
    for name, part in zip(
        configs, tally(heatmaps, torch.from_numpy(truth), labels, index), strict=True
    ):
        counts[name].append(part)

# %%
# The mean over classes, at the best threshold and at 0.4, and the whole curve:

figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for name, parts in counts.items():
    values = 100 * curve(Tally.concatenate(parts)).miou[0]
    best = int(values.argmax())
    fixed = values[threshold_index(0.4)]
    print(f"{name:<12} best {values[best]:.1f} at {THRESHOLDS[best]:.2f}, at 0.40 {fixed:.1f}")
    axes.plot(THRESHOLDS, values, label=name)
axes.set(xlabel="threshold", ylabel="mIoU in percent")
axes.legend()
figure.canvas.draw()
Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB").show()
plt.close(figure)

"""Folders of pictures to label, and models that take few steps; shared by the tests."""

import numpy as np

import pixalign as pa
import tiny
from pixalign.labelling.run import LabelRequest, OneProcess, Outputs, label_folder

CLASSES = ("dog", "cat", "car")
QUICK = pa.AlignConfig(elbo_steps=2, collect_steps=1)


def write_pictures(folder, count=5, size=(40, 32), suffix=".png"):
    """Pictures 00.png, 01.png ... that differ."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        tiny.photo(*size, seed=index).save(folder / f"{index:02d}{suffix}")
    return folder


def label(model, folder, out, *, classes=CLASSES, config=QUICK, strict=False, **options):
    """`label_folder` in this process."""
    of_request = {k: options.pop(k) for k in ("lists", "seed", "candidates") if k in options}
    phrases = tuple(map(pa.Phrase, classes))
    request = LabelRequest(folder, phrases, config=config, **of_request)
    return label_folder(OneProcess(model), request, out, Outputs(**options), strict=strict)


def contents(run):
    """All that formats can read of a run, to be compared."""
    return [
        (p.key, p.mask.tobytes(), p.segments_map.tobytes(), p.segments, dict(p.record)) for p in run
    ]


def noise_png(path, side=16):
    """A file that begins like a picture and is none."""
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + np.random.default_rng(0).bytes(side * side))

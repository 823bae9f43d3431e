"""The pictures of docs/concepts, from the lab's models: ``python docs/figures.py`` in a checkout.

Every panel is what the library computes: nothing is drawn by hand but the captions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import pixalign as pa
from pixalign.alignment.elbo import text_errors
from pixalign.alignment.evidence import information, local_cosine
from pixalign.alignment.plan import plan_prompts, plan_timesteps
from pixalign.attention import text_layers
from pixalign.core.progress import Progress
from pixalign.core.values import Evidence
from pixalign.diffusion.sampling import to_pictures
from pixalign.pictures.drawing import heat, tinted
from pixalign.pictures.grid import Cell, picture_grid
from pixalign.scenes.labelled import LabelledScene, labelled_scenes
from pixalign.scenes.sample import sample_scenes

FOLDER = Path(__file__).parent / "concepts"
SIDE, TEXT = 168, 14
CROWDED, HIDDEN = 7, 400  # test scenes of the demo


def scene(number: int) -> LabelledScene:
    """A test scene at the models' size."""
    return labelled_scenes(sample_scenes("test", number, 1), 128, number, class_order=True)[0]


def masked(image: Image.Image, mask: np.ndarray) -> Image.Image:
    """A picture with its labels in colours."""
    return tinted(image, mask)


def shown(values: Any) -> Image.Image:
    """A map [h, w] in colours, its lowest value dark and its highest bright."""
    array = np.asarray(values, dtype=np.float32)
    return heat((array - array.min()) / max(float(np.ptp(array)), 1e-9))


def evidence_of(model: pa.Model, picture: LabelledScene) -> tuple[Evidence, pa.AlignConfig]:
    """What each class's text adds at every position, and the config it is read under."""
    config = model.resolve(pa.AlignConfig(), "dense")
    encoded = model.encode(picture.image)
    generator = torch.Generator().manual_seed(0)
    _, noised = plan_timesteps(model.backbone.schedule, encoded.latents, config, generator)
    assert noised is not None
    names = [pa.Phrase(name) for name in picture.names]
    texts = plan_prompts(model.backbone, names, None, config).elbo_texts
    how = (model.backbone, encoded.latents, [texts], [noised], model.batch_size)
    (errors,) = text_errors(*how, Progress(0, "", False), by_position=True)
    return errors.of(texts).evidence(), config


def flow(model: pa.Model) -> Image.Image:
    """From a picture to a mask, in six panels."""
    picture = scene(CROWDED)
    index = picture.names.index("cactus")
    encoded = model.encode(picture.image)
    latents = encoded.latents
    noise = torch.randn(latents.shape, generator=torch.Generator().manual_seed(0))
    steps = model.backbone.schedule.at_positions(torch.tensor([0.1]))
    noisy = steps.noised(latents.cpu(), noise)
    seen = to_pictures(model.backbone.decode_latents(noisy.to(latents)))[0]
    plain = model.align(encoded, picture.names, method="attention")
    ours = model.align(encoded, picture.names)
    assert ours.evidence is not None
    cells: list[Cell] = [
        (picture.image, "1. the picture"),
        (seen, "2. with noise"),
        (shown(plain.heatmaps[index]), "3. attention to “cactus”"),
        (shown(np.maximum(ours.evidence[index], -4)), "4. evidence for it"),
        (shown(ours.heatmaps[index]), "5. heatmap"),
        (masked(picture.image, ours.mask()), "6. mask of all classes"),
    ]
    return picture_grid([cells], side=SIDE, text=TEXT, lines=2)


def attention(model: pa.Model) -> Image.Image:
    """One class's attention in each layer, then all layers together."""
    picture = scene(CROWDED)
    encoded = model.encode(picture.image)
    layers = text_layers(model.backbone.sites).names
    rows = []
    for name in ("camel", "cactus"):
        index = picture.names.index(name)
        cells: list[Cell] = [picture.image]
        for layer in layers:
            config = pa.AlignConfig.uncalibrated(cross_weights={layer: 1.0}, self_attention="none")
            cells.append(shown(model.align(encoded, picture.names, config=config).heatmaps[index]))
        together = model.align(encoded, picture.names, method="attention")
        rows.append([*cells, shown(together.heatmaps[index])])
    headings = ("picture", *layers, "together")
    return picture_grid(
        rows, headings=headings, titles=("camel", "cactus"), side=112, text=TEXT, lines=2
    )


def evidence(model: pa.Model) -> Image.Image:
    """What the ELBO says at every position, beside attention, for each class of a scene."""
    picture = scene(CROWDED)
    encoded = model.encode(picture.image)
    found, config = evidence_of(model, picture)
    local, told = local_cosine(found, config.evidence_blur), information(found, config)
    plain = model.align(encoded, picture.names, method="attention")
    ours = model.align(encoded, picture.names, config=pa.AlignConfig(edges="none"))
    assert ours.evidence is not None
    rows: list[Sequence[Cell]] = [
        [
            picture.image,
            shown(plain.heatmaps[index]),
            shown(told[index]),
            shown(local[index]),
            shown(np.maximum(ours.evidence[index], -4)),
            shown(ours.heatmaps[index]),
        ]
        for index in range(len(picture.names))
    ]
    headings = ("picture", "attention", "text adds", "and is right", "leads others", "dense")
    return picture_grid(rows, headings=headings, titles=picture.names, side=132, text=TEXT, lines=2)


def trust(model: pa.Model) -> Image.Image:
    """Verdicts on three classes that are there and two that are not."""
    picture = scene(HIDDEN)
    names = [*picture.names, "dog", "taco"]
    result = model.align(picture.image, names)
    assert result.trust is not None
    cells: list[Cell] = [(picture.image, "the picture")]
    for name, about, heatmap in zip(names, result.trust, result.heatmaps, strict=True):
        cells.append((shown(heatmap), f"{name}: {about}, {about.numbers['standing']:.1%}"))
    return picture_grid([cells], side=SIDE, text=TEXT, lines=2)


def limits(model: pa.Model) -> Image.Image:
    """Scenes where masks go wrong: thin parts, two of a kind, what only peeps out."""
    rows: list[Sequence[Cell]] = []
    for number in (0, HIDDEN):
        picture = scene(number)
        result = model.align(picture.image, picture.names)
        truth = picture.truth.numpy().astype(np.uint8)
        rows.append(
            [
                picture.image,
                masked(picture.image, truth),
                masked(picture.image, result.mask()),
                shown((result.mask() != truth).astype(np.float32)),
            ]
        )
    headings = ("picture", "truth", "mask", "wrong pixels")
    return picture_grid(rows, headings=headings, side=SIDE, text=TEXT)


FIGURES: dict[str, Callable[[pa.Model], Image.Image]] = {
    "flow": flow,
    "attention": attention,
    "evidence": evidence,
    "trust": trust,
    "limits": limits,
}


def main() -> None:
    """Draw all figures by lab:sd2, which confuses more than the embedded model."""
    model = pa.load("lab:sd2")
    for name, draw in FIGURES.items():
        path = FOLDER / f"{name}.webp"
        draw(model).save(path, quality=82, method=6)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()

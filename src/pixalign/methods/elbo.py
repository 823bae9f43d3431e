"""ELBO-T2IAlign: attention, calibrated by each class's diffusion loss (Algorithm 1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pixalign.alignment.collect import attention_maps, images_at_once
from pixalign.alignment.elbo import TextErrors
from pixalign.alignment.heatmaps import combined_layers, refined_maps, to_image
from pixalign.alignment.plan import plan_timesteps
from pixalign.alignment.request import EncodedImage, Request
from pixalign.alignment.result import Alignment, MethodOutput
from pixalign.alignment.sharing import measurement_names
from pixalign.alignment.task import AlignmentTask
from pixalign.config import AlignConfig
from pixalign.core.progress import Progress
from pixalign.core.values import AttentionMaps
from pixalign.methods.base import Generators, Method, Timesteps


@dataclass(frozen=True, eq=False)
class Measurement:
    """What the network said of a picture and its classes: many settings draw on it (`conclude`)."""

    task: AlignmentTask
    maps: AttentionMaps
    notes: tuple[str, ...]


class Elbo(Method):
    """The paper's method: A <- minmax(A) ** (1 / S), refined by self-attention and enlarged.

    All its settings are the config's: timesteps, layers, strength (see `AlignConfig`).
    """

    name = "elbo"
    separable = True
    calibrations = ("elbo",)

    def collect_count(self, config: AlignConfig) -> int:
        """As the config says."""
        return config.collect_count

    def timesteps(self, latents: Tensor, config: AlignConfig, generators: Generators) -> Timesteps:
        """Both from one generator: collecting first."""
        return plan_timesteps(self.backbone.schedule, latents, config, generators())

    def images_together(self, latents: Tensor, config: AlignConfig) -> int:
        """As many as their self-attention leaves room for."""
        return images_at_once(self.backbone, latents, config.self_attention)

    def collect(self, tasks: Sequence[AlignmentTask]) -> list[AttentionMaps]:
        """Lines 1, 2 and 5: the attention of all pictures together."""
        return attention_maps(
            self.backbone,
            torch.cat([task.encoded.latents for task in tasks]),
            [task.plan for task in tasks],
            [task.noised for task in tasks],
            tasks[0].config,
            self.model.batch_size,
            self.progress,
        )

    def heatmaps(
        self, tasks: Sequence[AlignmentTask], collected: Sequence[AttentionMaps]
    ) -> list[MethodOutput]:
        """Lines 6 to 9: combine the layers, calibrate, refine, enlarge."""
        outputs = []
        for task, maps in zip(tasks, collected, strict=True):
            combined = combined_layers(maps, task.config, task.evidence)
            powers = torch.ones(len(combined)) if task.powers is None else task.powers
            refined = refined_maps(maps, combined, powers[None])
            heatmaps = to_image(refined, task.size)
            outputs.append(MethodOutput(heatmaps, combined, grid=maps.grid))
        return outputs

    def measure(
        self,
        image: EncodedImage,
        classes: Any,
        *,
        config: AlignConfig | None = None,
        seed: int = 0,
        errors: TextErrors | None = None,
        further: Sequence[str] = (),
    ) -> Measurement:
        """All passes that `align` would make, for `conclude`; by "dense" for all of its kind.

        Texts whose ``errors`` are known of this picture, config and seed are not measured again.
        Those of ``further`` texts, whole as the network reads them, are measured beside.
        """
        settings, notes = self.model.resolve(config, self.name), self.model.batch_size.notes
        noted = len(notes)
        try:
            request = Request.read(image, classes, None, None, None, seed)
            (task,) = self._tasks(request, settings, measure=True)
            task = dataclasses.replace(task, errors=errors, texts=(*task.texts, *further))
            task = self._timed(task, None)
            passes = self._passes([task])
            with Progress(passes, self.name, self.model.progress) as self.progress:
                (task,) = self._measured([task])
                (maps,) = self.collect([task])
        finally:
            self.backbone.pipe.maybe_free_model_hooks()  # sends an offloaded pipeline home
        return Measurement(task, maps, tuple(notes[noted:]))

    def conclude(self, measured: Measurement, config: AlignConfig | None = None) -> Alignment:
        """What `align` would give under a config that reads the same passes; no pass is made.

        Up to rounding: passes of other batches add up in another order.
        """
        settings, task = self.model.resolve(config, self.name), measured.task
        asked, known = measurement_names(settings), measurement_names(task.config)
        scored = settings.measured
        lacking = settings.by_position and (task.errors is None or task.errors.maps is None)
        if asked[: 1 + scored] != known[: 1 + scored] or lacking or settings.absent == "drop":
            raise ValueError(f"the config of {self.name} reads other passes than were measured")
        task = dataclasses.replace(
            task,
            config=settings,
            texts=self.texts(task.plan, settings) if scored else (),
            errors=task.errors if scored else None,
            scores=None,
        )
        task = self._scored(task)
        (output,) = self.heatmaps([task], [measured.maps])
        return self._pending(task, (task, output), measured.notes, task.seed).conclude()

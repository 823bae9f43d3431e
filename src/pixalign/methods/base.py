"""What every baseline is: `Aligner.align` by another method, on the same machinery."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from pixalign.alignment.aligner import Aligner, EncodedImage, check_finite, conclude
from pixalign.alignment.plan import NoisedTimesteps, PromptPlan, plan_prompts, plan_timesteps
from pixalign.alignment.request import Request
from pixalign.alignment.result import Alignment
from pixalign.alignment.scoring import class_scores
from pixalign.backbones import Backbone
from pixalign.config import AlignConfig
from pixalign.core.progress import Progress
from pixalign.core.values import Scores
from pixalign.methods.task import Found, Job, checked_scores, one_each
from pixalign.pictures.reading import ImageLike
from pixalign.text.prompts import Classes, Prompt

# Twenty training steps evenly in [20, 200].
EVENLY = tuple(round(20 + 180 * place / 19) for place in range(20))


class Method(ABC):
    """A way from image and classes to heatmaps, called as `Aligner.align` is.

    It takes the aligner's network, batch size and settings. Of the config it heeds ``resize``,
    the words' settings, and under ``calibrate=True`` those of the ELBO; its own are its options.
    ``timesteps`` are indices of the training schedule.
    """

    name: ClassVar[str]
    supervised: ClassVar[bool] = False

    def __init__(self, aligner: Aligner, *, timesteps: Sequence[int] = EVENLY) -> None:
        if not self.reads(aligner.backbone):
            raise ValueError(
                f"{self.name} reads a UNet's cross- and self-attention, which this "
                f"{aligner.backbone.family} model lacks; allowed families: sd, sdxl"
            )
        self.aligner, self.backbone = aligner, aligner.backbone
        self.timesteps = tuple(timesteps)
        self.backbone.schedule.at_indices(self.timesteps)  # names those that do not exist

    @classmethod
    def reads(cls, backbone: Backbone) -> bool:
        """Whether the method knows a model's kind of attention: a UNet's."""
        kinds = {site.kind for site in backbone.sites}
        return {"cross", "self"} <= kinds and "joint" not in kinds

    @abstractmethod
    def _find(self, job: Job, visit: NoisedTimesteps) -> Found: ...

    def _prompts(
        self, words: PromptPlan, caption: str | None, config: AlignConfig
    ) -> tuple[Prompt, ...]:
        """The texts under which the picture is shown."""
        return words.prompts

    def _visit(self, latents: Tensor, own: torch.Generator) -> NoisedTimesteps:
        """The timesteps, each with noise of its own."""
        shape = (len(self.timesteps), *latents.shape[1:])
        noise = torch.randn(shape, generator=own, device=own.device, dtype=torch.float32)
        return NoisedTimesteps(
            self.backbone.schedule.at_indices(self.timesteps), noise.to(latents.device)
        )

    @overload
    def align(
        self,
        image: ImageLike | EncodedImage,
        classes: Classes,
        *,
        caption: str | None = ...,
        config: AlignConfig | None = ...,
        generator: torch.Generator | None = ...,
        seed: int = ...,
        scores: Any = ...,
        calibrate: bool = ...,
        target_masks: Any = ...,
    ) -> Alignment: ...

    @overload
    def align(
        self,
        image: list[Any] | tuple[Any, ...],
        classes: Classes | Sequence[Classes],
        *,
        caption: str | Sequence[str] | None = ...,
        config: AlignConfig | None = ...,
        generator: torch.Generator | None = ...,
        seed: int = ...,
        scores: Any = ...,
        calibrate: bool = ...,
        target_masks: Any = ...,
    ) -> list[Alignment]: ...

    def align(
        self,
        image: Any,
        classes: Any,
        *,
        caption: Any = None,
        config: AlignConfig | None = None,
        generator: torch.Generator | None = None,
        seed: int = 0,
        scores: Any = None,
        calibrate: bool = False,
        target_masks: Any = None,
    ) -> Alignment | list[Alignment]:
        """Align an image, or a list of images, with classes: see `Aligner.align`.

        ``scores`` float [N] in (0, 1], one array an image, or ``calibrate=True``, which measures
        them as `Aligner.align` does under the config, turn a class's cross-attention map h into
        minmax(h) ** (1 / S); the config's ``calibrate`` is not heeded. Under ``centred`` the powers
        are divided by their geometric mean, as everywhere. ``target_masks`` [N, H, W], one array
        an image, are for supervised methods only: bool, or 0 and 1, and 255 where nothing is known.
        """
        asked = Request.read(image, classes, caption, seed)
        if calibrate and scores is not None:
            raise ValueError("scores are given and calibrate is True; allowed: one of them")
        aligner = self.aligner
        chosen = dataclasses.replace(
            config or aligner.config, calibrate=calibrate or scores is not None
        )
        settings = dataclasses.replace(aligner.settings(chosen), calibrate=chosen.calibrate)
        captions, count = asked.captions, len(asked.images)
        planned = dataclasses.replace(settings, calibrate=calibrate)  # ELBO texts only if needed
        words = [
            plan_prompts(self.backbone, *pair, planned)
            for pair in zip(asked.classes, captions, strict=True)
        ]
        prompts = [self._prompts(*pair, settings) for pair in zip(words, captions, strict=True)]
        given = one_each(scores if asked.many else [scores], "scores", count)
        known = [checked_scores(*pair) for pair in zip(given, words, strict=True)]
        masks = one_each(target_masks if asked.many else [target_masks], "target_masks", count)
        asked.check_files()
        total = sum(map(len, prompts)) * len(self.timesteps)
        total += sum(len(set(word.elbo_texts)) for word in words) * settings.elbo_count
        try:
            encoded = [aligner.encode(item, config=chosen) for item in asked.images]
            with Progress(total, self.name, aligner.progress) as progress:
                jobs = [
                    Job(
                        encoded=one,
                        words=words[index],
                        caption=captions[index],
                        prompts=prompts[index],
                        scores=known[index],
                        targets=self._targets(masks[index], words[index], one),
                        config=settings,
                        progress=progress,
                    )
                    for index, one in enumerate(encoded)
                ]
                results = [self._one(job, generator, seed) for job in jobs]
        finally:
            self.backbone.pipe.maybe_free_model_hooks()  # sends an offloaded pipeline home
        answer: Alignment | list[Alignment] = asked.answer(results)
        return answer

    def _targets(self, mask: Any, words: PromptPlan, encoded: EncodedImage) -> Tensor | None:
        """A supervised method's masks uint8 [N, H, W]: 0, 1, 255; the others take none."""
        if mask is not None:
            raise ValueError(
                f"target_masks are given; {self.name} learns from none: leave them out"
            )
        return None

    def _one(self, job: Job, generator: torch.Generator | None, seed: int) -> Alignment:
        """Noise first, then the scores where they are to be measured, then the maps."""

        def own() -> torch.Generator:
            return generator if generator is not None else torch.Generator().manual_seed(seed)

        noted = len(self.aligner.batch_size.notes)
        visit = self._visit(job.encoded.latents, own())
        if job.words.elbo_texts:
            job = dataclasses.replace(job, scores=self._measured(job, own()))
        found = self._find(job, visit)
        check_finite(found.cross, "attention maps", self.backbone.dtype)
        record = {
            "method": self.name,
            "supervised": self.supervised,
            "layers": dict(found.layers),
            "seed": seed if generator is None else None,
            "model": self.aligner.model_record(),
        }
        return conclude(
            job.encoded,
            job.words,
            (job.prompts, visit),
            job.scores or Scores.neutral(len(job.words.phrases)),
            (found.cross, found.heatmaps),
            job.config,
            (*self.aligner.batch_size.notes[noted:], *found.warnings),
            record,
        )

    def _measured(self, job: Job, own: torch.Generator) -> Scores:
        """What `Aligner.align` scores under this config and seed."""
        latents = job.encoded.latents
        _, scoring = plan_timesteps(self.backbone.schedule, latents, job.config, own)
        assert scoring is not None
        running = (self.backbone, latents, [job.words], [scoring], job.config)
        return class_scores(*running, self.aligner.batch_size, job.progress)[0]

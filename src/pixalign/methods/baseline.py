"""What the published baselines share: fixed timesteps, a UNet's attention, a picture at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from pixalign.alignment.collect import AttentionQuery, CollectedAttention, collect
from pixalign.alignment.plan import NoisedTimesteps, Passes, fresh_noise, plan_timesteps
from pixalign.alignment.result import MethodOutput
from pixalign.alignment.task import AlignmentTask
from pixalign.backbones import Backbone
from pixalign.config import AlignConfig
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import TextCondition, TokenSpans
from pixalign.methods.base import Generators, Method, Timesteps

# Twenty training steps evenly in [20, 200].
EVENLY = tuple(round(20 + 180 * place / 19) for place in range(20))


class Baseline(Method):
    """A published method, adapted to real images and given classes.

    Of the config it heeds ``resize``, the words' settings, and under ``calibrate="elbo"`` those of
    the ELBO; its own are its options. ``indices`` are of the training schedule.
    """

    # Not the model's own, which may ask for passes that no baseline reads.
    defaults: ClassVar[Mapping[str, Any]] = {"cross_weights": "resolution"}

    def __init__(self, model: AlignmentModel, *, timesteps: Sequence[int] = EVENLY) -> None:
        super().__init__(model)
        self.indices = tuple(timesteps)
        self.backbone.schedule.at_indices(self.indices)  # names those that do not exist

    @classmethod
    def reads(cls, backbone: Backbone) -> bool:
        """A UNet's attention."""
        kinds = {site.kind for site in backbone.sites}
        return backbone.network == "unet" and {"cross", "self"} <= kinds

    def collect_count(self, config: AlignConfig) -> int:
        """The method's own."""
        return len(self.indices)

    def timesteps(self, latents: Tensor, config: AlignConfig, generators: Generators) -> Timesteps:
        """The method's own, and those at which "elbo" would score under this config and seed."""
        collecting = self.collecting(latents, generators())
        if not config.measured:
            return collecting, None
        _, scoring = plan_timesteps(self.backbone.schedule, latents, config, generators())
        return collecting, scoring

    def collecting(self, latents: Tensor, generator: torch.Generator) -> NoisedTimesteps:
        """The timesteps, each with noise of its own."""
        steps = self.backbone.schedule.at_indices(self.indices)
        return NoisedTimesteps(steps, fresh_noise(len(steps), latents, generator))

    def heatmaps(
        self, tasks: Sequence[AlignmentTask], collected: Sequence[None]
    ) -> list[MethodOutput]:
        """One picture after the other."""
        return [self.find(task) for task in tasks]

    @abstractmethod
    def find(self, task: AlignmentTask) -> MethodOutput:
        """What the method finds in one picture."""

    def read_prompts(self, task: AlignmentTask) -> tuple[TextCondition, list[TokenSpans]]:
        """The encoded prompts, and where the classes stand in each."""
        texts = self.backbone.encode_text([prompt.text for prompt in task.prompts])
        length, kinds = texts.embeds.shape[1], task.config.text_encoders
        return texts, [self.backbone.token_spans(prompt, length, kinds) for prompt in task.prompts]

    def collected(
        self,
        task: AlignmentTask,
        texts: TextCondition,
        spans: Sequence[TokenSpans],
        query: AttentionQuery,
    ) -> CollectedAttention:
        """The attention of the picture under each text at every timestep."""
        passes = Passes.of_one(task.encoded.latents, texts, task.noised)
        return collect(self.backbone, passes, spans, query, self.model.batch_size, self.progress)

"""DiffSegmenter (Wang et al., 2024): one weighted prompt a class, refined by self-attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from pixalign.alignment.collect import AttentionQuery, CollectedAttention, collect, images_at_once
from pixalign.alignment.heatmaps import refine, to_image
from pixalign.alignment.plan import NoisedTimesteps, Passes, PromptPlan
from pixalign.alignment.result import MethodOutput
from pixalign.alignment.task import AlignmentTask
from pixalign.attention.sites import chosen_sites, nearest_factor
from pixalign.config import AlignConfig
from pixalign.core.maps import minmax, resize
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import TextCondition
from pixalign.methods.baseline import Baseline
from pixalign.text.prompts import Prompt, locate, split
from pixalign.text.weighting import weighted

WEIGHT = 1.1**2  # of "(class)++"
# By factor of the latent grid: 8, 16, 32 and 64 on SD1.
BY_FACTOR = {8: 0.3, 4: 0.5, 2: 0.1, 1: 0.1}


class DiffSegmenter(Baseline):
    """One pass a class at step 100 under "a photo of (class)++", all with the same noise.

    Cross maps are averaged over the layers of a resolution, enlarged, brought to [0, 1], and added
    with weights by factor of the latent grid (8: 0.3, 4: 0.5, 2: 0.1, 1: 0.1; where a model lacks
    some, the others' are renormalised); then multiplied once by the mean self-attention of the
    pass's finest layers, bilinear to the picture, min-max. A caption takes the place of the prompt.
    """

    name = "diffsegmenter"

    def __init__(self, model: AlignmentModel, *, timesteps: Sequence[int] = (100,)) -> None:
        super().__init__(model, timesteps=timesteps)

    def prompts(
        self, plan: PromptPlan, caption: str | None, config: AlignConfig
    ) -> tuple[Prompt, ...]:
        return self._of_one_class(plan, caption, config, config.class_tokens == "phrase")

    def _of_one_class(
        self, plan: PromptPlan, caption: str | None, config: AlignConfig, whole: bool
    ) -> tuple[Prompt, ...]:
        """A prompt for each class, with the spans of its name or of its whole phrase."""
        phrases = plan.phrases
        if caption is None:
            fits = self.backbone.fits
            return tuple(
                split(phrases, [index], config.template, fits, whole)[0]
                for index in range(len(phrases))
            )
        located = locate(phrases, caption, whole)
        places = zip(located.classes, located.spans, strict=True)
        return tuple(Prompt(located.text, (index,), (spans,)) for index, spans in places)

    def find(self, task: AlignmentTask) -> MethodOutput:
        sites, latents = self.backbone.sites, task.encoded.latents
        finest = nearest_factor(chosen_sites(sites, "self"), 1)
        labels = dict.fromkeys(chosen_sites(sites, "self", factors=[finest]), "finest")
        grid = next(iter(labels)).grid(task.latent)
        cross_sites = chosen_sites(sites, "cross", factors=BY_FACTOR)
        weights = shared({site.factor for site in cross_sites})
        texts = self._weighted(task)
        together = images_at_once(self.backbone, latents, "once")
        query = AttentionQuery(cross_sites, labels)
        cross, refined = [], []
        for first in range(0, len(task.prompts), together):
            part = range(first, min(first + together, len(task.prompts)))
            collected = self._collect(task, texts, part, query)
            for place, index in enumerate(part):
                total = torch.zeros((), device=latents.device)
                for factor, weight in weights.items():
                    layers = chosen_sites(cross_sites, "cross", factors=[factor])
                    mean = collected.combined(layers, image=place)  # [1, h, w]
                    total = total + weight * minmax(resize(mean, grid), (1, 2))
                cross.append(total)
                attention = collected.self_attention("finest", image=place)
                refined.append(refine(task.calibrated(cross[-1], index), [attention], grid))
        heatmaps = to_image(torch.cat(refined), task.size)
        record = {"cross_weights": weights, "self_factors": [finest]}
        return MethodOutput(heatmaps, torch.cat(cross), record)

    def _weighted(self, task: AlignmentTask) -> TextCondition:
        """The prompts' embeddings, the tokens of each class's phrase weighted."""
        texts = self.backbone.encode_text([prompt.text for prompt in task.prompts])
        length = texts.embeds.shape[1]
        empty = self.backbone.blank(length)
        weights = torch.ones(len(texts), length)
        whole = self._of_one_class(task.plan, task.caption, task.config, True)
        for row, prompt in enumerate(whole):
            spans = self.backbone.token_spans(prompt, length, task.config.text_encoders)
            weights[row, list(spans.columns[0])] = WEIGHT
        return dataclasses.replace(texts, embeds=weighted(texts.embeds, empty, weights))

    def _collect(
        self, task: AlignmentTask, texts: TextCondition, part: range, query: AttentionQuery
    ) -> CollectedAttention:
        """One pass for each class of a part, each with self-attention of its own."""
        rows = torch.tensor(part, device=texts.embeds.device)
        length, kinds = texts.embeds.shape[1], task.config.text_encoders
        spans = [
            dataclasses.replace(
                self.backbone.token_spans(task.prompts[index], length, kinds), classes=(0,)
            )
            for index in part
        ]
        passes = Passes(
            task.encoded.latents.expand(len(part), -1, -1, -1),
            texts[rows],
            torch.arange(len(part)),
            NoisedTimesteps.concatenate([task.noised] * len(part)),
        )
        return collect(self.backbone, passes, spans, query, self.model.batch_size, self.progress)


def shared(factors: set[int]) -> dict[int, float]:
    """The weights of the factors that a model has, summing to 1."""
    there = {factor: BY_FACTOR[factor] for factor in sorted(factors)}
    return {factor: weight / sum(there.values()) for factor, weight in there.items()}

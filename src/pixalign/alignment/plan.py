"""What is decided before the network runs: texts, timesteps and noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pixalign.backbones import Backbone
from pixalign.config import AlignConfig
from pixalign.core.values import Phrase, TextCondition
from pixalign.diffusion.schedule import Schedule, Steps
from pixalign.diffusion.timesteps import positions
from pixalign.text.prompts import Classes, Prompt, as_phrases, canonical_order, locate, split


@dataclass(frozen=True)
class PromptPlan:
    """The classes, the attention prompts that hold them, and each class's ELBO text."""

    phrases: tuple[Phrase, ...]
    prompts: tuple[Prompt, ...]
    elbo_texts: tuple[str, ...]


@dataclass(frozen=True)
class NoisedTimesteps:
    """T timesteps and the noise float32 [T, C, h, w] of each."""

    steps: Steps
    noise: Tensor

    @classmethod
    def concatenate(cls, parts: Sequence[NoisedTimesteps]) -> NoisedTimesteps:
        """All timesteps of the parts, in order."""
        return cls(
            Steps.concatenate([part.steps for part in parts]),
            torch.cat([part.noise for part in parts]),
        )

    def at(self, indices: Sequence[int]) -> NoisedTimesteps:
        """Some of the timesteps, with their noise."""
        if list(indices) == list(range(len(self.steps))):
            return self
        index = torch.tensor(indices)
        return NoisedTimesteps(self.steps[index], self.noise[index.to(self.noise.device)])


@dataclass(frozen=True)
class Batch:
    """Some passes: noised latents and their noise [b, C, h, w], steps [b], texts [b].

    ``text``, ``image`` and ``place`` int64 [b], on the CPU, say whose passes these are: ``place``
    counts the timesteps of all images.
    """

    z: Tensor
    noise: Tensor
    steps: Steps
    texts: TextCondition
    text: Tensor
    image: Tensor
    place: Tensor


@dataclass(frozen=True)
class Passes:
    """P texts, each shown with its image at the image's T timesteps: P * T forward passes.

    ``latents`` [B, C, h, w]; ``owners`` int64 [P], ascending, says to which image a text
    belongs; ``timesteps`` holds the B * T steps and noises, image by image.
    """

    latents: Tensor
    texts: TextCondition
    owners: Tensor
    timesteps: NoisedTimesteps

    @classmethod
    def of_one(cls, latents: Tensor, texts: TextCondition, timesteps: NoisedTimesteps) -> Passes:
        """All texts with one image [1, C, h, w]."""
        return cls(latents, texts, torch.zeros(len(texts), dtype=torch.long), timesteps)

    def __len__(self) -> int:
        return len(self.texts) * self.steps_each

    @property
    def steps_each(self) -> int:
        """T."""
        return len(self.timesteps.steps) // len(self.latents)

    def batch(self, first: int, last: int) -> Batch:
        """Passes first .. last - 1: all steps of the first text, then of the second ..."""
        index = torch.arange(first, last)
        text = index // self.steps_each
        image = self.owners[text]
        place = image * self.steps_each + index % self.steps_each
        device = self.latents.device
        steps, noise = self.timesteps.steps[place], self.timesteps.noise[place.to(device)]
        z = steps.noised(self.latents[image.to(device)], noise)
        return Batch(z, noise, steps, self.texts[text.to(device)], text, image, place)


def plan_prompts(
    backbone: Backbone, classes: Classes, caption: str | None, config: AlignConfig
) -> PromptPlan:
    """Compose or search the prompts; every text is read whole or refused."""
    phrases = as_phrases(classes)
    whole = config.class_tokens == "phrase"
    if caption is None:
        given = config.prompt_order == "given"
        order = list(range(len(phrases))) if given else canonical_order(phrases)
        prompts = split(phrases, order, config.template, backbone.fits, whole)
    else:
        prompts = [locate(phrases, caption, whole)]
        if not backbone.fits(prompts[0].text):
            raise ValueError(
                f"the caption is longer than the model's text encoder reads: {caption!r}; "
                "shorten it or leave it out"
            )
    words = [p.phrase if config.elbo_text == "phrase" else p.name for p in phrases]
    texts = whole_texts(backbone, words if config.measured else (), config)
    return PromptPlan(phrases, tuple(prompts), texts)


def whole_texts(backbone: Backbone, phrases: Sequence[str], config: AlignConfig) -> tuple[str, ...]:
    """Each phrase in the text that the network reads of it alone; one too long is refused."""
    return tuple(
        split([Phrase(words)], [0], config.template, backbone.fits)[0].text for words in phrases
    )


def fresh_noise(count: int, latents: Tensor, generator: torch.Generator) -> Tensor:
    """Noise float32 [count, C, h, w] for latents [1, C, h, w], drawn where the generator is."""
    shape = (count, *latents.shape[1:])
    noise = torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float32)
    return noise.to(latents.device)


def plan_timesteps(
    schedule: Schedule, latents: Tensor, config: AlignConfig, generator: torch.Generator
) -> tuple[NoisedTimesteps, NoisedTimesteps | None]:
    """The timesteps of collecting, and the ELBO's where its passes are made.

    Noise is drawn first, for collecting and then for the ELBO, and random timesteps after it:
    so collecting sees the same noise whether or not an ELBO follows.
    """
    counts = (config.collect_count, config.elbo_count)[: 1 + config.measured]
    noises = [fresh_noise(count, latents, generator) for count in counts]

    def noised(kind: str, noise: Tensor) -> NoisedTimesteps:
        indices = getattr(config, f"{kind}_timesteps")
        if indices is not None:
            return NoisedTimesteps(schedule.at_indices(indices), noise)
        strategy, bounds = (getattr(config, f"{kind}_{what}") for what in ("strategy", "range"))
        assert strategy is not None, "the config must be resolved"
        places = positions(strategy, len(noise), bounds, generator)
        return NoisedTimesteps(schedule.at_positions(places), noise)

    collecting = noised("collect", noises[0])
    return collecting, noised("elbo", noises[1]) if config.measured else None

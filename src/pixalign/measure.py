"""The two measurements of images that share a size: attention maps and semantic strengths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pixalign import elbo
from pixalign.backbones import Backbone
from pixalign.batching import BatchSize
from pixalign.calibrate import alignment_scores, weighted_elbo
from pixalign.collect import collect
from pixalign.config import AlignConfig
from pixalign.plan import Passes, Visit, Words
from pixalign.progress import Progress
from pixalign.types import AttentionMaps, Scores


def attention_maps(
    backbone: Backbone,
    latents: Tensor,
    words: Sequence[Words],
    visits: Sequence[Visit],
    config: AlignConfig,
    batch_size: BatchSize,
    progress: Progress,
) -> list[AttentionMaps]:
    """Each image's attention under its prompts, at its visit: latents [B, C, h, w]."""
    prompts = [prompt for word in words for prompt in word.prompts]
    texts = backbone.encode_text([prompt.text for prompt in prompts])
    length = texts.embeds.shape[1]
    owners = [image for image, word in enumerate(words) for _ in word.prompts]
    return collect(
        backbone,
        Passes(latents, texts, torch.tensor(owners), Visit.concatenate(visits)),
        [backbone.token_spans(prompt, length, config.text_columns) for prompt in prompts],
        self_attention=config.self_attention,
        image_only_attention=config.image_only_attention,
        batch_size=batch_size,
        progress=progress,
    )


def class_losses(
    backbone: Backbone,
    latents: Tensor,
    words: Sequence[Words],
    visits: Sequence[Visit],
    batch_size: BatchSize,
    progress: Progress,
) -> list[Tensor]:
    """Each image's losses float32 [N, T] under the ELBO texts of its classes.

    Equal texts of an image share one row, so their losses are equal to the last bit.
    """
    rows = [(i, text) for i, word in enumerate(words) for text in _distinct(word.elbo_texts)]
    distinct = _distinct(text for _, text in rows)
    place = torch.tensor([distinct.index(text) for _, text in rows])
    texts = backbone.encode_text(distinct)[place.to(latents.device)]
    owners = torch.tensor([image for image, _ in rows])
    passes = Passes(latents, texts, owners, Visit.concatenate(visits))
    losses = elbo.losses(backbone, passes, batch_size, progress)
    row_of = {row: index for index, row in enumerate(rows)}
    return [
        losses[[row_of[image, text] for text in word.elbo_texts]]
        for image, word in enumerate(words)
    ]


def class_scores(
    backbone: Backbone,
    latents: Tensor,
    words: Sequence[Words],
    visits: Sequence[Visit],
    config: AlignConfig,
    batch_size: BatchSize,
    progress: Progress,
) -> list[Scores]:
    """Each image's scores: losses, their weighted mean, S."""
    assert config.gamma is not None, "the config must be resolved"
    found = class_losses(backbone, latents, words, visits, batch_size, progress)
    scores = []
    for losses, visit in zip(found, visits, strict=True):
        weights = visit.steps.weights(config.elbo_weighting, backbone.objective)
        bounds = weighted_elbo(losses, weights)
        scores.append(
            Scores(
                losses=losses,
                elbo=bounds.float(),
                scores=alignment_scores(bounds, config.gamma),
                timesteps=tuple(visit.steps.time.tolist()),
            )
        )
    return scores


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))

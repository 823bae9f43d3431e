"""Collect the attention of noised images (Algorithm 1, lines 1, 2 and 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pixalign.alignment.plan import NoisedTimesteps, Passes, PromptPlan
from pixalign.attention import AttentionReader, Site, add_by_owner, text_layers
from pixalign.attention.compiled import CompiledNetwork
from pixalign.attention.layers import CrossWeights, combine_layers
from pixalign.attention.tap import LayersUnheardError
from pixalign.backbones import Backbone
from pixalign.config import AlignConfig
from pixalign.core.batching import BatchSize
from pixalign.core.progress import Progress
from pixalign.core.values import AttentionMaps, TokenSpans

# Self-attention of the images that are collected together, in elements: 1 GiB of float32.
_SELF_BUDGET = 2**28
_MOST_IMAGES = 64


@dataclass(frozen=True)
class AttributionText:
    """A text without padding: embeddings [P, L, D] and a mask [P, L], 0 or minus infinity."""

    embeds: Tensor
    mask: Tensor

    @classmethod
    def of(cls, embeds: Tensor, lengths: Sequence[int]) -> AttributionText:
        """The first tokens of padded embeddings, which a causal encoder makes without the rest."""
        longest = max(lengths)
        beyond = torch.arange(longest)[None] >= torch.tensor(lengths)[:, None]
        mask = torch.zeros(len(embeds), longest).masked_fill(beyond, -torch.inf)
        return cls(embeds[:, :longest], mask.to(embeds.device))


@dataclass(frozen=True)
class AttentionQuery:
    """What is read: ``cross`` layers, and self-attention layers under the names of their sums.

    ``text`` is attended to instead of the network's own.
    """

    cross: tuple[Site, ...]
    self_labels: Mapping[Site, str] = field(default_factory=dict)
    per_head: bool = False
    keep_queries: bool = False
    text: AttributionText | None = None


@dataclass(frozen=True)
class CollectedAttention:
    """Sums over each image's passes, and the reader that holds its self-attention.

    ``cross[site]`` float32 [images, (heads,) M, h, w]; ``queries[site]`` float32
    [passes, heads, h*w, d], if kept.
    """

    cross: Mapping[Site, Tensor]
    queries: Mapping[Site, Tensor]
    reader: AttentionReader

    def combined(
        self, sites: Sequence[Site], scheme: CrossWeights = "uniform", image: int = 0
    ) -> Tensor:
        """[M, h, w]: an image's weighted mean over layers, which are enlarged to the finest."""
        maps = [self.cross[site][image] for site in sites]
        return combine_layers(maps, text_layers(sites), scheme)

    def self_attention(self, *labels: str, image: int = 0) -> Tensor:
        """[h*w, h*w]: the mean over heads, passes and the layers of those names."""
        return self.reader.self_mean(*labels, image=image)


def collect(
    backbone: Backbone,
    passes: Passes,
    spans: Sequence[TokenSpans],
    query: AttentionQuery,
    batch_size: BatchSize,
    progress: Progress,
) -> CollectedAttention:
    """Run the passes; ``spans`` of their texts number the M maps that are read."""
    count = 1 + max(index for span in spans for index in span.classes)
    device = passes.latents.device
    columns = torch.stack([span.averaging_matrix(count) for span in spans]).to(device)  # [P, L, M]
    if query.text is not None:
        columns = columns[:, : query.text.mask.shape[1]]
    sites = tuple(dict.fromkeys((*query.cross, *query.self_labels)))
    how = {"per_head": query.per_head, "keep_queries": query.keep_queries}
    reader = AttentionReader(sites, query.self_labels, len(passes.latents), **how)
    sums: dict[Site, Tensor] = {}
    queries: dict[Site, list[Tensor]] = {}

    def restart() -> None:
        """Sums cannot be resumed: after a failure they start anew."""
        reader.clear()
        sums.clear()
        queries.clear()

    def work(first: int, last: int) -> None:
        part = passes.batch(first, last)
        text = part.text.to(device)
        reader.columns, reader.owners = columns[text], part.image
        if query.text is not None:
            reader.text, reader.text_mask = query.text.embeds[text], query.text.mask[text]
        backbone.predict(part.z, part.steps, part.texts)
        for site, maps in reader.cross.items():
            if site not in sums:
                sums[site] = maps.new_zeros(len(passes.latents), *maps.shape[1:])
            add_by_owner(sums[site], maps, part.image)
        for site, kept in reader.queries.items():
            queries.setdefault(site, []).append(kept)

    def run(compiled: CompiledNetwork | None) -> None:
        with reader.attached(backbone, compiled):
            batch_size.each(
                passes.latents, len(passes), "collect", work, restart=restart, progress=progress
            )

    try:
        run(backbone.compiled_code)
    except LayersUnheardError:  # at the first pass
        restart()
        run(None)
    joined = {site: torch.cat(parts) for site, parts in queries.items()}
    return CollectedAttention(sums, joined, reader)


def attention_maps(
    backbone: Backbone,
    latents: Tensor,
    plans: Sequence[PromptPlan],
    timesteps: Sequence[NoisedTimesteps],
    config: AlignConfig,
    batch_size: BatchSize,
    progress: Progress,
) -> list[AttentionMaps]:
    """Each image's attention under its prompts, at its timesteps: latents [B, C, h, w].

    Cross maps are averaged over heads, a class's columns and steps; self-attention over heads,
    steps, prompts and the layers of highest resolution. Each class stands in one prompt.
    """
    prompts = [prompt for plan in plans for prompt in plan.prompts]
    texts = backbone.encode_text([prompt.text for prompt in prompts])
    length = texts.embeds.shape[1]
    spans = [backbone.token_spans(prompt, length, config.text_encoders) for prompt in prompts]
    owners = torch.tensor([image for image, plan in enumerate(plans) for _ in plan.prompts])
    passes = Passes(latents, texts, owners, NoisedTimesteps.concatenate(timesteps))
    labels = self_labels(backbone.sites, config.self_attention, config.image_only_attention)
    text_sites = tuple(site for site in backbone.sites if site.reads_text)
    query = AttentionQuery(text_sites, labels)
    collected = collect(backbone, passes, spans, query, batch_size, progress)
    grid = next(iter(labels), text_sites[0]).grid((latents.shape[-2], latents.shape[-1]))
    layers = text_layers(backbone.sites)
    return [
        AttentionMaps(
            cross=tuple(
                collected.cross[site][image, : len(plan.phrases)] / passes.steps_each
                for site in text_sites
            ),
            layers=layers,
            self_attention=_matrices(collected, config.self_attention, image),
            grid=grid,
        )
        for image, plan in enumerate(plans)
    ]


def images_at_once(backbone: Backbone, latents: Tensor, self_attention: str) -> int:
    """How many images like latents [1, C, h, w] are collected together: at least one."""
    labels = self_labels(backbone.sites, self_attention, False)
    latent = (latents.shape[-2], latents.shape[-1])
    grids = {label: site.grid(latent) for site, label in labels.items()}
    held = sum((rows * columns) ** 2 for rows, columns in grids.values())
    return min(_MOST_IMAGES, max(1, _SELF_BUDGET // max(held, 1)))


def self_labels(
    sites: Sequence[Site], self_attention: str, image_only_attention: bool
) -> dict[Site, str]:
    """The running sum each self-attention layer of highest resolution belongs to.

    SD3.5's image-only layers stand beside joint ones and take part only when asked for. Of a model
    without layers in which the picture attends to itself there are none: its maps stay unrefined.
    """
    if self_attention == "none":
        return {}
    joint = any(site.kind == "joint" for site in sites)
    candidates = [
        site
        for site in sites
        if site.reads_image and (site.kind == "joint" or not joint or image_only_attention)
    ]
    highest = min((site.factor for site in candidates), default=0)
    by_place = self_attention == "up-after-all"
    return {
        site: site.place if by_place else "all" for site in candidates if site.factor == highest
    }


def _matrices(collected: CollectedAttention, self_attention: str, image: int) -> tuple[Tensor, ...]:
    """An image's matrices S1, S2 ... in the order in which they are applied, if any is read."""
    labels = collected.reader.self_sums
    if not labels:
        return ()
    everything = collected.self_attention(*labels, image=image)
    if self_attention != "up-after-all":
        return (everything,) * (2 if self_attention == "twice" else 1)
    if "up" not in labels:
        raise ValueError("self_attention='up-after-all' needs a UNet; use 'twice' on this model")
    return everything, collected.self_attention("up", image=image)

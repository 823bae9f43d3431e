"""Attention of one picture's passes, as the baselines ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pixalign.alignment.plan import Passes
from pixalign.attention import AttentionReader, Site, add_by_owner
from pixalign.backbones import Backbone
from pixalign.core.batching import BatchSize
from pixalign.core.progress import Progress
from pixalign.core.values import TokenSpans


@dataclass(frozen=True)
class OwnText:
    """A text without padding: embeddings [P, L, D] and a mask [P, L], 0 or minus infinity."""

    embeds: Tensor
    mask: Tensor

    @classmethod
    def of(cls, embeds: Tensor, lengths: Sequence[int]) -> OwnText:
        """The first tokens of padded embeddings, which a causal encoder makes without the rest."""
        longest = max(lengths)
        beyond = torch.arange(longest)[None] >= torch.tensor(lengths)[:, None]
        mask = torch.zeros(len(embeds), longest).masked_fill(beyond, -torch.inf)
        return cls(embeds[:, :longest], mask.to(embeds.device))


@dataclass(frozen=True)
class Wanted:
    """What is read: ``cross`` layers, and self-attention layers under the names of their sums.

    ``text`` is attended to instead of the network's own.
    """

    cross: tuple[Site, ...]
    labels: Mapping[Site, str] = field(default_factory=dict)
    per_head: bool = False
    keep_queries: bool = False
    text: OwnText | None = None


@dataclass(frozen=True)
class Gathered:
    """Sums over each owner's passes, and the reader that holds its self-attention.

    ``cross[site]`` float32 [owners, (heads,) M, h, w]; ``queries[site]`` float32
    [passes, heads, h*w, d], if kept.
    """

    cross: Mapping[Site, Tensor]
    queries: Mapping[Site, Tensor]
    reader: AttentionReader

    def self_attention(self, label: str, owner: int = 0) -> Tensor:
        """[h*w, h*w]: the mean over heads, passes and the layers of that name."""
        return self.reader.self_mean(label, image=owner)


def gather(
    backbone: Backbone,
    passes: Passes,
    spans: Sequence[TokenSpans],
    wanted: Wanted,
    batch_size: BatchSize,
    progress: Progress,
) -> Gathered:
    """Run the passes; ``spans`` of their texts number the M columns that are read."""
    count = 1 + max(index for span in spans for index in span.classes)
    device = passes.latents.device
    columns = torch.stack([span.averaging_matrix(count) for span in spans]).to(device)
    if wanted.text is not None:
        columns = columns[:, : wanted.text.mask.shape[1]]
    done = 0

    def work(size: int) -> Gathered:
        nonlocal done
        progress.advance(-done)  # sums cannot be resumed: after a failure they start anew
        done = 0
        reader = AttentionReader(
            (*wanted.cross, *wanted.labels),
            wanted.labels,
            len(passes.latents),
            per_head=wanted.per_head,
            keep_queries=wanted.keep_queries,
        )
        sums: dict[Site, Tensor] = {}
        queries: dict[Site, list[Tensor]] = {}
        with reader.attached(backbone.denoiser):
            while done < len(passes):
                part = passes.batch(done, min(done + size, len(passes)))
                text = part.text.to(device)
                reader.columns, reader.owners = columns[text], part.image
                if wanted.text is not None:
                    reader.text, reader.text_mask = wanted.text.embeds[text], wanted.text.mask[text]
                backbone.predict(part.z, part.steps, part.texts)
                for site, maps in reader.cross.items():
                    if site not in sums:
                        sums[site] = maps.new_zeros(len(passes.latents), *maps.shape[1:])
                    add_by_owner(sums[site], maps, part.image)
                for site, query in reader.queries.items():
                    queries.setdefault(site, []).append(query)
                progress.advance(len(part.z))
                done += len(part.z)
        return Gathered(sums, {site: torch.cat(q) for site, q in queries.items()}, reader)

    return batch_size.attempt(passes.latents, len(passes), "collect", work)


def chosen_sites(
    sites: Iterable[Site], kind: str, *, mid: bool = True, factors: Iterable[int] | None = None
) -> tuple[Site, ...]:
    """The "cross" or "self" layers, with or without the middle block, of some factors."""
    wanted = None if factors is None else set(factors)
    return tuple(
        site
        for site in sites
        if site.kind == kind
        and (mid or site.place != "mid")
        and (wanted is None or site.factor in wanted)
    )


def nearest_factor(sites: Sequence[Site], factor: int) -> int:
    """The factor among the sites' that is nearest by ratio; of two, the finer."""
    there = sorted({site.factor for site in sites})
    if not there:
        raise ValueError(f"the model has no attention layer to stand for factor {factor}")
    return min(there, key=lambda known: max(known, factor) / min(known, factor))

"""Which settings share what the network said, so that it is asked once for all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from pixalign.config import AlignConfig

# Fields of a resolved config on which the attention that is collected depends, and the losses.
_COLLECTING = (
    "resize", "template", "prompt_order", "class_tokens", "text_encoders", "self_attention",
    "image_only_attention", "collect_steps", "collect_strategy", "collect_range",
    "collect_timesteps",
)  # fmt: skip
_SCORING = (
    "resize", "template", "elbo_text", "elbo_steps", "elbo_strategy", "elbo_range",
    "elbo_timesteps",
)  # fmt: skip


def measurement_names(config: AlignConfig) -> tuple[str, str]:
    """Short names of the attention and of the losses, which equal settings share.

    Noise is drawn first, collecting's and then the ELBO's; random timesteps after it, in that
    order.
    """
    values = config.to_dict()

    def name(fields: Sequence[str], drawn_before: str | int) -> str:
        text = json.dumps([*(values[field] for field in fields), drawn_before])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    late = config.collect_strategy == "random" and config.measured
    collecting = name(_COLLECTING, config.elbo_count if late else 0)
    random = config.elbo_strategy == "random"
    return collecting, name(_SCORING, collecting if random else config.collect_count)

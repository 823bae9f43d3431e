"""Telling models apart by their weights."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

_SAMPLES = 64  # numbers of each weight


def fingerprint(pipe: Any) -> str | None:
    """A SHA-256 over all of a pipeline's weights, the same on every device.

    Of each weight it takes the shape, some of the numbers, and the sum of all bits. None where
    weights cannot be seen, under sequential offloading.
    """
    digest = hashlib.sha256()
    for part, module in sorted(pipe.components.items()):
        named = module.state_dict() if isinstance(module, nn.Module) else {}
        for name, weight in sorted(named.items()):
            if not isinstance(weight, Tensor):
                continue
            if weight.is_meta:
                return None
            bits = weight.detach().contiguous().reshape(-1).view(torch.uint8)
            whole = bits.numel() // 4 * 4
            words = bits[:whole].view(torch.int32)
            every = max(1, words.numel() // _SAMPLES)
            total = int(words.sum(dtype=torch.int64)) + int(bits[whole:].sum(dtype=torch.int64))
            digest.update(f"{part}.{name} {tuple(weight.shape)} {weight.dtype} {total}".encode())
            digest.update(words[::every][:_SAMPLES].cpu().numpy().tobytes())
    return digest.hexdigest()

"""How much memory reading takes at the shape of large models, counted without computing."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pixalign.attention import AttentionReader, Site
from pixalign.core.values import AttentionCall

HEADS, WIDTH, TEXT = 24, 128, 512  # FLUX.1's
MIB = 2**20


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that is made, views too."""

    def __init__(self):
        super().__init__()
        self.bytes, self.sides = 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for made in output if isinstance(output, tuple | list) else [output]:
            if isinstance(made, torch.Tensor):
                self.bytes = max(self.bytes, made.numel() * made.element_size())
                self.sides.add(tuple(made.shape[-2:]))
        return output


def observed(side, labels, batch=1):
    """The largest tensor, and the shapes seen, when one joint layer of that grid is read."""
    image = side * side
    query, key = (
        torch.empty(batch, HEADS, count, WIDTH, dtype=torch.bfloat16, device="meta")
        for count in (image, image + TEXT)
    )
    site = Site(torch.nn.Identity(), "joint", "joint", 2)
    reader = AttentionReader([site], {site: "all"} if labels else {})
    reader.columns = torch.empty(batch, TEXT, 3, device="meta")
    with Largest() as largest:
        reader._observe(site, AttentionCall(query, key, key, None, WIDTH**-0.5), (side, side))
    assert reader.cross[site].shape == (batch, 3, side, side)
    return largest, reader


@pytest.mark.parametrize("side", [64, 128])  # pictures of 1024 and 2048 pixels
@pytest.mark.parametrize("batch", [1, 2])
def test_words_need_no_matrix_of_the_picture(side, batch):
    largest, reader = observed(side, labels=False, batch=batch)
    tokens = batch * HEADS * (side * side + TEXT) * WIDTH * 4  # queries and keys in float32
    assert largest.bytes <= max(128 * MIB, tokens)
    assert not any(min(shape) >= side * side for shape in largest.sides)
    assert reader.self_sums == {}


def test_refinement_asks_for_one_running_sum():
    """Of all heads and layers: [4096, 4096] in float32 are 64 MiB, and nothing is larger."""
    largest, reader = observed(64, labels=True)
    assert reader.self_sums["all"].shape == (1, 4096, 4096)
    assert largest.bytes <= 128 * MIB

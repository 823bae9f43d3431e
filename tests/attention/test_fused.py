"""Self-attention summed by the GPU's kernels is that of the plain path.

Without a GPU the kernels run interpreted, where Triton is installed.
"""

import os

import pytest
import torch

import pixalign as pa
import tiny
from helpers import model_of
from pixalign.attention import fused

CUDA = torch.cuda.is_available()
pytest.importorskip("triton")
if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)
DEVICE = "cuda" if CUDA else "cpu"
SHAPES = ((2, 3, 100, 100, 40), (1, 2, 70, 200, 64), (3, 1, 64, 130, 8), (2, 2, 33, 40, 128))


@pytest.fixture(params=SHAPES, ids=str)
def parts(request):
    batch, heads, rows, keys, width = request.param
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(batch, heads, rows, width, generator=generator)
    key = torch.randn(batch, heads, keys, width, generator=generator)
    query, key = (x.to(DEVICE, torch.float16) for x in (query, key))
    return query, key, 1.7 * width**-0.5


def logits(query, key, scale):
    return query.double() @ key.double().transpose(2, 3) * scale


def test_log_denominators(parts):
    query, key, scale = parts
    expected = logits(query, key, scale).logsumexp(-1)
    torch.testing.assert_close(
        fused.log_denominators(query, key, scale).double(), expected, atol=1e-5, rtol=1e-5
    )


def test_head_means_add_to_what_is_there(parts):
    query, key, scale = parts
    seen = min(query.shape[2], key.shape[2])
    total = torch.full((query.shape[2], seen), 2.0, device=DEVICE)
    denominators = fused.log_denominators(query, key, scale)
    fused.add_head_means(total, query, key[:, :, :seen], denominators, scale)
    expected = logits(query, key, scale).softmax(-1)[..., :seen].mean(1).sum(0) + 2
    torch.testing.assert_close(total.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["sd1", "sdxl", "sd3"])
def test_images_together_give_the_same_maps(pipeline, name, monkeypatch):
    pipe = pipeline(name)
    if CUDA:
        pipe.to("cuda", torch.float16)
    config = pa.AlignConfig.uncalibrated(collect_steps=3)
    aligner = model_of(pipe, config=config)
    photos = [tiny.photo(64, 64), tiny.photo(64, 64)]
    if not CUDA:  # float32, which a GPU's kernels would round
        monkeypatch.setattr(fused, "usable", lambda query: True)
    found = aligner.align(photos, ["dog", "cat"])
    monkeypatch.setattr(fused, "usable", lambda query: False)
    expected = aligner.align(photos, ["dog", "cat"])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            torch.from_numpy(one.heatmaps), torch.from_numpy(other.heatmaps), atol=2e-4, rtol=0
        )


def test_full_precision_and_the_cpu_take_the_plain_path():
    query = torch.zeros(1, 1, 4, 8)
    assert not fused.usable(query)
    assert not fused.usable(query.half())
    if CUDA:
        assert fused.usable(query.half().cuda())
        assert not fused.usable(query.cuda())

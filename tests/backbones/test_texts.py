"""Prompts that are encoded in one batch are those that are encoded one by one."""

import pytest
import torch

import pixalign as pa
import tiny
from pixalign.backbones import wrap

PROMPTS = ("", "a photo of dog", "a photo of dog, cat, a red car on a long road", "a photo of cat")


@pytest.mark.parametrize("name", ["sd1", "sd2-v", "sdxl"])
def test_known_prompts_are_those_of_the_encoders(pipeline, name):
    backbone = wrap(pipeline(name))
    alone = [backbone.encode_text([prompt]) for prompt in PROMPTS]
    with backbone.encoded_ahead(PROMPTS):
        together = backbone.encode_text(PROMPTS[::-1])
    for row, one in enumerate(reversed(alone)):
        assert one.embeds.shape[1:] == together.embeds.shape[1:]
        torch.testing.assert_close(together.embeds[row], one.embeds[0], rtol=0, atol=2e-6)
        if one.pooled is not None:
            torch.testing.assert_close(together.pooled[row], one.pooled[0], rtol=0, atol=2e-6)


def test_an_alignment_asks_the_text_encoder_once(pipeline):
    model, asked = pa.load(pipeline("sd1")), []
    hook = model.pipe.text_encoder.register_forward_hook(
        lambda _, args, kwargs, out: asked.append(len(out[0])), with_kwargs=True
    )
    try:
        model.align(tiny.photo(32, 32), ["dog", "cat"], config=pa.AlignConfig.fast(elbo_steps=2))
    finally:
        hook.remove()
    assert asked == [4]  # two classes, nothing, and both classes


def test_nothing_is_known_after_the_block(pipeline):
    backbone = wrap(pipeline("sd1"))
    with pytest.raises(KeyError), backbone.encoded_ahead(PROMPTS):
        raise KeyError
    asked = []
    hook = backbone.pipe.text_encoder.register_forward_hook(lambda *_: asked.append(1))
    try:
        backbone.encode_text(PROMPTS)
    finally:
        hook.remove()
    assert asked

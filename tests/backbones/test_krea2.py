"""What Krea 2 has of its own: padding inside its template, and a distilled network's schedule."""

import pytest
import torch

import zoo
from pixalign.backbones import wrap
from tiny import chat_tokenizer
from zoo.krea2 import krea2


def test_a_template_that_ends_behind_the_padding_holds_no_words():
    backbone = wrap(zoo.built("krea2"))
    text = "dog" + " dog" * 600
    (columns,) = backbone.columns(text, [((0, len(text)),)], 512)
    ending = backbone.pipe.prompt_template_encode_num_suffix_tokens
    assert not backbone.fits(text)
    assert columns == tuple(range(512 - ending - 1))
    embeds = backbone.encode_text([text, text[:-3] + "cat"]).embeds
    assert embeds.shape[1] == 512
    assert torch.equal(*embeds)  # what was cut off is not read


def test_padding_on_the_left_moves_words():
    pipe = krea2()
    pipe.register_modules(tokenizer=chat_tokenizer(padding_side="left"))
    for module in pipe.text_encoder.modules():
        if hasattr(module, "o_proj"):
            torch.nn.init.zeros_(module.o_proj.weight)
    backbone = wrap(pipe)
    first, second = backbone.encode_text(["a red dog", "a red cat"]).embeds
    (columns,) = backbone.columns("a red dog", [((6, 9),)], 512)
    assert list(columns) == (first != second).any(1).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("latent", [(16, 16), (16, 32)])
def test_a_distilled_network_is_shifted_alike_at_every_size(latent):
    """1.15 is what the largest picture has: the noise's odds times e^1.15."""
    path = wrap(krea2(is_distilled=True)).path(4, latent)
    odds = path.steps.sigma / (1 - path.steps.sigma)
    even = torch.tensor([3.0, 1.0, 1 / 3], dtype=torch.float64)
    torch.testing.assert_close(odds[1:].log(), even.log() + 1.15, atol=1e-5, rtol=0)
    other = wrap(zoo.built("krea2")).path(4, latent)
    assert (other.steps.sigma[1:] < path.steps.sigma[1:]).all()

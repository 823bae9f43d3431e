"""What HiDream has of its own: pictures that are filled up, and Llama, which comes apart."""

import pytest
import torch

import pixalign as pa
import tiny
import zoo
from helpers import inputs
from pixalign.attention import AttentionReader
from pixalign.backbones import wrap
from zoo.hidream import hidream


@pytest.fixture(scope="module")
def backbone():
    return wrap(zoo.built("hidream"))


@pytest.mark.parametrize("size", [(12, 20), (8, 40)])
def test_what_fills_a_picture_up_has_its_share_of_attention(backbone, size):
    """60 of 64 tokens, and 80, which need no filling: the rows are those of the network."""
    z, steps, text = inputs(backbone, batch=1, size=size)
    sites = backbone.sites
    reader = AttentionReader(sites, dict.fromkeys(sites, "all"))
    length = text.embeds.shape[1]
    reader.columns = torch.eye(length)[None]
    with reader.attached(backbone):
        found = backbone.predict(z, steps, text)
    assert found.shape == z.shape
    pictures = reader.self_mean("all").sum(1)
    words = torch.stack([reader.cross[site][0].sum(0).flatten() for site in sites]).mean(0)
    filled = 1 - pictures - words
    if size == (12, 20):
        assert (filled > 1e-4).all()
    else:
        torch.testing.assert_close(filled, torch.zeros(80), atol=1e-5, rtol=0)


def test_each_word_stands_in_three_places(backbone):
    (columns,) = backbone.columns("a red dog", [((6, 9),)], 384)
    assert len(columns) == 3
    assert [column // 128 for column in columns] == [0, 1, 2]
    assert backbone.fits("dog " * 100)
    assert not backbone.fits("dog " * 130)
    (cut,) = backbone.columns("dog " * 200, [((796, 799),)], 384)
    assert cut == ()


def test_calls_that_read_more_or_less_are_captured(backbone):
    how = {"num_inference_steps": 1, "output_type": "latent", "guidance_scale": 1.0}
    shares = []
    for length in (64, 128):
        with pa.load(backbone.pipe).capture(["dog"]) as maps:
            backbone.pipe("a red dog", max_sequence_length=length, height=64, width=64, **how)
        shares.append(maps["dog"].mean())
    assert min(shares) > 0


def test_without_llama_it_is_refused():
    pipe = hidream()
    pipe.text_encoder_4 = None
    with pytest.raises(ValueError, match="text_encoder_4 is missing"):
        pa.load(pipe).align(tiny.photo(40, 40), ["dog"])
    pipe.tokenizer_4 = None
    with pytest.raises(ValueError, match="HiDream comes without Llama"):
        pa.load(pipe)

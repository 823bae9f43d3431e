"""PixArt, beyond what every family must do."""

import copy
import json

import pytest
import torch

import pixalign as pa
import zoo
from pixalign.backbones import wrap
from pixalign.backbones.load import FAMILIES


@pytest.fixture(scope="module")
def pipe():
    return zoo.built("pixart-sigma")


def test_words_are_read_in_lower_case_and_without_spaces_around_them(pipe):
    backbone = wrap(pipe)
    plain, given = "a red dog", "  A Red DOG "
    first, second = backbone.encode_text([plain, given]).embeds
    assert torch.equal(first, second)
    for word in ("red", "dog"):
        spans = [((start, start + 3),) for start in (plain.index(word), given.lower().index(word))]
        (expected,), (found,) = (
            backbone.columns(text, [own], len(first))
            for text, own in zip((plain, given), spans, strict=True)
        )
        assert found == expected != ()
    with pytest.raises(ValueError, match="changes its length in lower case"):
        backbone.columns("a red İ", [((0, 1),)], len(first))


def test_lengths_are_the_pipelines_own(pipe):
    for name, length in (("pixart-alpha", 120), ("pixart-sigma", 300)):
        backbone = wrap(zoo.built(name))
        assert backbone.streams[0].limit == length
        assert backbone.encode_text(["a dog"]).embeds.shape[1] == length
        assert not backbone.fits("dog " * length)


def test_folders_that_name_the_older_class_are_known(pipe, tmp_path):
    pipe.save_pretrained(tmp_path)
    for file, key, value in (
        ("model_index.json", "transformer", ["diffusers", "Transformer2DModel"]),
        ("transformer/config.json", "_class_name", "Transformer2DModel"),
    ):
        path = tmp_path / file
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    model = pa.load(tmp_path, device="cpu")
    assert model.backbone.family == "pixart"
    assert type(model.pipe.transformer) is type(pipe.transformer)
    others = ({}, {"text_encoder": "CLIPTextModel"})  # DiT, VQ Diffusion
    for more in others:
        components = {"transformer": "Transformer2DModel"} | more
        assert not any(kind.recognises(components) for kind in FAMILIES.values())


def test_capture_refuses_prompts_that_the_pipeline_cleans(pipe):
    """Its libraries are not installed here: what they do is stood in for."""
    cleaning = copy.copy(pipe)

    def clean(text, clean_caption=False):
        texts = [text] if isinstance(text, str) else text
        signs = "()" if clean_caption else ""
        return ["".join(x for x in one.lower().strip() if x not in signs) for one in texts]

    cleaning._text_preprocessing = clean
    how = {"num_inference_steps": 2, "output_type": "latent", **zoo.cases()["pixart-sigma"].plain}
    refused = pytest.raises(ValueError, match=r"cleans '\(red\) dog' to 'red dog'")
    with refused, pa.load(cleaning).capture(["dog"]):
        cleaning("(red) dog", **how)
    with pa.load(cleaning).capture(["dog"]) as maps:
        cleaning("Red dog", **how)
    assert len(maps) == 2
    with pa.load(cleaning).capture(["dog"]) as maps:
        cleaning("(red) dog", clean_caption=False, **how)
    assert len(maps) == 2


def test_methods_for_unets_refuse_it(pipe, photo):
    with pytest.raises(ValueError, match="daam reads a UNet's"):
        pa.load(pipe).align(photo, ["dog"], method="daam")

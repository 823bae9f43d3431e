"""What CogView4 has of its own: prompts of several lengths in a batch, and what it is told."""

import math

import pytest
import torch
from diffusers import DDIMScheduler

import pixalign as pa
import zoo
from helpers import inputs
from pixalign.attention import AttentionReader, AttentionWriter
from pixalign.backbones import wrap
from pixalign.core.values import TextCondition
from zoo.cogview import cogview3_plus, cogview4

SHORT = "a red dog"
LONG = "a photo of a dog and a red car with two cat and a hot dog and a tree, ok"


@pytest.fixture(scope="module")
def backbone():
    return wrap(zoo.built("cogview4"))


def mixed(backbone):
    """Latents, steps and texts: one short, one long, and the short one by itself."""
    z, steps, _ = inputs(backbone, batch=2)
    texts, alone = backbone.encode_text([SHORT, LONG]), backbone.encode_text([SHORT])
    assert texts.embeds.shape[1] > alone.embeds.shape[1] == 16
    return z, steps, texts, alone


def test_a_prompt_is_read_beside_a_longer_one_as_alone(backbone):
    z, steps, texts, alone = mixed(backbone)
    found = backbone.predict(z, steps, texts)
    first = torch.tensor([0])
    torch.testing.assert_close(found[:1], backbone.predict(z[:1], steps[first], alone))
    other = backbone.predict(z[1:], steps[first + 1], texts[first + 1])
    torch.testing.assert_close(found[1:], other)
    open_to_all = TextCondition(texts.embeds)
    assert (backbone.predict(z, steps, open_to_all)[0] - found[0]).abs().max() > 1e-3


def test_what_is_hidden_has_no_attention_and_words_stay_in_their_columns(backbone):
    z, steps, texts, alone = mixed(backbone)
    reader = AttentionReader(backbone.sites, dict.fromkeys(backbone.sites, "all"))
    writer = AttentionWriter(backbone.sites)
    plain = backbone.predict(z, steps, texts)

    def read(z, steps, texts):
        reader.clear()
        reader.columns = torch.eye(texts.embeds.shape[1]).expand(len(z), -1, -1)
        with reader.attached(backbone), writer.attached(backbone):
            found = backbone.predict(z, steps, texts)
        return found, torch.stack([reader.cross[site] for site in backbone.sites])

    found, together = read(z, steps, texts)
    assert torch.equal(found, plain)
    assert not together[:, 0, 16:].any()
    assert (together[:, 1] > 0).all()
    _, by_itself = read(z[:1], steps[torch.tensor([0])], alone)
    torch.testing.assert_close(together[:, :1, :16], by_itself)
    length = texts.embeds.shape[1]
    place = [((SHORT.index("dog"), len(SHORT)),)]
    assert backbone.columns(SHORT, place, length) == backbone.columns(SHORT, place, 16) == ((15,),)

    writer.sources, writer.targets = torch.tensor([1]), torch.tensor([0])
    writer.edit = lambda source, target, grid: target
    torch.testing.assert_close(read(z, steps, texts)[0], plain, atol=1e-5, rtol=1e-4)


def test_capture_finds_words_where_the_pipeline_pads_prompts_together(backbone):
    """The shorter prompt has more padding before it than by itself."""
    pipe, size = backbone.pipe, {"height": 64, "width": 64}
    how = {"num_inference_steps": 1, "output_type": "latent", "guidance_scale": 1.0, **size}
    with pa.load(pipe).capture(["dog"]) as maps:
        pipe([SHORT, LONG], **how, generator=torch.Generator().manual_seed(0))
    embeds, _ = pipe.encode_prompt([SHORT, LONG], do_classifier_free_guidance=False)
    assert embeds.shape[1] > 16
    reader = AttentionReader(backbone.sites)
    reader.columns = torch.eye(embeds.shape[1])[None, :, -1:].expand(2, -1, -1)
    z = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    with reader.attached(backbone):
        backbone.predict(z, backbone.path(1, (16, 16)).at(0, 2), TextCondition(embeds))
    expected = torch.stack([reader.cross[site][0, 0] for site in backbone.sites]).mean(0)
    torch.testing.assert_close(maps["dog"][0, 0], expected)


@pytest.mark.slow
def test_a_compiled_copy_hides_the_same():
    backbone = wrap(cogview4())
    z, steps, texts, _ = mixed(backbone)
    expected = backbone.epsilon(z, steps, texts)
    backbone.compile("eager")
    torch.testing.assert_close(backbone.epsilon(z, steps, texts), expected)


SHIFTS = {
    "linear": {},
    "exponential": {"time_shift_type": "exponential", "max_shift": 1.0},
    "static": {"use_dynamic_shifting": False, "shift": 3.0},
}


@pytest.mark.parametrize("side", [64, 96])
@pytest.mark.parametrize("kind", SHIFTS)
def test_noise_is_told_as_it_was_before_the_shift(kind, side):
    """The pipeline's own steps, whatever shifts them and however large the picture is."""
    pipe, theirs = cogview4(**SHIFTS[kind]), []
    pipe.transformer.register_forward_pre_hook(
        lambda _, args, kwargs: theirs.append(float(kwargs["timestep"][0])), with_kwargs=True
    )
    how = {"num_inference_steps": 7, "output_type": "latent", "guidance_scale": 1.0}
    pipe("a dog", height=side, width=side, **how)
    assert theirs == [float(int(1000 - 166.5 * step)) for step in range(7)]
    backbone, latent = wrap(pipe), (side // 4, side // 4)
    path = backbone.path(7, latent)
    assert backbone.unshifted(path.steps.time, latent).tolist() == pytest.approx(theirs, abs=2e-3)
    assert path.steps.time[3] > theirs[3] + 100
    # Between the pipeline's steps: a shift by f makes f times the odds.
    mu = (side // 8 / 16) * pipe.scheduler.config.max_shift + 0.25
    factor = {"linear": mu, "exponential": math.exp(mu), "static": 3.0}[kind]
    told = backbone.unshifted(torch.tensor([500.0]), latent).item() / 1000
    assert told / (1 - told) == pytest.approx(1 / factor)


def test_schedulers_that_do_not_say_how_the_network_was_trained_are_refused():
    with pytest.raises(ValueError, match="shift_terminal"):
        wrap(cogview4(shift_terminal=0.1)).path(2, (16, 16))
    pipe = cogview3_plus()
    pipe.scheduler = DDIMScheduler()
    with pytest.raises(ValueError, match="snr_shift_scale"):
        _ = wrap(pipe).schedule

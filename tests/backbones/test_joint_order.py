"""Where joint layers have a word's key and each row's picture, and what two families alone do."""

import copy

import pytest
import torch

import pixalign as pa
import zoo
from helpers import inputs
from pixalign.attention import AttentionReader, AttentionWriter
from pixalign.backbones import wrap
from zoo.lumina2 import lumina2

NAMES = ("lumina2", "aura-flow", "aura-flow-right")
TEXTS = ["a dog", "a photo of two cat, a red car and a tree"]


def call(pipe, **options):
    how = {"num_inference_steps": 2, "output_type": "latent", "height": 64, "width": 64}
    return pipe("a red dog", generator=torch.Generator().manual_seed(0), **how | options)


@pytest.fixture(params=NAMES)
def backbone(request):
    return wrap(zoo.built(request.param))


def maps_of(backbone, z, steps, text):
    """Each text layer's maps [B, heads, L, h * w] of all columns, and rows' image-to-image sums."""
    sites = [site for site in backbone.sites if site.reads_text]
    labels = dict.fromkeys(sites, "all")
    reader = AttentionReader(sites, labels, images=len(z), per_head=True)
    reader.columns = torch.eye(text.embeds.shape[1]).expand(len(z), -1, -1)
    reader.owners = torch.arange(len(z))
    with reader.attached(backbone):
        backbone.predict(z, steps, text)
    return [reader.cross[site].flatten(3) for site in sites], reader.self_sums["all"]


def without_refiners(pipe):
    """A copy in which text does not attend to text before the first joint layer."""
    alone = copy.copy(pipe)
    alone.register_modules(transformer=copy.deepcopy(pipe.transformer))
    for block in getattr(alone.transformer, "context_refiner", ()):
        torch.nn.init.zeros_(block.attn.to_out[0].weight)
    return alone


def test_a_changed_vector_moves_its_own_column(backbone):
    """In the first layer it changes one logit of each row: the others keep their ratios."""
    backbone = wrap(without_refiners(backbone.pipe))
    z, steps, text = inputs(backbone, batch=1)
    ((column,),) = backbone.columns("a photo of dog, cat 0", [[(11, 14)]], text.embeds.shape[1])
    before, _ = maps_of(backbone, z, steps, text)
    text.embeds[:, column] = text.embeds[:, column].flip(-1)
    after, _ = maps_of(backbone, z, steps, text)
    ratios = (after[0][0] / before[0][0]).log()  # [heads, L, h * w], of columns that are not hidden
    read = before[0][0].amin((0, 2)).nonzero()[:, 0]
    moved = (ratios - ratios[:, read].median(1, keepdim=True).values).abs().amax((0, 2))
    assert read[moved[read] > 1e-3].tolist() == [column]


def test_rows_of_a_batch_attend_as_they_do_alone(backbone):
    """Texts of different lengths: each row has its picture elsewhere."""
    z, steps, _ = inputs(backbone)
    text = backbone.encode_text(TEXTS)
    together, pictures = maps_of(backbone, z, steps, text)
    for row in range(2):
        own = torch.tensor([row])
        alone, picture = maps_of(backbone, z[own], steps[own], text[own])
        torch.testing.assert_close(pictures[own], picture, atol=1e-5, rtol=1e-4)
        for found, expected in zip(together, alone, strict=True):
            torch.testing.assert_close(found[own], expected, atol=1e-6, rtol=1e-3)


def test_writing_what_was_read_changes_nothing(backbone):
    """A row's own attention is written to where its picture stands."""
    z, steps, _ = inputs(backbone)
    text = backbone.encode_text(TEXTS)
    plain = backbone.predict(z, steps, text)
    writer = AttentionWriter(backbone.sites)
    writer.edit = lambda source, target, grid: target
    for source, target in ((0, 1), (1, 0)):
        writer.sources, writer.targets = torch.tensor([source]), torch.tensor([target])
        with writer.attached(backbone):
            same = backbone.predict(z, steps, text)
        torch.testing.assert_close(same, plain, atol=1e-5, rtol=1e-4)


def test_lumina_leads_away_from_a_text_without_its_system_prompt():
    pipe = zoo.built("lumina2")
    shown = []

    def listening(_, args, kwargs):
        shown.append((kwargs["encoder_hidden_states"], kwargs["encoder_attention_mask"]))

    handle = pipe.transformer.register_forward_pre_hook(listening, with_kwargs=True)
    call(pipe, guidance_scale=2.0)
    handle.remove()
    embeds, mask = shown[1]  # the second pass of a step
    empty = wrap(pipe).unconditional()
    assert torch.equal(empty.embeds, embeds)
    assert torch.equal(empty.mask, mask.bool())
    assert int(mask.sum()) == 1  # the start token


def test_luminas_shift_counts_channels():
    """As its pipeline does, where the scheduler asks for the number of tokens."""
    pipe = lumina2(use_dynamic_shifting=True)
    call(pipe, guidance_scale=1.0)
    path = wrap(pipe).path(2, (8, 8))
    assert path.steps.time.tolist() == pytest.approx(pipe.scheduler.timesteps.tolist(), rel=1e-6)


def test_capture_refuses_a_system_prompt_of_the_call():
    pipe = zoo.built("lumina2")
    with pa.load(pipe).capture(["dog"]):
        call(pipe, guidance_scale=1.0, system_prompt=pipe.system_prompt)
        with pytest.raises(ValueError, match="system prompt"):
            call(pipe, guidance_scale=1.0, system_prompt="Draw it.")


@pytest.mark.parametrize("name", ["aura-flow", "aura-flow-right"])
def test_auraflow_pads_to_the_length_of_a_call(name):
    """Its padding is zeros, and stands on the tokenizer's side."""
    backbone, words = wrap(zoo.built(name)), [((0, 1),), ((2, 5),), ((6, 9),)]
    for length in (16, 256, 300):
        how = {"do_classifier_free_guidance": False, "max_sequence_length": length}
        embeds = backbone.pipe.encode_prompt("a red dog", **how)[0][0]
        *there, _ = embeds.any(1).nonzero()[:, 0].tolist()  # without the end token
        columns = backbone.columns("a red dog", words, length, backbone.call_streams(length))
        assert columns == tuple((column,) for column in there)


def test_auraflows_size_is_bounded_by_its_positions():
    backbone = wrap(zoo.built("aura-flow"))
    assert backbone.largest_side == 64
    assert backbone.native_size == (64, 64)
    with pytest.raises(ValueError, match="multiples of 8 up to 64"):
        pa.load(backbone.pipe).generate("a dog", method="plain", size=(72, 64), steps=1)

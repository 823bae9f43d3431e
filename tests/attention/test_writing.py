"""Written attention against materialised attention, and the network left as it was."""

import copy

import pytest
import torch
from torch.nn.functional import linear

import tiny
from helpers import assert_same, bare_network, fingerprint, inputs
from materialised import projected
from pixalign.attention import AttentionReader
from pixalign.attention.writing import AttentionWriter
from pixalign.backbones import wrap
from pixalign.backbones.sd import unet_sites


def unchanged(source, target, grid):
    assert source.shape == target.shape
    assert target.shape[2] == grid[0] * grid[1]
    return target


def writing(sites, sources, targets, edit=None, replaced=()):
    writer = AttentionWriter(sites)
    writer.sources, writer.targets = torch.tensor(sources), torch.tensor(targets)
    writer.edit, writer.replaced = edit, frozenset(replaced)
    return writer


def predicted(backbone, given, writer):
    with writer.attached(backbone):
        return backbone.predict(*given)


def layer_output(backbone, given, writer, site):
    """What a layer says in one pass, of a joint one the image's part; hooks see it written."""
    found = []

    def keep(module, args, output):
        found.append(output[0] if isinstance(output, tuple) else output)

    with writer.attached(backbone), site.module.register_forward_hook(keep):
        backbone.predict(*given)
    return found[0]


@pytest.mark.parametrize("size", [None, (16, 24)])
def test_writing_back_what_is_there_changes_nothing(any_pipe, size):
    backbone = wrap(any_pipe)
    given = inputs(backbone, batch=3, size=size)
    plain = backbone.predict(*given)
    found = predicted(backbone, given, writing(backbone.sites, [0, 0], [1, 2], unchanged))

    torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-4)
    assert not torch.equal(found[1:], plain[1:])  # it was computed anew
    assert torch.equal(found[0], plain[0])


def test_a_row_that_is_its_own_source_is_not_changed_by_self_replacing(any_pipe):
    backbone = wrap(any_pipe)
    given = inputs(backbone)
    plain = backbone.predict(*given)
    writer = writing(backbone.sites, [0, 1], [0, 1], replaced=backbone.sites)

    torch.testing.assert_close(predicted(backbone, given, writer), plain, atol=1e-5, rtol=1e-4)


def test_nothing_to_write_changes_no_bit(any_pipe):
    backbone = wrap(any_pipe)
    given = inputs(backbone)
    before, plain = fingerprint(backbone.denoiser), backbone.predict(*given)

    for writer in (
        writing(backbone.sites, [0], [1]),
        AttentionWriter(backbone.sites),
        writing(backbone.sites, [], [], unchanged, backbone.sites),
    ):
        assert torch.equal(predicted(backbone, given, writer), plain)
    assert_same(before, fingerprint(backbone.denoiser))


def test_rows_that_are_not_written_keep_every_bit_and_all_is_restored(any_pipe):
    backbone = wrap(any_pipe)
    given = inputs(backbone, batch=4)
    before, plain = fingerprint(backbone.denoiser), backbone.predict(*given)
    writer = writing(backbone.sites, [2], [1], lambda s, t, grid: 2 * s, backbone.sites)
    found = predicted(backbone, given, writer)

    assert torch.equal(found[[0, 2, 3]], plain[[0, 2, 3]])
    assert (found[1] - plain[1]).abs().max() > 1e-3
    assert torch.equal(backbone.predict(*given), plain)
    assert_same(before, fingerprint(backbone.denoiser))


def test_the_network_is_restored_when_an_edit_raises(any_pipe):
    backbone = wrap(any_pipe)
    given = inputs(backbone)
    before = fingerprint(backbone.denoiser)

    def failing(source, target, grid):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        predicted(backbone, given, writing(backbone.sites, [0], [1], failing))
    assert_same(before, fingerprint(backbone.denoiser))


def test_an_edit_sees_the_probabilities_that_a_reader_reads(any_pipe):
    backbone = wrap(any_pipe)
    given = inputs(backbone)
    reader = AttentionReader(backbone.sites)
    length = given[2].embeds.shape[1]
    reader.columns = torch.eye(length).expand(2, -1, -1)
    seen = []

    def keep(source, target, grid):
        seen.append(torch.stack([source[0], target[0]]).mean(1))
        return target

    # The layers are written with what they had, so that later ones read the same.
    with reader.attached(backbone):
        predicted(backbone, given, writing(backbone.sites, [0], [1], keep))
    assert len(seen) == len(reader.cross)
    for maps, found in zip(reader.cross.values(), seen, strict=True):
        expected = maps.flatten(2).transpose(1, 2)  # [2, h*w, L]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-3)


def materialised(site, hidden, text, source, target, edit, replace):
    """The layer's output for the target row, with whole matrices and nothing of ours but Q, K."""
    attn = site.module
    probabilities = []
    for row in (source, target):
        q, k = projected(attn, hidden[row, None], None if text is None else text[row, None])
        probabilities.append((q @ k.transpose(2, 3) * attn.scale).softmax(-1))
    looked_at = text if site.kind == "cross" else hidden
    values = linear(looked_at[target, None], attn.to_v.weight, attn.to_v.bias)
    if site.kind == "joint":
        added = linear(text[target, None], attn.add_v_proj.weight, attn.add_v_proj.bias)
        values = torch.cat([values, added], dim=1)
    images = {"cross": 0, "self": values.shape[1], "joint": hidden.shape[1]}[site.kind]
    new = probabilities[1].clone()
    if replace:
        new[..., :images] = probabilities[0][..., :images]
    if edit is not None:
        new[..., images:] = edit(*(p[..., images:] for p in probabilities), None)
    heads = values.unflatten(2, (attn.heads, -1)).transpose(1, 2)
    merged = (new @ heads).transpose(1, 2).flatten(2)
    return attn.to_out[0](merged)[0]


@pytest.mark.parametrize("name", ["sd1", "sdxl", "sd3-t5", "sd3.5"])
@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("edits", [True, False])
def test_layers_say_what_materialised_attention_says(pipeline, name, replace, edits):
    backbone = wrap(pipeline(name))
    given = inputs(backbone, batch=3, size=(16, 8))

    def shift(source, target, grid):
        return 0.25 * source.roll(1, -1) + 1.5 * target

    edit = shift if edits else None
    for site in backbone.sites:
        if not (edit and site.reads_text) and not (replace and site.reads_image):
            continue
        kept = {}
        writer = writing([site], [2, 0], [0, 1], edit, [site] if replace else [])
        with site.module.register_forward_pre_hook(
            lambda module, args, kwargs, kept=kept: kept.update(kwargs, args=args), with_kwargs=True
        ):
            found = layer_output(backbone, given, writer, site)
        hidden = kept["args"][0] if kept["args"] else kept["hidden_states"]
        text = kept.get("encoder_hidden_states")
        with torch.no_grad():
            for source, target in ((2, 0), (0, 1)):
                expected = materialised(site, hidden, text, source, target, edit, replace)
                torch.testing.assert_close(found[target], expected, atol=2e-5, rtol=1e-4)


def test_bare_attention_blocks_are_written_too():
    """Layers without a transformer around them: 4-D input, a group norm and a residual."""
    unet = tiny.bare_unet()
    sites = list(unet_sites(unet))
    assert any(site.module.residual_connection for site in sites)
    z, text = torch.randn(3, 4, 16, 16), torch.randn(3, 5, 8)
    with torch.no_grad():
        plain = unet(z, 5, encoder_hidden_states=text).sample
        with writing(sites, [0, 1], [0, 1], unchanged, sites).attached(bare_network(unet)):
            same = unet(z, 5, encoder_hidden_states=text).sample
        with writing(sites, [2, 2], [0, 1], None, sites).attached(bare_network(unet)):
            other = unet(z, 5, encoder_hidden_states=text).sample
    torch.testing.assert_close(same, plain, atol=1e-5, rtol=1e-4)
    assert torch.equal(other[2], plain[2])
    assert (other[:2] - plain[:2]).abs().amax((1, 2, 3)).min() > 1e-5


def test_masked_text_stays_masked(pipeline):
    backbone = wrap(pipeline("sd1"))
    z, steps, text = inputs(backbone)
    keep = torch.ones(2, 77, dtype=torch.bool)
    keep[:, 6:] = False
    seen = []

    def look(source, target, grid):
        seen.append(target[..., 6:].max())
        return target

    given = {"encoder_hidden_states": text.embeds, "encoder_attention_mask": keep}
    with torch.no_grad():
        plain = backbone.denoiser(z, steps.time, **given).sample
        with writing(backbone.sites, [0], [1], look).attached(backbone):
            found = backbone.denoiser(z, steps.time, **given).sample
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-4)
    assert max(seen) < 1e-6


def test_half_precision_keeps_its_type(sd1):
    pipe = copy.copy(sd1)
    unet = copy.deepcopy(sd1.unet).to(torch.bfloat16)
    pipe.register_modules(unet=unet)
    backbone = wrap(pipe)
    given = inputs(backbone)
    plain = backbone.predict(*given)
    found = predicted(backbone, given, writing(backbone.sites, [0], [1], unchanged))
    assert (found - plain).abs().max() < 0.1 * plain.abs().max()
    assert torch.equal(found[0], plain[0])

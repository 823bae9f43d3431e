"""Observed attention against materialised attention, and the network left as it was."""

from contextlib import ExitStack

import pytest
import torch
from diffusers.models.attention_processor import AttnProcessor
from hypothesis import given
from hypothesis import strategies as st

import tiny
from helpers import assert_same, bare_network, fingerprint, inputs
from materialised import projected
from pixalign.attention import AttentionReader, add_by_owner, reading
from pixalign.attention.tap import tapped
from pixalign.backbones import wrap
from pixalign.backbones.sd import unet_sites


class Spy(AttnProcessor):
    """diffusers' own materialising processor, which also keeps its probabilities."""

    def __init__(self) -> None:
        self.probabilities = None

    def __call__(self, attn, hidden_states, **kwargs):
        original = attn.get_attention_scores

        def keep(*args):
            self.probabilities = original(*args)
            return self.probabilities

        attn.get_attention_scores = keep
        try:
            return super().__call__(attn, hidden_states, **kwargs)
        finally:
            del attn.get_attention_scores


def read(backbone, given, columns, labels=None, sites=None):
    """A reader of those columns, after one pass."""
    reader = AttentionReader(sites or backbone.sites, labels)
    reader.columns = columns
    with reader.attached(backbone):
        backbone.predict(*given)
    return reader


@pytest.mark.parametrize("size", [(32, 32), (16, 40)])
def test_unet_maps_equal_diffusers_own_probabilities(pipeline, size):
    backbone = wrap(pipeline("sd1"))
    given = inputs(backbone, size=size)
    columns = torch.rand(2, 77, 3, generator=torch.Generator().manual_seed(1))
    labels = {s: str(i) for i, s in enumerate(backbone.sites) if s.kind == "self"}
    reader = read(backbone, given, columns, labels)

    processors = dict(backbone.denoiser.attn_processors)
    spies = {name: Spy() for name in processors}
    try:
        backbone.denoiser.set_attn_processor(dict(spies))
        backbone.predict(*given)
    finally:
        backbone.denoiser.set_attn_processor(processors)
    names = {id(module): name for name, module in backbone.denoiser.named_modules()}
    assert {site.kind for site in backbone.sites} == {"cross", "self"}
    for site in backbone.sites:
        found = spies[f"{names[id(site.module)]}.processor"].probabilities
        mean = found.unflatten(0, (2, -1)).mean(1)  # [B, P, K]
        height, width = size[0] // site.factor, size[1] // site.factor
        assert mean.shape[1] == height * width
        if site.kind == "cross":
            expected = (mean @ columns).transpose(1, 2).unflatten(2, (height, width))
            torch.testing.assert_close(reader.cross[site], expected, atol=1e-6, rtol=1e-5)
        else:
            torch.testing.assert_close(
                reader.self_mean(labels[site]), mean.mean(0), atol=1e-6, rtol=1e-5
            )


def test_cross_probabilities_sum_to_one(any_pipe):
    backbone = wrap(any_pipe)
    given = inputs(backbone)
    reader = read(backbone, given, torch.ones(2, given[2].embeds.shape[1], 1))
    for maps in reader.cross.values():
        assert maps.shape[:2] == (2, 1)
        if backbone.family == "sd3":
            assert (maps < 1).all()
        else:
            torch.testing.assert_close(maps, torch.ones_like(maps))
    assert len(reader.cross) == sum(site.reads_text for site in backbone.sites)


def test_joint_rows_split_into_image_and_text(pipeline):
    backbone = wrap(pipeline("sd3.5"))
    given = inputs(backbone, batch=1)
    columns = torch.ones(1, given[2].embeds.shape[1], 1)
    for site in (s for s in backbone.sites if s.kind == "joint"):
        reader = read(backbone, given, columns, {site: "s"}, [site])
        image = reader.self_mean("s").sum(1)
        torch.testing.assert_close(image + reader.cross[site].flatten(), torch.ones_like(image))


def test_observing_changes_no_bit(any_pipe):
    backbone = wrap(any_pipe)
    given = inputs(backbone)
    before = fingerprint(backbone.denoiser)
    plain = backbone.predict(*given)
    labels = {s: f"factor {s.factor}" for s in backbone.sites if s.reads_image}
    reader = AttentionReader(backbone.sites, labels)
    reader.columns = torch.ones(2, given[2].embeds.shape[1], 1)
    with reader.attached(backbone):
        observed = backbone.predict(*given)
    after = backbone.predict(*given)

    assert torch.equal(plain, observed)
    assert torch.equal(plain, after)
    assert_same(before, fingerprint(backbone.denoiser))


def test_network_is_restored_when_the_pass_raises(any_pipe):
    backbone = wrap(any_pipe)
    before = fingerprint(backbone.denoiser)
    with pytest.raises(IndexError):  # columns of one class that say so: the observer itself fails
        read(backbone, inputs(backbone), torch.ones(2, 3))
    assert_same(before, fingerprint(backbone.denoiser))


@pytest.mark.parametrize("name", ["sd1", "sd3.5"])
def test_pieces_give_the_same_as_the_whole(pipeline, name, monkeypatch):
    backbone = wrap(pipeline(name))
    given = inputs(backbone, batch=3)
    highest = min(site.factor for site in backbone.sites)
    labels = {s: "all" for s in backbone.sites if s.reads_image and s.factor == highest}
    columns = torch.eye(given[2].embeds.shape[1])[:, :5].expand(3, -1, -1)
    found = []
    for budget in (2**25, 2**12):
        monkeypatch.setattr(reading, "_PROBABILITY_BUDGET", budget)
        found.append(read(backbone, given, columns, labels))

    for site in found[0].cross:
        torch.testing.assert_close(found[0].cross[site], found[1].cross[site], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(
        found[0].self_mean("all"), found[1].self_mean("all"), atol=1e-6, rtol=1e-5
    )


def test_rows_choose_a_part_of_the_batch(pipeline):
    backbone = wrap(pipeline("sdxl"))
    z, steps, text = inputs(backbone, batch=4)
    whole, part = (AttentionReader(backbone.sites) for _ in range(2))
    whole.columns = torch.rand(4, 77, 2, generator=torch.Generator().manual_seed(0))
    part.columns, part.rows = whole.columns[2:], slice(2, None)
    with whole.attached(backbone), part.attached(backbone):
        backbone.predict(z, steps, text)

    for site, maps in part.cross.items():
        torch.testing.assert_close(maps, whole.cross[site][2:], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("budget", [2**25, 2**12])
@pytest.mark.parametrize("name", ["sd1", "sd3.5"])
def test_self_attention_goes_to_the_images_that_own_the_rows(pipeline, name, budget, monkeypatch):
    monkeypatch.setattr(reading, "_PROBABILITY_BUDGET", budget)
    backbone = wrap(pipeline(name))
    z, steps, text = inputs(backbone, batch=4, size=(16, 16))
    highest = min(site.factor for site in backbone.sites)
    labels = {
        site: "down" if site.place == "down" else "rest"
        for site in backbone.sites
        if site.reads_image and site.factor == highest
    }
    reader = AttentionReader(backbone.sites, labels, images=4)
    owners = [0, 2, 2, 3]  # nothing of image 1 in this batch
    reader.owners, reader.columns = torch.tensor(owners), torch.ones(4, text.embeds.shape[1], 1)
    rows = [AttentionReader(backbone.sites, labels) for _ in owners]
    for index, row in enumerate(rows):
        row.columns, row.rows = reader.columns[:1], slice(index, index + 1)
    with ExitStack() as attached:
        for one in (reader, *rows):
            attached.enter_context(one.attached(backbone))
        backbone.predict(z, steps, text)

    for label in set(labels.values()):
        count = sum(found == label for found in labels.values())
        assert reader.self_counts[label].tolist() == [count, 0, 2 * count, count]
        assert (reader.self_sums[label][1] == 0).all()
        for image in (0, 2, 3):
            owned = [rows[i].self_mean(label) for i, owner in enumerate(owners) if owner == image]
            found, expected = reader.self_mean(label, image=image), torch.stack(owned).mean(0)
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@given(
    owners=st.lists(st.integers(0, 6), min_size=1, max_size=9).map(sorted),
    beyond=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
def test_adding_by_owner_is_indexed_addition(owners, beyond, seed):
    generator = torch.Generator().manual_seed(seed)
    totals = torch.randn(owners[-1] + 1 + beyond, 4, 3, generator=generator)
    values = torch.randn(len(owners), 2, 3, generator=generator)
    expected = totals.clone()
    expected[:, 1:3].index_add_(0, torch.tensor(owners), values)

    add_by_owner(totals[:, 1:3], values, torch.tensor(owners))  # into a part of the totals
    torch.testing.assert_close(totals, expected)
    absent = [image for image in range(len(totals)) if image not in owners]
    assert torch.equal(totals[absent], expected[absent])


def test_unet_sites_run_in_the_order_listed(pipeline):
    backbone = wrap(pipeline("sd1"))
    ran = []
    with ExitStack() as hooks:
        for site in backbone.sites:
            hook = site.module.register_forward_pre_hook(lambda *_, site=site: ran.append(site))
            hooks.enter_context(hook)
        backbone.predict(*inputs(backbone))
    assert tuple(ran) == backbone.sites
    factors = [site.factor for site in backbone.sites if site.kind == "cross"]
    assert factors == [1, 2, 4, 8, 4, 4, 2, 2, 1, 1]


def test_bare_self_attention_blocks_are_sites_too():
    """UNets may hold attention layers without a transformer around them."""
    unet = tiny.bare_unet()
    sites = list(unet_sites(unet))
    bare = [site for site in sites if site.module.group_norm is not None]
    assert {(s.kind, s.factor) for s in bare} == {("self", 1)}
    assert [s.place for s in bare] == ["down", "up", "up"]
    reader = AttentionReader(sites, {site: str(i) for i, site in enumerate(bare)})
    reader.columns = torch.ones(1, 5, 1)
    spies = [Spy() for _ in bare]
    z, text = torch.randn(1, 4, 16, 16), torch.randn(1, 5, 8)
    with torch.no_grad(), reader.attached(bare_network(unet)):
        unet(z, 5, encoder_hidden_states=text)
    for site, spy in zip(bare, spies, strict=True):
        site.module.set_processor(spy)
    with torch.no_grad():
        unet(z, 5, encoder_hidden_states=text)

    for index, spy in enumerate(spies):
        expected = spy.probabilities.mean(0)
        torch.testing.assert_close(reader.self_mean(str(index)), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["sd1", "sd3.5"])
def test_the_tap_hears_what_the_weights_say(pipeline, name):
    """Queries and keys are those that the layer's own projections and norms make of its inputs."""
    backbone = wrap(pipeline(name))
    given = inputs(backbone, batch=2, size=(16, 8))
    for site in backbone.sites:
        heard, kept = [], {}

        def keep(module, args, kwargs, kept=kept):
            kept.update(kwargs, hidden_states=args[0] if args else kwargs["hidden_states"])

        with (
            tapped(backbone, [site], lambda site, call, grid, heard=heard: heard.append(call)),
            site.module.register_forward_pre_hook(keep, with_kwargs=True),
        ):
            backbone.predict(*given)
        (call,) = heard
        query, key = projected(
            site.module, kept["hidden_states"], kept.get("encoder_hidden_states")
        )
        torch.testing.assert_close(call.query, query)
        torch.testing.assert_close(call.key, key)


def test_masked_text_gets_no_attention(pipeline):
    """An encoder attention mask, as some pipelines pass one, counts in the maps too."""
    backbone = wrap(pipeline("sd1"))
    z, steps, text = inputs(backbone, batch=1)
    reader = AttentionReader(backbone.sites)
    reader.columns = torch.eye(77)[None]
    keep = torch.ones(1, 77)
    keep[:, 6:] = 0
    with torch.no_grad(), reader.attached(backbone):
        backbone.denoiser(
            z, steps.time, encoder_hidden_states=text.embeds, encoder_attention_mask=keep.bool()
        )
    for maps in reader.cross.values():
        assert maps[:, 6:].max() < 1e-6
        torch.testing.assert_close(maps.sum(1), torch.ones_like(maps.sum(1)))

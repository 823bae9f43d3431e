"""Attend-and-Excite and SynGen against slow readings of them, and the network left as it was."""

import math
import re
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, StableDiffusionAttendAndExcitePipeline

import helpers
import tiny
from helpers import assert_same, model_of
from materialised import observe
from pixalign.attention import run_through
from pixalign.backbones import wrap
from pixalign.backbones.gradients import gradients_to_inputs
from pixalign.generation import GENERATION_METHODS, gradient_methods
from pixalign.generation.gradient_methods import (
    AttendExcite,
    SynGen,
    differentiable_maps,
    map_sites,
)
from pixalign.generation.methods import GenerationMethod as Plain
from pixalign.generation.plan import GenerationPlan, GenerationRequest, GenerationSettings
from pixalign.text.entities import given_entities
from released import encode

UNETS = ("sd1", "sd2-v", "sdxl")
BOTH = (AttendExcite, SynGen)
# Three tokens in "zebra" or more; "photo" and "screen door" are nobody's words.
PROMPT = "a photo of hot red dog, screen door and a zebra car, cat"
ENTITIES = ("hot red dog", "zebra car", "cat")
OTHER = "two red cat and a hot car"


def request(prompt=PROMPT, entities=ENTITIES, seed=0):
    named = given_entities(prompt, list(entities)) if entities else ()
    return GenerationRequest(prompt, seed, named)


REQUESTS = (
    request(),
    request(OTHER, ("red cat", "hot car"), seed=1),
    request("a photo of tree", (), seed=2),
    request("a dog and cat", ("dog", "cat"), seed=3),
)


def plan_of(pipe, requests=(REQUESTS[0],), *, steps=4, size=(32, 32), batch_size=64, **settings):
    model = model_of(pipe, batch_size=batch_size)
    return GenerationPlan(model, requests, GenerationSettings(steps, 3.0, **settings), size)


def latents_of(plan, kind):
    """The latents to which the method leads, and the method."""
    method = kind(plan)
    return plan.sampler.run(plan.noise, method.output, before=method.before), method


# ---- the maps ----


def slow_maps(pipe, z, time, prompt, factor):
    """[h, w, L] of one latent [1, C, h, w]: head after head of every layer of that factor."""
    pixel = tuple(side * 4 for side in z.shape[-2:])
    with torch.no_grad():
        layers = observe(pipe, z, time, encode(pipe, prompt), pixel)
    found = [layer for layer in layers if layer.text and layer.factor == factor]
    heads = [head for layer in found for head in layer.heads]
    return (sum(heads) / len(heads)).unflatten(0, found[0].size).double().numpy()


@pytest.mark.parametrize("name", UNETS)
@pytest.mark.parametrize("size", [(64, 64), (64, 96)])
def test_maps_equal_materialised_attention(wide, name, size):
    plan = plan_of(wide(name), REQUESTS[:2], size=size)
    sites = map_sites(plan.backbone)
    with torch.no_grad():
        steps = plan.sampler.path.at(1, 2)
        found = differentiable_maps(plan.backbone, plan.noise, steps, plan.texts, sites)

    assert found.dtype == torch.float32
    for row, asked in enumerate(REQUESTS[:2]):
        z, time = plan.noise[row : row + 1].double(), round(steps.time[0].item())
        expected = slow_maps(wide(name), z, time, asked.prompt, sites[0].factor)
        assert expected.std(axis=(0, 1)).max() > 1e-3
        np.testing.assert_allclose(found[row].permute(1, 2, 0), expected, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "side", "factor", "places"),
    [
        ("sd1", 32, 2, {"down", "up"}),
        ("sd1", 64, 4, {"down", "up"}),
        ("sd2-v", 24, 2, {"down", "up"}),
        ("sd2-v", 96, 4, {"down", "up"}),  # 12 x 12 is nearer, but the middle's alone
        ("sdxl", 32, 2, {"down", "up"}),
        ("sdxl", 128, 4, {"down", "mid", "up"}),
    ],
)
def test_the_grid_nearest_to_16_cells_is_read(name, side, factor, places):
    pipe = tiny.BUILDERS[name]()
    pipe.unet.register_to_config(sample_size=side)
    sites = map_sites(wrap(pipe))

    assert {site.factor for site in sites} == {factor}
    assert {site.place for site in sites} == places
    assert {site.kind for site in sites} == {"cross"}


def test_joint_attention_is_refused(pipeline):
    for kind in BOTH:
        with pytest.raises(ValueError, match=rf"{kind.name} .* sd3 .*families: sd, sdxl"):
            model_of(pipeline("sd3")).generate("a red dog", method=kind.name, entities=["red dog"])
        for name in UNETS:
            kind.check(wrap(pipeline(name)))


# ---- the losses ----


def tokens_of(pipe, prompt, words):
    """Columns of the words' tokens at their first occurrence, by the lengths of prefixes."""
    start, end = re.search(rf"\b{words}\b", prompt).span()
    tokens = [pipe.tokenizer(prompt[:stop], add_special_tokens=False) for stop in (start, end)]
    return list(range(*(1 + len(found.input_ids) for found in tokens)))


def slow_excitement(maps, nouns):
    """1 - max of each noun's smoothed share of the tokens, for float64 maps [h, w, L]."""
    height, width, _ = maps.shape
    powers = np.exp(100 * maps[:, :, 1:-1])
    shares = powers / powers.sum(axis=2, keepdims=True)
    weight = {(dy, dx): math.exp(-(dy**2 + dx**2)) for dy in (-1, 0, 1) for dx in (-1, 0, 1)}
    found = []
    for columns in nouns:
        noun = np.pad(shares[:, :, [c - 1 for c in columns]].mean(axis=2), 1, mode="reflect")
        total = sum(
            share * noun[1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]
            for (dy, dx), share in weight.items()
        )
        found.append(1 - total.max() / sum(weight.values()))
    return found


def slow_binding(maps, noun, modifiers, others):
    """A noun's divergence from its modifiers less all their divergence from the other tokens."""

    def divergence(*words):
        p, q = (maps[:, :, columns].mean(axis=2) for columns in words)
        p, q = p / p.sum(), q / q.sum()
        return ((p * np.log(p / q)).sum() + (q * np.log(q / p)).sum()) / 2

    near = [divergence(noun, modifier) for modifier in modifiers]
    far = [divergence(word, [other]) for word in (noun, *modifiers) for other in others]
    return sum(near) / len(near) - (sum(far) / len(far) if far else 0)


def slow_losses(kind, pipe, maps):
    """What each method makes of the entities of PROMPT that it measures."""
    columns = {word: tokens_of(pipe, PROMPT, word) for word in PROMPT.replace(",", "").split()}
    if kind is AttendExcite:
        return slow_excitement(maps, [columns[word] for word in ("dog", "car", "cat")])
    assert len(columns["zebra"]) > 1
    everything = tokens_of(pipe, PROMPT, PROMPT)
    found = []
    for noun, *modifiers in (("dog", "hot", "red"), ("car", "zebra")):
        own = {column for word in (noun, *modifiers) for column in columns[word]}
        others = [column for column in everything if column not in own]
        found.append(
            slow_binding(maps, columns[noun], [columns[word] for word in modifiers], others)
        )
    return found


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("size", [(7, 5), (16, 16)])
def test_losses_equal_plain_loops(pipeline, kind, size):
    pipe = pipeline("sd1")
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(77, *size, generator=generator, dtype=torch.float64).mul(3).softmax(0)
    made = kind(plan_of(pipe))
    found, expected = made.losses(0, maps), slow_losses(kind, pipe, maps.permute(1, 2, 0).numpy())

    assert made.measured == [[0, 1, 2] if kind is AttendExcite else [0, 1]]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    total = max(expected) if kind is AttendExcite else sum(expected)
    assert made.total(found).item() == pytest.approx(total)


def test_a_prompt_without_other_words_pulls_only_together(pipeline):
    made = SynGen(plan_of(pipeline("sd1"), [request("red dog", ["red dog"])]))
    maps = torch.rand(77, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = slow_binding(maps.permute(1, 2, 0).numpy(), [2], [[1]], [])

    assert made.losses(0, maps).item() == pytest.approx(expected)
    maps[1] = 3 * maps[2]  # of one form
    assert made.losses(0, maps).item() == pytest.approx(0, abs=1e-12)
    maps[1] = 0
    assert torch.isfinite(made.losses(0, maps)).all()


# ---- the gradient ----


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", UNETS)
def test_slopes_are_those_of_the_slow_loss(wide, name, kind):
    """Along three directions, the slow loss rises as the gradient says."""
    pipe, index = wide(name), 1
    made = kind(plan_of(pipe))
    z, time = made.plan.noise.double(), round(made.plan.sampler.path.steps.time[index].item())
    (slopes,) = made.slopes(index, z, [0])
    pick = max if kind is AttendExcite else sum

    def slow(shift):
        maps = slow_maps(pipe, z + shift, time, PROMPT, made.sites[0].factor)
        return slow_losses(kind, pipe, maps)

    np.testing.assert_allclose(made.errors[0][index, made.measured[0]], slow(0), atol=2e-5)
    generator = torch.Generator().manual_seed(7)
    directions = [torch.randn(z.shape, generator=generator).double() for _ in range(2)]
    for direction in (slopes[None], *directions):
        small = 1e-4 * direction / direction.norm()
        rise = (pick(slow(small)) - pick(slow(-small))) / 2
        expected = (slopes * small).sum().item()
        assert rise == pytest.approx(expected, rel=2e-3, abs=2e-7 * slopes.norm().item())


@pytest.mark.parametrize("tries", [0, 3])
def test_attend_and_excite_as_diffusers_has_it(monkeypatch, tries):
    """Whole paths agree, without refinement and with one whose target is out of reach."""
    parts = tiny.sd1().to(torch.float64).components
    del parts["image_encoder"]
    parts["scheduler"] = DDIMScheduler(
        **tiny.SD_NOISE, timestep_spacing="trailing", set_alpha_to_one=False, clip_sample=False
    )
    theirs = StableDiffusionAttendAndExcitePipeline(**parts, requires_safety_checker=False)
    theirs.set_progress_bar_config(disable=True)
    theirs._perform_iterative_refinement_step = partial(
        theirs._perform_iterative_refinement_step, max_refinement_steps=tries
    )
    asked, targets = request("a red dog and cat", ("red dog", "cat")), {0: 1.0} if tries else {}
    monkeypatch.setattr(gradient_methods, "TARGETS", targets)
    monkeypatch.setattr(gradient_methods, "TRIES", tries)
    plan = plan_of(tiny.sd1().to(torch.float64), [asked], size=(128, 128))
    plan.noise = plan.noise.double()
    mine, made = latents_of(plan, AttendExcite)
    expected = theirs(
        [asked.prompt],
        [[3, 5]],
        num_inference_steps=4,
        guidance_scale=3.0,
        latents=plan.noise.clone(),
        output_type="latent",
        max_iter_to_alter=2,
        thresholds=targets,
    ).images
    plain, _ = latents_of(plan, Plain)

    assert made.targets == targets
    moved = (expected - plain).norm().item()
    assert moved > 0.005 * plain.norm().item()
    assert (mine - expected).norm().item() < 1e-4 * moved


@pytest.mark.parametrize("kind", BOTH)
def test_half_precision_finds_the_same_way(pipeline, kind):
    slopes = []
    for pipe in (pipeline("sd1"), tiny.sd1().to(torch.bfloat16)):
        made = kind(plan_of(pipe))
        slopes.append(made.slopes(1, made.plan.noise, [0]).flatten())
        assert slopes[-1].dtype == torch.float32
    assert torch.cosine_similarity(*slopes, dim=0) > 0.9


def test_a_gradient_without_number_is_an_error(pipeline, monkeypatch):
    made = SynGen(plan_of(pipeline("sd1")))
    monkeypatch.setattr(made, "total", lambda losses: losses.sum() * torch.inf)
    with pytest.raises(FloatingPointError, match=r"syngen .*float32"):
        made.slopes(0, made.plan.noise, [0])


# ---- when and whom they move ----


@pytest.mark.parametrize(
    ("steps", "targets"),
    [
        (50, {0: 0.05, 10: 0.5, 20: 0.8}),
        (20, {0: 0.05, 4: 0.5, 8: 0.8}),
        (5, {0: 0.05, 1: 0.5, 2: 0.8}),
    ],
)
def test_steps_of_attend_and_excite(pipeline, steps, targets):
    made = AttendExcite(plan_of(pipeline("sd1"), steps=steps))
    sizes = 20 * np.sqrt(np.linspace(1, 0.5, steps))

    assert made.targets == targets
    np.testing.assert_allclose([made.step_size(index) for index in range(steps)], sizes)
    assert {SynGen(made.plan).step_size(index) for index in range(steps)} == {20.0}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("steps", "active", "expected"),
    [(6, (0.0, 1.0), [0, 1, 2]), (5, (0.0, 1.0), [0, 1, 2]), (6, (0.3, 1.0), [2])],
)
def test_the_first_half_of_the_active_steps_moves(wide, kind, steps, active, expected, monkeypatch):
    monkeypatch.setattr(gradient_methods, "TRIES", 1)
    plan = plan_of(wide("sd1"), steps=steps, active=active)
    made, z, moved = kind(plan), plan.noise, []
    for index in range(steps):
        after = made.before(index, z)
        moved += [] if torch.equal(after, z) else [index]
        measured = made.errors[0][index, made.measured[0]]
        assert bool(torch.isfinite(measured).all()) == (index in expected)
    assert moved == expected
    assert (made.weights[0] == 1).all()
    if kind is SynGen:
        assert made.errors[0][:, 2].isnan().all()  # "cat" has no modifier


def test_refinement_moves_only_what_is_below_its_target(wide, monkeypatch):
    plan = plan_of(wide("sd1"), REQUESTS)
    probe = AttendExcite(plan)
    probe.slopes(0, plan.noise, probe.pictures)
    losses = {picture: probe.errors[picture][0].max().item() for picture in probe.pictures}
    first, second, *_ = ordered = sorted(losses, key=losses.__getitem__)
    target = 1 - (losses[first] + losses[second]) / 2
    made, asked = AttendExcite(plan), []
    made.targets = {0: target}
    slopes = made.slopes

    def measured(index, z, pictures):
        found = slopes(index, z, pictures)
        asked.append({p: made.errors[p][index].max().item() for p in pictures})
        return found

    monkeypatch.setattr(made, "slopes", measured)
    start = torch.zeros_like(plan.noise)
    start[made.pictures] = made.slopes(0, plan.noise, made.pictures)
    z, after = made.refined(0, plan.noise, start)

    stays = [picture for picture in range(len(REQUESTS)) if picture not in ordered[1:]]
    assert stays == sorted([first, 2])
    assert torch.equal(z[stays], plan.noise[stays])
    assert torch.equal(after[stays], start[stays])
    assert 2 <= len(asked) <= 21
    for before, now in pairwise(asked):
        assert set(now) == {picture for picture, loss in before.items() if loss > 1 - target}
    if len(asked) < 21:
        assert max(asked[-1].values()) <= 1 - target
    expected = slopes(0, z, made.pictures)  # the slopes are those of where refinement ended
    torch.testing.assert_close(after[made.pictures], expected, rtol=1e-4, atol=1e-6)


def test_refinement_ends_at_the_target_or_after_twenty_tries(wide, monkeypatch):
    counts = {}
    for target in (0.0, 1.0):
        made = AttendExcite(plan_of(wide("sd1")))
        made.targets, passes = {0: target}, []
        monkeypatch.setattr(
            gradient_methods,
            "differentiable_maps",
            lambda *a, p=passes: p.append(1) or differentiable_maps(*a),
        )
        made.before(0, made.plan.noise)
        counts[target] = len(passes)
    assert counts == {0.0: 1, 1.0: 21}


@pytest.mark.parametrize("name", UNETS)
@pytest.mark.parametrize("kind", BOTH)
def test_a_batch_gives_what_single_pictures_give(wide, name, kind, monkeypatch):
    # Twenty moves in a random network enlarge rounding ten thousandfold.
    monkeypatch.setattr(gradient_methods, "TRIES", 2)
    few = partial(plan_of, wide(name), steps=3)
    (together, made), (again, _) = (latents_of(few(REQUESTS, batch_size=2), kind) for _ in "12")
    plain, _ = latents_of(few(REQUESTS), Plain)

    assert torch.equal(together, again)
    left = [2] if kind is AttendExcite else [2, 3]
    assert made.pictures == [picture for picture in range(4) if picture not in left]
    torch.testing.assert_close(together[left], plain[left])
    for picture, asked in enumerate(REQUESTS):
        alone, single = latents_of(few([asked]), kind)
        torch.testing.assert_close(together[picture], alone[0], atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(
            made.errors[picture], single.errors[0], atol=1e-3, rtol=1e-3, equal_nan=True
        )


@pytest.mark.parametrize("kind", BOTH)
def test_memory_that_runs_out_halves_the_batch(wide, kind, monkeypatch):
    whole = kind(plan_of(wide("sd1"), REQUESTS))
    expected = whole.slopes(0, whole.plan.noise, whole.pictures)
    sizes = []

    def scarce(backbone, z, *rest):
        sizes.append(len(z))
        if len(z) > 1:
            raise torch.OutOfMemoryError("out of memory")
        return differentiable_maps(backbone, z, *rest)

    monkeypatch.setattr(gradient_methods, "differentiable_maps", scarce)
    made = kind(plan_of(wide("sd1"), REQUESTS))
    with pytest.warns(RuntimeWarning, match="out of memory"):
        found = made.slopes(0, made.plan.noise, made.pictures)
    assert sizes[-len(made.pictures) :] == [1] * len(made.pictures)
    assert made.plan.batch_size.limits == {"gradient": 1}
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "asked"), [(AttendExcite, REQUESTS[2]), (SynGen, REQUESTS[2]), (SynGen, REQUESTS[3])]
)
def test_without_what_they_measure_they_sample_plainly(pipeline, monkeypatch, kind, asked):
    monkeypatch.setattr(
        gradient_methods, "differentiable_maps", lambda *_: pytest.fail("a pass too many")
    )
    found, made = latents_of(plan_of(pipeline("sd1"), [asked]), kind)
    assert torch.equal(found, latents_of(plan_of(pipeline("sd1"), [asked]), Plain)[0])
    assert made.errors[0].isnan().all()


def test_both_are_methods_of_generate(pipeline):
    assert list(GENERATION_METHODS) == ["elbo", "plain", "attend-excite", "syngen"]
    model, named = model_of(pipeline("sd1")), [list(ENTITIES), ["red cat", "hot car"]]
    for kind in BOTH:
        options = {"method": kind.name, "size": (32, 32)}
        made = model.generate([PROMPT, OTHER], entities=named, steps=2, **options)
        assert [picture.method for picture in made] == [kind.name] * 2
        assert [picture.errors.shape for picture in made] == [(2, 3), (2, 2)]
        with pytest.warns(UserWarning, match=f"'{kind.name}' needs an entity"):
            model.generate("a photo", steps=1, **options)


# ---- the network left as it was ----


def fingerprint(unet):
    """What attention surgery could leave behind; flags and gradients."""
    flags = [(p.requires_grad, p.grad) for p in unet.parameters()]
    modes = [(m.training, getattr(m, "gradient_checkpointing", None)) for m in unet.modules()]
    return *helpers.fingerprint(unet), flags, modes


@pytest.mark.parametrize("outer", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", BOTH)
def test_the_network_stays_as_it_was(pipeline, kind, outer, monkeypatch):
    monkeypatch.setattr(gradient_methods, "TRIES", 1)
    pipe = tiny.sd1()
    pipe.unet.conv_in.requires_grad_(False)
    pipe.unet.enable_gradient_checkpointing()
    with torch.no_grad():
        asked = plan_of(pipe)
        steps = asked.sampler.path.at(0, 1)
        output = asked.backbone.predict(asked.noise, steps, asked.texts)
    before = fingerprint(pipe.unet)
    with outer():
        found, _ = latents_of(plan_of(pipe, REQUESTS[:2], steps=2), kind)

    assert_same(before, fingerprint(pipe.unet))
    assert any(saving for _, saving in before[-1])
    assert all(p.grad is None for part in (pipe.vae, pipe.text_encoder) for p in part.parameters())
    assert torch.equal(asked.backbone.predict(asked.noise, steps, asked.texts), output)
    assert not found.requires_grad
    expected, _ = latents_of(plan_of(pipeline("sd1"), REQUESTS[:2], steps=2), kind)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", UNETS)
def test_the_pass_ends_at_the_last_layer_that_is_read(pipeline, name):
    plan = plan_of(pipeline(name), size=(128, 128) if name != "sd2-v" else (96, 96))
    unet, sites = plan.backbone.denoiser, map_sites(plan.backbone)
    names = {module: place for place, module in unet.named_modules()}
    ran = []
    handles = [
        module.register_forward_hook(lambda module, *_: ran.append(names[module]))
        for module in unet.modules()
    ]
    try:
        z = plan.noise.clone().requires_grad_(True)
        steps = plan.sampler.path.at(0, 1)
        differentiable_maps(plan.backbone, z, steps, plan.texts, sites).sum().backward()
        early = list(ran)
        ran.clear()
        plan.backbone.predict(z, steps, plan.texts)
    finally:
        for handle in handles:
            handle.remove()
        unet.zero_grad()

    last = names[sites[-1].module]
    assert {names[site.module] for site in sites[:-1]} <= set(early)
    assert last in early
    assert "conv_out" not in early
    assert names[unet.up_blocks[-1]] not in early
    assert {last, "conv_out"} <= set(ran)


def test_a_pass_that_fails_takes_its_hooks_along(pipeline):
    unet = pipeline("sd1").unet
    before = fingerprint(unet)

    def fails():
        raise KeyError(f"of {sum(p.requires_grad for p in unet.parameters())}")

    free = gradients_to_inputs(unet, checkpointing=False)
    with pytest.raises(KeyError, match="of 0"), free:
        run_through(unet.conv_out, fails)
    assert_same(before, fingerprint(unet))

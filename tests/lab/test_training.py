"""The lab at toy size: every stage trains, resumes, is judged and loads as a plain pipeline."""

import json
import runpy

import pytest
import torch
from scipy.stats import mannwhitneyu

from lab.attention import (
    GateScenes,
    format_gates,
    layer_gates,
    measure_gates,
    pointing_share,
    separation,
)
from lab.data import Stream, build_bank, encode, scenes
from lab.denoiser import DenoiserStage
from lab.evaluate import accuracies, draw_samples, evaluate_quality, frequency_thirds
from lab.families import FAMILIES
from lab.loop import Loop
from lab.networks import build_unet, load_pipeline, load_vae
from lab.recipe import complete, read_recipe
from lab.stages import VaeStage
from lab.train import train
from lab.vocabulary import LENGTH, PAD, CaptionEncoder, build_tokenizer, vocabulary_words
from lab_runs import RECIPES, checkpoint
from pixalign.backbones import wrap
from pixalign.scenes.atlas import class_names, plurals
from pixalign.scenes.sample import sample_scenes

# ---- words ----


def test_every_word_is_one_token():
    tokenizer = build_tokenizer()
    for word in vocabulary_words():
        ids = tokenizer(word, add_special_tokens=False)["input_ids"]
        assert len(ids) == 1, word
        assert tokenizer.decode(ids).strip() == word
    captions = sample_scenes("train", 0, 3000).captions
    texts = (*class_names(), *plurals(), *(caption.replace(",", " ,") for caption in captions))
    assert {word for text in texts for word in text.split()} <= set(vocabulary_words())


def test_encoding_equals_the_tokenizer():
    tokenizer = build_tokenizer()
    odd = ["", "A Photo of  Dog,cat", "an unseen gizmo's whatsit, 3 dogs!", "dog " * 40]
    captions = [*sample_scenes("train", 0, 300).captions, *odd]
    options = {"padding": "max_length", "truncation": True, "max_length": LENGTH}
    expected = tokenizer(captions, **options, return_tensors="pt")
    found = CaptionEncoder(tokenizer)(captions)
    assert torch.equal(found, expected["input_ids"])
    assert found.shape == (len(captions), LENGTH)
    assert tokenizer.pad_token == PAD
    assert tokenizer.pad_token_id not in (tokenizer.bos_token_id, tokenizer.eos_token_id)


def test_a_saved_tokenizer_is_the_same(tmp_path):
    from transformers import CLIPTokenizer

    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    again = CLIPTokenizer.from_pretrained(tmp_path)
    text = "a photo of hot dog, two small blue birds"
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert (again.model_max_length, again.pad_token) == (LENGTH, PAD)


# ---- recipes ----


def test_recipes_in_the_repository_are_valid(request):
    files = sorted((request.config.rootpath / "lab" / "recipes").rglob("*.json"))
    assert {"vae", "classifier", "denoiser"} <= {path.stem for path in files}
    for path in files:
        stage = path.stem if path.stem in RECIPES else "denoiser"
        recipe = complete(stage, read_recipe(path))
        if stage == "denoiser":
            unet = recipe["unet"]
            assert len(unet["channels"]) == len(unet["attention"]) == len(unet["heads"])


def test_recipes_merge_and_refuse_unknown_names():
    recipe = complete("denoiser", {"text": {"layers": 2}})
    assert recipe["text"] == {**complete("denoiser")["text"], "layers": 2}
    assert complete("denoiser")["text"]["layers"] == 0  # the defaults stay
    wrong = {"colour": ("vae", {"colour": 1}), "widths": ("vae", {"vae": {"widths": 1}})}
    for name, arguments in {**wrong, "unet": ("unet",)}.items():
        with pytest.raises(ValueError, match=f"'{name}'"):
            complete(*arguments)


# ---- data ----


def test_a_stream_is_a_function_of_the_index():
    stream = Stream("train", 8, 32, "cpu")
    first, ninth, again = stream[0], stream[40], stream[0]
    stream.close()
    assert torch.equal(first.images, again.images)
    assert torch.equal(ninth.images, scenes("train", 320, 8, 32, "cpu").images)
    assert ninth.captions == scenes("train", 320, 8, 32, "cpu").captions


def test_a_bank_holds_the_scenes_in_order(finished):
    vae, encoder = load_vae(finished("vae"), "cpu"), CaptionEncoder(build_tokenizer())
    bank = build_bank(vae, encoder, start=5, count=20, size=64, device="cpu", batch=8)
    direct = scenes("train", 5, 20, 64, "cpu")
    expected = encode(vae, direct.images)
    torch.testing.assert_close(bank.latents.float(), expected, atol=5e-3, rtol=5e-3)
    assert torch.equal(bank.ids.long(), encoder(direct.captions))


# ---- training ----


class Killed(Exception):
    """Stands for the end of a machine."""


def killed(step, figures):
    raise Killed


RUNS = {"vae": "vae", "classifier": "classifier", "denoiser": "sd1", "clip": "clip"}


@pytest.mark.parametrize("stage", RUNS)
def test_a_run_leaves_a_log_and_resuming_continues_exactly(finished, stage, tmp_path):
    """A run that dies in its first evaluation, after step 2, goes on from step 1, its last save."""
    whole, vae = finished(RUNS[stage]), finished("vae")
    rows = [json.loads(line) for line in (whole / "log.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 4
    recipe = read_recipe(whole / "recipe.json")
    assert complete(stage, recipe) == recipe
    state = torch.load(whole / "weights.pt", weights_only=True)
    assert {value.dtype for value in state["ema"].values()} <= {torch.float16, torch.int64}

    family = "clip" if stage == "clip" else "sd1"
    often = {**RECIPES[stage], "checkpoint_minutes": 0}
    with pytest.raises(Killed):
        train(family, stage, tmp_path, often, vae=vae, watch=killed)
    assert checkpoint(tmp_path)["step"] == 1
    train(family, stage, tmp_path, RECIPES[stage], resume=tmp_path, vae=vae)
    expected, resumed = checkpoint(whole), checkpoint(tmp_path)
    assert expected["step"] == resumed["step"] == 4
    for name in ("model", "ema"):
        for key, value in resumed[name].items():
            assert torch.equal(value, expected[name][key]), key
    moved = [not torch.equal(v, expected["ema"][k]) for k, v in expected["model"].items()]
    assert any(moved)  # the comparison is not of weights that never change


def test_the_average_forgets_early_weights_soon(finished):
    """After k steps the decay is min(ema, (1 + k) / (10 + k))."""
    stage = VaeStage(complete("vae", RECIPES["vae"]), "cpu")
    loop = Loop(stage, stage.recipe, finished("vae"), "cpu")
    stage.close()
    weight, average = next(loop.model.parameters()), next(loop.ema.parameters())
    expected = average.clone()
    for step in range(1, 4):
        with torch.no_grad():
            weight += step
        loop.average.step(loop.model.parameters())
        expected.lerp_(weight.detach(), 1 - (1 + step) / (10 + step))
        torch.testing.assert_close(average, expected)
    assert loop.average.get_decay(10**6) == stage.recipe["ema"]


def test_resuming_from_weights_alone_warms_up_again(finished, tmp_path):
    recipe = {**RECIPES["vae"], "steps": 5}
    train("sd1", "vae", tmp_path, recipe, resume=finished("vae") / "weights.pt")
    state = checkpoint(tmp_path)
    assert (state["step"], state["first"]) == (5, 4)
    assert state["optimizer"]["state"][0]["step"] == 1


def test_minutes_limit_a_run(tmp_path):
    figures = train("sd1", "vae", tmp_path, RECIPES["vae"], minutes=0)
    assert figures["step"] == 0
    assert (tmp_path / "vae" / "config.json").exists()


def test_gain_multiplies_the_logits():
    config = complete("denoiser", RECIPES["denoiser"])["unet"]
    networks = []
    for gain in (1.0, 4.0):
        torch.manual_seed(0)
        networks.append(build_unet({**config, "gain": gain}, 16, 4, 16).state_dict())
    plain, gained = networks
    for name, value in gained.items():
        scale = 2.0 if name.endswith(("attn2.to_q.weight", "attn2.to_k.weight")) else 1.0
        torch.testing.assert_close(value, scale * plain[name])


def test_logit_normal_timesteps(finished):
    recipe = {**RECIPES["denoiser"], "timesteps": "logit-normal", "timestep_mean": -1.0}
    stage = DenoiserStage(complete("denoiser", recipe), "cpu", FAMILIES["sd1"], finished("vae"))
    times = stage._times(4000, {"generator": torch.Generator().manual_seed(0)})
    assert 0 <= times.min() < times.max() <= 999
    assert abs(times.double().median() - 1000 / (1 + torch.e)) < 15  # sigmoid(-1)


def test_the_text_may_stay_frozen(finished, tmp_path):
    recipe = {**RECIPES["denoiser"], "text": {"hidden": 16, "frozen": True, "layers": 1}}
    train("sd1", "denoiser", tmp_path, {**recipe, "steps": 2}, vae=finished("vae"))
    stage = DenoiserStage(complete("denoiser", recipe), "cpu", FAMILIES["sd1"], finished("vae"))
    after = checkpoint(tmp_path)["model"]
    before = stage.model.state_dict()
    same = {key: torch.equal(after[key], before[key]) for key in before}
    assert all(equal for key, equal in same.items() if key.startswith("text_encoder."))
    assert not all(same.values())


def test_ablations_write_gates_by_steps(finished, tmp_path, request, capsys):
    path = request.config.rootpath / "benchmarks" / "lab_ablations.py"
    main = runpy.run_path(str(path))["main"]
    for name, change in (("plain", {}), ("layers", {"text": {"hidden": 16, "layers": 1}})):
        (tmp_path / f"{name}.json").write_text(json.dumps({**RECIPES["denoiser"], **change}))
    files = [str(tmp_path / "plain.json"), str(tmp_path / "layers.json")]
    limits = ["--every", "1", "--steps", "2", "--bank", "16", "--device", "cpu"]
    main([*files, "--vae", str(finished("vae")), "--out", str(tmp_path / "out"), *limits])
    for name in ("plain", "layers"):
        result = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        assert [row["step"] for row in result["gates"]] == [1, 2]
    printed = capsys.readouterr()
    assert printed.err.count("bank: 16/16") == 1  # shared
    assert printed.out.splitlines()[-1].startswith("plain")


# ---- gates ----


def test_separation_counts_pairs():
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 5, (6, 4, 5), generator=generator).float()  # many ties
    inside = torch.rand(6, 4, 5, generator=generator) < 0.4
    outside = ~inside & (torch.rand(6, 4, 5, generator=generator) < 0.7)
    found = separation(values, inside, outside)
    for i in range(6):
        own, other = values[i][inside[i]], values[i][outside[i]]
        pairs_won = mannwhitneyu(own, other).statistic
        assert found[i].item() == pytest.approx(pairs_won / (len(own) * len(other)))
    assert separation(values, inside, torch.zeros_like(inside)).isnan().all()
    assert separation(torch.ones(2, 2), torch.eye(2) > 0, torch.eye(2) < 1).item() == 0.5


@pytest.fixture(scope="module")
def gate_scenes(finished):
    return GateScenes.draw(random_model(finished), scenes=60, single=12, size=64, device="cpu")


def random_model(finished):
    torch.manual_seed(3)
    vae, tokenizer = load_vae(finished("vae"), "cpu"), build_tokenizer()
    family = FAMILIES["sd1"]
    parts = family.build(complete("denoiser", RECIPES["denoiser"]), vae, tokenizer).eval()
    return wrap(family.pipeline(parts, vae, tokenizer))


def test_gates_of_perfect_and_reversed_maps(gate_scenes):
    objects = gate_scenes.objects[: gate_scenes.several]
    share = torch.nn.functional.avg_pool2d(objects, 8)  # [B, K, 8, 8]
    sink = torch.full_like(share[:, :1], 0.25)
    perfect = layer_gates(torch.cat([share, sink], 1), objects)
    assert perfect == {"sink": 0.25, "other": 1.0, "background": 1.0}
    wrong = layer_gates(torch.cat([-share, sink], 1), objects)
    assert (wrong["other"], wrong["background"]) == (0.0, 0.0)
    single = gate_scenes.objects[gate_scenes.several :, 0]
    assert pointing_share(single, single) == 1
    assert pointing_share(-single, single) == 0


def test_gates_of_a_random_model_are_chance(finished, gate_scenes):
    model = random_model(finished)
    result = measure_gates(model, gate_scenes)
    assert abs(result["auc_other_all"] - 0.5) < 0.12
    layers = result["layers"]
    assert len(layers) == 8  # two down, one in the middle, four up, and the mean of all
    mean = sum(entry["0.1"]["other"] for entry in layers.values()) / len(layers)
    assert abs(mean - 0.5) < 0.08
    words = (gate_scenes.columns[: gate_scenes.several, :, -1] == 0).float().sum(1).mean()
    assert layers["all"]["0.1"]["sink"] == pytest.approx(1 - words.item() / LENGTH, abs=0.1)
    assert format_gates(result).count("\n") == 9
    assert not any(module._forward_pre_hooks for module in model.denoiser.modules())


# ---- samples and pipelines ----


def test_accuracies_by_hand():
    count = len(class_names())
    wanted = torch.arange(count).repeat(2)
    found = wanted.clone()
    rare = frequency_thirds() == 2
    found[:count][rare] = (found[:count][rare] + 1) % count  # half of the rare ones are missed
    figures = accuracies(found, wanted)
    assert figures["accuracy_frequent"] == figures["accuracy_common"] == 1
    assert figures["accuracy_rare"] == 0.5
    assert figures["accuracy"] == pytest.approx(1 - rare.sum().item() / (2 * count))


def test_scaled_latents_have_unit_spread(finished):
    vae = load_vae(finished("sd1") / "pipeline", "cpu")
    latents = encode(vae, scenes("val", 0, 8, 64, "cpu").images)
    assert latents.std().item() == pytest.approx(1, abs=0.01)


def test_sample_quality_runs(finished, tmp_path):
    folder = finished("sd1") / "pipeline"
    options = {"per_class": 1, "steps": 1, "device": "cpu"}
    figures = evaluate_quality(folder, finished("classifier"), tmp_path, **options)
    assert json.loads((tmp_path / "quality.json").read_text()) == figures
    assert (tmp_path / "classes.png").is_file()
    assert 0 <= figures["accuracy"] <= 0.2


def test_a_sample_depends_on_its_number_alone(finished):
    pipe = load_pipeline(finished("sd1") / "pipeline", "cpu")
    prompts = [f"a photo of {name}" for name in class_names()[:4]]
    images = draw_samples(pipe, prompts, steps=1)
    assert images.shape == (4, 3, 64, 64)
    few = draw_samples(pipe, prompts[:3], steps=1, batch=2)
    torch.testing.assert_close(few, images[:3], atol=1e-4, rtol=1e-4)

"""The whole flow: what a user asks, on every family."""

import numpy as np
import pytest
import torch
from PIL import Image

import pixalign as pa
import tiny
from conftest import FAMILIES, QUICK
from helpers import assert_close, model_of, same, small

CLASSES = ["zebra", "hot dog", "dog", "screen door"]
TWENTY_FIVE = [
    "dog", "cat", "hot dog", "zebra", "car", "red car", "tree", "palm tree", "screen", "door",
    "screen door", "traffic light", "bench", "bicycle", "umbrella", "elephant", "refrigerator",
    "toothbrush", "skateboard", "wine glass", "potted plant", "fire hydrant", "parking meter",
    "dining table", "teddy bear",
]  # fmt: skip


@pytest.fixture(scope="module")
def aligner():
    return model_of(small("sd1"), config=pa.AlignConfig(**QUICK))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("preset", ["default", "paper", "official", "uncalibrated"])
def test_every_preset_on_every_family(pipeline, name, preset):
    given = {"elbo_timesteps": (1, 501, 951), "collect_timesteps": (20, 200)}
    config = pa.AlignConfig.preset(preset, **(given if preset == "official" else QUICK))
    result = model_of(pipeline(name), config=config).align(tiny.photo(50, 70), CLASSES)

    assert result.classes == tuple(CLASSES)
    assert result.heatmaps.shape == (4, 70, 50)
    assert result.heatmaps.dtype == np.float32
    assert result.heatmaps.min() >= 0
    assert result.heatmaps.max() <= 1
    assert result.scores.dtype == np.float32
    np.testing.assert_allclose(result.exponents, 1 / result.scores)
    if preset == "uncalibrated":
        assert result.losses.shape == (4, 0)
        assert np.isnan(result.elbo).all()
        assert (result.scores == 1).all()
    else:
        assert result.losses.shape == (4, 3)
        assert result.scores.max() == 1
        assert result.scores.min() == pytest.approx(1 / 3)
        assert result.scores.argmin() == result.elbo.argmax()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("resize", ["square", "keep"])
def test_a_wide_picture_on_every_family(pipeline, name, resize):
    config = pa.AlignConfig(resize=resize, **QUICK)
    aligner = model_of(pipeline(name), config=config)
    encoded = aligner.encode(tiny.photo(640, 200))
    result = aligner.align(encoded, ["dog", "cat"])

    assert result.heatmaps.shape == (2, 200, 640)
    height, width = encoded.latents.shape[-2:]
    assert (height == width) == (resize == "square")
    if resize == "keep":
        assert width / height == pytest.approx(3.2, rel=0.35)


def test_kept_shape_puts_objects_where_they_are(pipeline):
    """Swapped height and width would move the brightest column."""
    aligner = model_of(pipeline("sd1"), config=pa.AlignConfig.uncalibrated(**QUICK))
    picture = Image.new("RGB", (256, 64), "grey")
    picture.paste((255, 0, 0), (200, 8, 240, 56))
    maps = {}
    for flipped in (False, True):
        image = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flipped else picture
        config = pa.AlignConfig.uncalibrated(resize="keep", **QUICK)
        maps[flipped] = aligner.align(image, ["dog"], config=config).heatmaps[0]
    inside, outside = maps[False][8:56, 200:240], maps[True][8:56, 200:240]
    there = maps[True][8:56, 16:56]
    # The object looks the same on either side, and different from the grey.
    assert abs(inside.mean() - there.mean()) < abs(inside.mean() - outside.mean())


def test_twenty_five_classes_are_split_and_never_cut(aligner):
    result = aligner.align(tiny.photo(64, 64), TWENTY_FIVE)

    prompts = result.provenance["prompts"]
    assert len(prompts) > 1
    assert all(aligner.backbone.fits(prompt) for prompt in prompts)
    named = [name for prompt in prompts for name in prompt.removeprefix("a photo of ").split(", ")]
    assert sorted(named) == sorted(TWENTY_FIVE)
    sizes = [prompt.count(", ") + 1 for prompt in prompts]
    assert max(sizes) - min(sizes) <= 1
    assert (result.heatmaps.max((1, 2)) == 1).all()
    assert result.losses.shape == (25, 3)


def test_a_class_in_a_split_prompt_reads_that_prompt():
    """A class's map depends on the words of its own prompt only."""
    config = pa.AlignConfig.uncalibrated(self_attention="none", **QUICK)
    aligner = model_of(small("sd1"), config=config)
    many = aligner.align(tiny.photo(64, 64), TWENTY_FIVE)
    group = many.provenance["prompts"][1].removeprefix("a photo of ").split(", ")
    alone = aligner.align(tiny.photo(64, 64), group)
    for name in group:
        np.testing.assert_allclose(
            many.heatmaps[TWENTY_FIVE.index(name)], alone.heatmaps[group.index(name)], atol=1e-4
        )


def test_scores_and_maps_follow_a_permutation_of_the_classes(any_pipe):
    aligner = model_of(any_pipe, config=pa.AlignConfig(**QUICK))
    order = [2, 0, 3, 1]
    straight = aligner.align(tiny.photo(40, 40), CLASSES)
    permuted = aligner.align(tiny.photo(40, 40), [CLASSES[i] for i in order])

    assert np.array_equal(permuted.scores, straight.scores[order])
    assert np.array_equal(permuted.losses, straight.losses[order])
    assert np.array_equal(permuted.heatmaps, straight.heatmaps[order])


def test_scores_ignore_the_order_even_where_prompts_do_not(pipeline):
    config = pa.AlignConfig.paper(**QUICK)
    aligner = model_of(pipeline("sdxl"), config=config)
    straight = aligner.align(tiny.photo(40, 40), CLASSES)
    backwards = aligner.align(tiny.photo(40, 40), CLASSES[::-1])

    assert np.array_equal(backwards.scores, straight.scores[::-1])
    assert backwards.provenance["prompts"] != straight.provenance["prompts"]
    assert not np.array_equal(backwards.heatmaps, straight.heatmaps[::-1])


def test_only_the_seed_matters(aligner, photo):
    """A repeat is identical; the global random state is neither read nor changed."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = aligner.align(photo, CLASSES, seed=5)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert same(first, aligner.align(photo, CLASSES, seed=5))
    assert not same(first, aligner.align(photo, CLASSES, seed=6))


def test_list_of_images_equals_single_calls(wide):
    aligner = model_of(wide("sd1"), config=pa.AlignConfig(**QUICK))
    pictures = [tiny.photo(40, 30, seed=0), tiny.photo(30, 50, seed=1), tiny.photo(64, 64, seed=2)]
    shared, again = (aligner.align(pictures, CLASSES, seed=4) for _ in range(2))
    assert all(same(*pair) for pair in zip(shared, again, strict=True))
    for one, picture in zip(shared, pictures, strict=True):
        assert_close(one, aligner.align(picture, CLASSES, seed=4))
    each = [["dog"], ["cat", "dog"], ["zebra", "car", "tree"]]
    captions = ["a dog", "dog beside cat", "a tree, a car, a zebra"]
    own = aligner.align(pictures, each, caption=captions)
    for result, picture, classes, caption in zip(own, pictures, each, captions, strict=True):
        assert_close(result, aligner.align(picture, classes, caption=caption))


def test_generator_is_consumed_in_list_order(wide):
    aligner = model_of(wide("sd1"), config=pa.AlignConfig(**QUICK))
    pictures = [tiny.photo(40, 30, seed=0), tiny.photo(40, 30, seed=1)]
    together, again = (
        aligner.align(pictures, CLASSES, generator=torch.Generator().manual_seed(9))
        for _ in range(2)
    )
    generator = torch.Generator().manual_seed(9)
    apart = [aligner.align(picture, CLASSES, generator=generator) for picture in pictures]

    assert all(same(*pair) for pair in zip(together, again, strict=True))
    for pair in zip(together, apart, strict=True):
        assert_close(*pair)
    assert together[0].provenance["seed"] is None
    assert same(apart[0], aligner.align(pictures[0], CLASSES, seed=9))


def test_collecting_noise_is_the_same_with_and_without_calibration(aligner, photo):
    """Before and after differ by calibration alone: gamma 1 gives the uncalibrated maps."""
    plain = aligner.align(photo, CLASSES, config=pa.AlignConfig.uncalibrated(**QUICK))
    neutral = aligner.align(photo, CLASSES, config=pa.AlignConfig(gamma=1.0, **QUICK))
    assert np.array_equal(plain.heatmaps, neutral.heatmaps)


def test_no_images_give_no_results(aligner):
    assert aligner.align([], ["dog"]) == []


def test_encode_once_align_many(aligner, photo):
    encoded = aligner.encode(photo)
    first = aligner.align(encoded, ["dog", "cat"])
    assert same(first, aligner.align(photo, ["dog", "cat"]))
    assert aligner.align(encoded, ["car"]).heatmaps.shape == (1, 80, 120)
    with pytest.raises(ValueError, match="encoded with resize='square', not 'keep'"):
        aligner.align(encoded, ["dog"], config=pa.AlignConfig(resize="keep"))


def test_given_caption_is_read(aligner, photo):
    result = aligner.align(photo, ["dog", "hot dog"], caption="A dog eats a hot dog, good dog!")
    assert result.provenance["prompts"] == ["A dog eats a hot dog, good dog!"]
    assert result.heatmaps.shape == (2, 80, 120)
    with pytest.raises(ValueError, match="'cat' does not occur in the caption 'a dog'"):
        aligner.align(photo, ["dog", "cat"], caption="a dog")
    with pytest.raises(ValueError, match="caption is longer than the model's text encoder reads"):
        aligner.align(photo, ["dog"], caption="a dog " * 80)


def test_phrases_are_read_and_names_reported(aligner, photo):
    phrases = [pa.Phrase("dog", "a golden dog"), pa.Phrase("car", "two red cars")]
    result = aligner.align(photo, phrases)
    assert result.classes == ("dog", "car")
    assert result.provenance["prompts"] == ["a photo of two red cars, a golden dog"]

    mapping = {phrase.name: phrase.phrase for phrase in phrases}
    for given in ((photo, mapping), ([photo], mapping), ([photo], [mapping])):
        found = aligner.align(*given)
        found = found[0] if isinstance(found, list) else found
        assert np.array_equal(found.heatmaps, result.heatmaps)

    by_name = aligner.align(photo, phrases, config=pa.AlignConfig(elbo_text="name", **QUICK))
    plain = aligner.align(photo, ["dog", "car"])
    assert np.array_equal(by_name.losses, plain.losses)
    assert not np.array_equal(result.losses, plain.losses)
    whole = aligner.align(photo, phrases, config=pa.AlignConfig(class_tokens="phrase", **QUICK))
    assert np.array_equal(whole.losses, result.losses)
    assert not np.array_equal(whole.heatmaps, result.heatmaps)


def test_one_class_keeps_its_map(aligner, photo):
    result = aligner.align(photo, ["dog"])
    assert result.scores.tolist() == [1]
    assert result.exponents.tolist() == [1]
    plain = aligner.align(photo, ["dog"], config=pa.AlignConfig.uncalibrated(**QUICK))
    assert np.array_equal(result.heatmaps, plain.heatmaps)


def test_equal_texts_have_equal_losses(aligner, photo):
    result = aligner.align(photo, [pa.Phrase("dog", "animal"), pa.Phrase("cat", "animal")])
    assert np.array_equal(result.losses[0], result.losses[1])
    assert result.scores.tolist() == [1, 1]


def test_blind_class_is_warned_of(photo):
    pipe = tiny.sd1()
    with torch.no_grad():
        for name, part in pipe.unet.named_modules():
            if name.endswith("attn2"):
                part.to_q.weight.zero_()  # attention that points nowhere
    config = pa.AlignConfig(absent_below=0, **QUICK)
    result = model_of(pipe, config=config).align(photo, ["dog", "cat"], method="dense")
    assert [about.verdict for about in result.trust] == ["blind", "blind"]
    assert [note for note in result.warnings if "'dog' points where no class explains" in note]
    assert np.isfinite(result.heatmaps).all()
    assert (result.heatmaps == 0).all()
    assert (result.mask() == 0).all()


def test_strategies_choose_the_timesteps(aligner, photo):
    for strategy, bounds in {"small": (0, 200), "middle": (400, 600), "large": (700, 900)}.items():
        config = pa.AlignConfig(
            elbo_strategy=strategy, collect_strategy=strategy, elbo_steps=4, collect_steps=2
        )
        chosen = aligner.align(photo, ["dog", "cat"], config=config).provenance["timesteps"]
        for times in chosen.values():
            assert bounds[0] <= min(times) <= max(times) <= bounds[1]
    config = pa.AlignConfig(elbo_strategy="random", **QUICK)
    first, again, other = (
        aligner.align(photo, ["dog", "cat"], config=config, seed=seed) for seed in (1, 1, 2)
    )
    assert same(first, again)
    assert first.provenance["timesteps"]["elbo"] != other.provenance["timesteps"]["elbo"]
    ranged = pa.AlignConfig(collect_range=(0.5, 0.6), **QUICK)
    times = aligner.align(photo, ["dog"], config=ranged).provenance["timesteps"]["collect"]
    assert times == [525, 575]


def test_weighting_changes_the_order_of_importance(aligner, photo):
    uniform = aligner.align(photo, CLASSES)
    paper = aligner.align(photo, CLASSES, config=pa.AlignConfig.paper(**QUICK))
    assert np.array_equal(uniform.losses, paper.losses)
    np.testing.assert_allclose(uniform.elbo, uniform.losses.mean(1), rtol=1e-5)
    assert not np.allclose(paper.elbo, uniform.elbo)


@pytest.mark.parametrize("choice", ["once", "twice", "up-after-all", "none"])
def test_self_attention_choices_differ(aligner, photo, choice):
    config = pa.AlignConfig.uncalibrated(self_attention=choice, **QUICK)
    found = aligner.align(photo, ["dog", "cat"], config=config)
    default = aligner.align(photo, ["dog", "cat"], config=pa.AlignConfig.uncalibrated(**QUICK))
    assert np.array_equal(found.heatmaps, default.heatmaps) == (choice == "once")


def test_up_after_all_needs_a_unet(pipeline, photo):
    aligner = model_of(pipeline("sd3"))
    config = pa.AlignConfig(self_attention="up-after-all", **QUICK)
    with pytest.raises(ValueError, match="'up-after-all' needs a UNet"):
        aligner.align(photo, ["dog"], config=config)


def test_t5_columns_count(pipeline, photo):
    aligner = model_of(pipeline("sd3-t5"))
    both, clip = (
        aligner.align(photo, ["dog", "cat"], config=pa.AlignConfig(text_encoders=kind, **QUICK))
        for kind in ("all", "clip")
    )
    assert np.array_equal(both.losses, clip.losses)
    assert not np.array_equal(both.heatmaps, clip.heatmaps)


def test_an_image_encoded_by_another_model_is_refused(pipeline, photo):
    encoded = model_of(pipeline("sd1")).encode(photo)
    with pytest.raises(ValueError, match="encoded by another model"):
        model_of(pipeline("sdxl")).align(encoded, ["dog"])
    same_model = model_of(pipeline("sd1"), config=pa.AlignConfig(**QUICK))
    assert same_model.align(encoded, ["dog"]).classes == ("dog",)


def test_long_elbo_texts_are_refused(aligner, photo):
    phrase = pa.Phrase("zebra " * 40, "dog")
    with pytest.raises(ValueError, match="alone is longer"):
        aligner.align(photo, [phrase], config=pa.AlignConfig(elbo_text="name", **QUICK))


def test_a_list_is_checked_before_its_first_image_is_aligned(sd1, photo):
    aligner = model_of(sd1)
    passes = []
    handle = sd1.unet.register_forward_pre_hook(lambda *_: passes.append(1))
    with pytest.raises(ValueError, match="'dog' is given twice"):
        aligner.align([photo, photo], [["dog"], ["dog", "dog"]])
    with pytest.raises(FileNotFoundError, match=r"nowhere\.png"):
        aligner.align([photo, "nowhere.png"], ["dog"])
    handle.remove()
    assert not passes


def test_presets_by_name_are_explained(sd1, photo):
    for given in ({"config": "paper"}, {"config": "paper", "absent": "drop"}):
        with pytest.raises(ValueError, match=r"config is 'paper'; allowed: an AlignConfig, as Al"):
            pa.load(sd1).align(photo, ["dog"], **given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image": None}, "image is a NoneType; allowed"),
        ({"image": torch.zeros(3, 8, 8)}, "image is a Tensor; allowed"),
        ({"caption": ["a dog"]}, r"caption is \['a dog'\]; allowed"),
        ({"classes": None}, "classes is None; give a list"),
        ({"classes": [1]}, "class 1 is 1"),
        ({"classes": {"dog": 2}}, "class 1 is 2; allowed: a text"),
        ({"classes": ["dog\x07"]}, r"class 1 is 'dog\\x07', which holds the unreadable"),
        *(({"classes": wrong}, "class") for wrong in ([], ["dog", "dog"], ["dog", ""], "dog")),
        ({"image": [None] * 2, "classes": [["dog"]] * 3}, "3 class lists for 2 images"),
        ({"image": [None] * 2, "caption": ["a dog"]}, "1 captions for 2 images"),
        ({"seed": -1}, "seed is -1; allowed"),
        ({"seed": 2**80}, "seed is .*; allowed"),
        ({"config": pa.AlignConfig(by_family={"sd5": {"gamma": 0.5}})}, "'sd5'; allowed: 'sd'"),
    ],
)
def test_bad_arguments_are_named(aligner, photo, arguments, message):
    with pytest.raises(ValueError, match=message):
        aligner.align(**{"image": photo, "classes": ["dog"]} | arguments)


def test_by_family_applies_to_its_family_only(pipeline, photo):
    config = pa.AlignConfig(by_family={"sd3": {"gamma": 0.9}}, **QUICK)
    for name, gamma in {"sd1": 1 / 3, "sd3": 0.9}.items():
        result = model_of(pipeline(name)).align(photo, ["dog", "cat"], config=config)
        assert result.scores.min() == pytest.approx(gamma)

"""The settings: presets as stated, and every bad value refused by name."""

import json

import numpy as np
import pytest

from pixalign import AlignConfig
from pixalign.config import PRESETS


def test_defaults():
    config = AlignConfig()
    assert config.gamma == pytest.approx(1 / 3)
    assert (config.elbo_steps, config.elbo_strategy, config.elbo_weighting) == (
        20,
        "even",
        "uniform",
    )
    assert (config.collect_steps, config.collect_strategy) == (10, "small")
    assert (config.prompt_order, config.self_attention, config.resize) == (
        "sorted",
        "once",
        "square",
    )
    assert config.calibrate


def test_presets():
    assert AlignConfig.paper().elbo_weighting == "likelihood"
    assert AlignConfig.paper().prompt_order == "given"
    official = AlignConfig.official()
    assert official.elbo_timesteps == tuple(range(1, 1000, 50))
    assert official.collect_timesteps == (20, 40, 60, 80, 100, 120, 140, 160, 180, 200)
    assert official.for_family("sd").self_attention == "up-after-all"
    assert official.for_family("sdxl").self_attention == "twice"
    sd3 = official.for_family("sd3")
    assert (sd3.cross_weights, sd3.elbo_weighting) == ("gaussian", "native")
    assert (sd3.text_columns, sd3.image_only_attention) == ("clip", True)
    assert not AlignConfig.uncalibrated().calibrate
    for name in PRESETS:
        assert AlignConfig.preset(name, gamma=0.5).gamma == 0.5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gamma", 0),
        ("gamma", 1.5),
        ("gamma", float("nan")),
        ("elbo_steps", 0),
        ("elbo_steps", 2.5),
        ("collect_steps", -1),
        ("elbo_strategy", "tiny"),
        ("collect_strategy", "often"),
        ("elbo_range", (0.5, 0.2)),
        ("collect_range", (0, 2)),
        ("elbo_timesteps", ()),
        ("collect_timesteps", (1.5,)),
        ("elbo_weighting", "snr"),
        ("elbo_text", "words"),
        ("template", "a photo"),
        ("template", "{} and {}"),
        ("prompt_order", "random"),
        ("columns", "all"),
        ("text_columns", "t5"),
        ("cross_weights", "best"),
        ("cross_weights", ()),
        ("cross_weights", (1, -1)),
        ("cross_weights", (0, 0)),
        ("cross_weights", (float("nan"), 1)),
        ("gamma", "0.3"),
        ("calibrate", "no"),
        ("self_attention", "thrice"),
        ("resize", "crop"),
        ("threshold", 1.1),
        ("threshold", -0.1),
        ("temperature", 0),
        ("weak_activation", 0),
        ("by_family", {"sd3": {"gama": 1}}),
        ("by_family", {"sd3": {"gamma": 7}}),
        ("by_family", {"sd3": {"by_family": {}}}),
    ],
)
def test_bad_values_are_named(field, value):
    with pytest.raises(ValueError, match=field if field != "by_family" else "by_family|gamma"):
        AlignConfig(**{field: value})


def test_unknown_preset():
    with pytest.raises(ValueError, match="preset is 'best'; allowed: 'default', 'paper'"):
        AlignConfig.preset("best")


@pytest.mark.parametrize("name", PRESETS)
def test_survives_json(name):
    config = AlignConfig.preset(name).for_family("sd3")
    assert AlignConfig(**json.loads(json.dumps(config.to_dict()))) == config


def test_is_immutable_and_hashable():
    config = AlignConfig.official()
    assert hash(config) == hash(AlignConfig.official())
    with pytest.raises(AttributeError):
        config.gamma = 0.5


def test_overrides_of_official_hold_on_every_family():
    config = AlignConfig.official(self_attention="once", text_columns="all")
    for family in ("sd", "sdxl", "sd3"):
        assert config.for_family(family).self_attention == "once"
    assert config.for_family("sd3").text_columns == "all"
    assert config.for_family("sd3").cross_weights == "gaussian"


def test_numpy_numbers_are_numbers():
    config = AlignConfig(elbo_timesteps=np.arange(3), cross_weights=np.ones(2))
    assert config.elbo_timesteps == (0, 1, 2)
    assert json.dumps(config.to_dict())

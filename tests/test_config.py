"""The settings: presets as stated, and every bad value refused by name."""

import dataclasses
import json

import numpy as np
import pytest

from pixalign import AlignConfig
from pixalign.config import FALLBACK, PRESETS

# What a model may say of itself.
OWN = {
    "gamma": 0.6,
    "centred": True,
    "cross_weights": {"mid-8-1": 1.0, "up-4-2": 0.5},
    "collect_range": (0.3, 0.5),
    "threshold": 0.55,
    "temperature": {"elbo": 0.2},
    "absent_below": 0.3,
}


def test_defaults():
    config = AlignConfig()
    assert {name for name in FALLBACK if getattr(config, name) is None} == set(FALLBACK)
    config = config.resolved()
    assert config.gamma == pytest.approx(1 / 3)
    assert (config.cross_weights, config.threshold) == ("resolution", 0.4)
    assert config.centred is False
    elbo = (config.elbo_steps, config.elbo_strategy, config.elbo_weighting)
    assert elbo == (20, "even", "uniform")
    assert (config.collect_steps, config.collect_strategy) == (10, "small")
    rest = (config.prompt_order, config.self_attention, config.resize)
    assert rest == ("sorted", "once", "square")
    assert (config.method, config.calibrate) == ("dense", "elbo")
    evidence = (config.evidence_form, config.evidence_strength, config.evidence_margin)
    assert evidence == ("cosine", 2.0, 0.5)


def test_presets():
    assert AlignConfig.paper().elbo_weighting == "likelihood"
    assert AlignConfig.paper().prompt_order == "given"
    official = AlignConfig.official()
    assert official.elbo_timesteps == tuple(range(1, 1000, 50))
    assert official.collect_timesteps == (20, 40, 60, 80, 100, 120, 140, 160, 180, 200)
    assert official.resolved("sd").self_attention == "up-after-all"
    assert official.resolved("sdxl").self_attention == "twice"
    sd3 = official.resolved("sd3")
    assert (sd3.cross_weights, sd3.elbo_weighting) == ("gaussian", "native")
    assert (sd3.text_encoders, sd3.image_only_attention) == ("clip", True)
    assert AlignConfig.uncalibrated().method == "attention"
    assert not AlignConfig.uncalibrated().resolved().measured
    assert AlignConfig.paper().measured
    assert not AlignConfig.paper().by_position
    for asked in ({"calibrate": "evidence"}, {"cross_weights": "agreement"}, {"absent": "drop"}):
        config = AlignConfig(**{"calibrate": "none"} | asked)
        assert config.by_position
        assert config.measured
    for name in PRESETS:
        assert AlignConfig.preset(name, gamma=0.5).gamma == 0.5


NAN, INF = float("nan"), float("inf")
BAD = {
    "gamma": [0, 1.5, NAN, "0.3"],
    "elbo_steps": [0, 2.5, 10**5],
    "collect_steps": [-1],
    "evidence_form": ["sine"],
    "evidence_strength": [-1, INF, NAN, "2"],
    "evidence_margin": [-0.5, INF],
    "evidence_blur": [-0.1, 2, None],
    "information_blur": [-0.1],
    "information_weight": [-0.1, 1.5],
    "leave_one_out": ["yes", 2],
    "distilled": ["yes", "turbo"],
    "omission_blur": [1.5],
    "absent": ["remove", None],
    "absent_below": [-0.1, 2, NAN],
    "absent_blur": [-0.1, 2, None],
    "doubt_below": [-1.5, 2, None],
    "elbo_strategy": ["tiny"],
    "collect_strategy": ["often"],
    "elbo_range": [(0.5, 0.2)],
    "collect_range": [(0, 2)],
    "elbo_timesteps": [()],
    "collect_timesteps": [(1.5,)],
    "elbo_weighting": ["snr"],
    "elbo_text": ["words"],
    "template": ["a photo", "{} and {}"],
    "prompt_order": ["random"],
    "class_tokens": ["all"],
    "text_encoders": ["t5"],
    "cross_weights": [
        "best", (), (1, -1), (0, 0), (NAN, 1), {}, {"mid-8-1": 0}, {"mid-8-1": 1, "up-4-1": -1},
        {"mid-8-1": INF},
    ],
    "calibrate": ["no"],
    "method": [3],
    "centred": ["yes"],
    "self_attention": ["thrice"],
    "resize": ["crop"],
    "threshold": [1.1, -0.1],
    "temperature": [0, NAN, INF],
    "by_family": [{"sd3": {"gama": 1}}, {"sd3": {"gamma": 7}}, {"sd3": {"by_family": {}}}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BAD.items() for value in values]
)
def test_bad_values_are_named(field, value):
    with pytest.raises(ValueError, match=field if field != "by_family" else "by_family|gamma"):
        AlignConfig(**{field: value})


def test_fast_is_the_default_with_a_quarter_of_the_timesteps():
    fast, default = AlignConfig.fast(), AlignConfig()
    assert (fast.elbo_steps, default.elbo_steps) == (5, 20)
    rest = {"elbo_steps": 20, "collect_steps": 10, "elbo_range": None, "evidence_blur": 2 / 32}
    assert dataclasses.replace(fast, **rest) == default
    assert AlignConfig.preset("fast") == fast
    assert AlignConfig.fast(elbo_steps=8).elbo_steps == 8


def test_unknown_preset():
    with pytest.raises(ValueError, match="preset is 'best'; allowed: 'default', 'paper'"):
        AlignConfig.preset("best")


@pytest.mark.parametrize("name", PRESETS)
def test_survives_json(name):
    config = AlignConfig.preset(name).resolved("sd3", OWN)
    assert AlignConfig(**json.loads(json.dumps(config.to_dict()))) == config


def test_is_immutable_and_hashable():
    config = AlignConfig.official()
    assert hash(config) == hash(AlignConfig.official())
    with pytest.raises(AttributeError):
        config.gamma = 0.5


def test_overrides_of_official_hold_on_every_family():
    config = AlignConfig.official(self_attention="once", text_encoders="all")
    for family in ("sd", "sdxl", "sd3"):
        assert config.resolved(family).self_attention == "once"
    assert config.resolved("sd3").text_encoders == "all"
    assert config.resolved("sd3").cross_weights == "gaussian"


def test_layers_may_be_named():
    weights = {"mid-8-1": 1, "up-4-2": 0.5}
    config = AlignConfig(cross_weights=weights)
    weights["mid-8-1"] = 7
    assert config.cross_weights == {"mid-8-1": 1, "up-4-2": 0.5}
    assert hash(config) == hash(AlignConfig(cross_weights={"mid-8-1": 1, "up-4-2": 0.5}))
    assert AlignConfig(**json.loads(json.dumps(config.to_dict()))) == config


BY_FAMILY = {"gamma": 0.7, "cross_weights": "gaussian", "collect_range": (0.1, 0.2), "threshold": 1}
CALLER = {
    "gamma": 0.8, "cross_weights": "uniform", "collect_range": (0.6, 0.9), "threshold": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLER)
def test_who_decides(name):
    """The caller, on all families or on one; then the model; then the fallback."""

    def found(own=None, family="sd", **given):
        return getattr(AlignConfig(**given).resolved(family, own), name)

    only_sd = {"sd": {name: BY_FAMILY[name]}}
    others = {key: value for key, value in OWN.items() if key != name}
    last = FALLBACK.get(name)
    assert found() == found(others) == found(OWN | {name: None}) == last
    assert found(OWN) == OWN[name]
    assert found(OWN, by_family=only_sd) == BY_FAMILY[name]
    assert found(OWN, "sdxl", by_family=only_sd) == OWN[name]
    assert found(others, "sdxl", by_family=only_sd) == last
    assert found(OWN, **{name: CALLER[name]}) == CALLER[name]
    assert found(OWN, "sdxl", by_family=only_sd, **{name: CALLER[name]}) == CALLER[name]
    assert len({str(value) for value in (last, OWN[name], BY_FAMILY[name], CALLER[name])}) == 4


@pytest.mark.parametrize("name", CALLER)
def test_the_caller_decides_over_the_families_of_a_preset(name):
    config = AlignConfig.official(**{name: CALLER[name]})
    for family in ("sd", "sdxl", "sd3"):
        assert getattr(config.resolved(family, OWN), name) == CALLER[name]


@pytest.mark.parametrize(
    "given",
    [
        {"collect_strategy": "small"},
        {"collect_strategy": "random"},
        {"collect_timesteps": (5, 7)},
        {"collect_range": (0.6, 0.9)},
        {"by_family": {"sd": {"collect_strategy": "middle"}}},
        {"by_family": {"sd": {"collect_timesteps": (5, 7)}}},
    ],
    ids=str,
)
def test_chosen_timesteps_are_not_the_models(given):
    config = AlignConfig(**given).resolved("sd", OWN)
    chosen = {key: value for key, value in given.items() if key != "by_family"}
    chosen |= given.get("by_family", {}).get("sd", {})
    assert config.collect_range == chosen.get("collect_range")
    assert config.collect_timesteps == chosen.get("collect_timesteps")
    assert config.collect_strategy == chosen.get("collect_strategy", "small")
    # The rest is still the model's.
    assert (config.threshold, config.cross_weights) == (0.55, OWN["cross_weights"])


def test_a_models_range_is_used_evenly():
    config = AlignConfig().resolved("sd", OWN)
    assert (config.collect_strategy, config.collect_range) == ("small", (0.3, 0.5))


def test_thresholds_of_methods():
    plain, own = AlignConfig.uncalibrated(), {"threshold": {"elbo": 0.55, "attention": 0.35}}
    assert AlignConfig(method="elbo").resolved("sd", own).threshold == 0.55
    assert plain.resolved("sd", own).threshold == 0.35
    assert plain.resolved("sd", {"threshold": 0.55}).threshold == 0.55
    assert plain.resolved("sd").threshold == 0.4
    assert AlignConfig(method="daam").resolved("sd", own).threshold == 0.4
    assert AlignConfig.uncalibrated(threshold=0.2).resolved("sd", own).threshold == 0.2
    assert AlignConfig(method="elbo").resolved("sd", OWN).temperature == 0.2
    with pytest.raises(ValueError, match="unknown fields"):
        AlignConfig(by_family={"sd": {"calibrate": "none"}})  # the call's, not the family's


@pytest.mark.parametrize("family", ["sd", "sdxl", "sd3"])
@pytest.mark.parametrize("own", [{}, OWN], ids=["bare", "own"])
@pytest.mark.parametrize("name", PRESETS)
def test_resolving_twice_is_resolving_once(name, own, family):
    once = AlignConfig.preset(name).resolved(family, own)
    assert once.by_family == {}
    assert None not in [getattr(once, name) for name in FALLBACK]
    assert once.resolved(family, own) == once
    assert once.resolved() == once


def test_who_decides_on_centring():
    only_sd = AlignConfig(by_family={"sd": {"centred": False}})
    assert AlignConfig().resolved("sd", OWN).centred is True
    assert AlignConfig(centred=False).resolved("sd", OWN).centred is False
    assert only_sd.resolved("sd", OWN).centred is False
    assert only_sd.resolved("sdxl", OWN).centred is True
    assert AlignConfig(centred=True).resolved("sd", {"centred": False}).centred is True
    for preset in ("paper", "official"):
        assert AlignConfig.preset(preset).resolved("sd", OWN).centred is False


def test_official_settings_are_not_the_models():
    official = AlignConfig.official()
    for family, weights in {"sd": "resolution", "sdxl": "resolution", "sd3": "gaussian"}.items():
        config = official.resolved(family, OWN)
        assert config.cross_weights == weights
        assert config.collect_range is None
        assert config.collect_timesteps == tuple(range(20, 201, 20))
        assert config.gamma == pytest.approx(1 / 3)
        assert config.threshold == 0.55


def test_the_papers_layers_are_the_models():
    config = AlignConfig.paper().resolved("sd", OWN)
    assert config.cross_weights == OWN["cross_weights"]
    assert config.collect_range == (0.3, 0.5)
    assert config.gamma == pytest.approx(1 / 3)


def test_numpy_numbers_are_numbers():
    config = AlignConfig(elbo_timesteps=np.arange(3), cross_weights=np.ones(2))
    assert config.elbo_timesteps == (0, 1, 2)
    assert json.dumps(config.to_dict())

"""What a model says of itself, and the model that comes with the package."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import pixalign as pa
from conftest import QUICK
from helpers import model_of
from pixalign.backbones.locations import EMBEDDED, SETTINGS_FILE, model_settings
from pixalign.config import MODEL_SETTINGS

OWN = {
    "gamma": 0.6,
    "centred": True,
    "cross_weights": {"mid-8-1": 1.0, "up-4-2": 0.5},
    "collect_range": [0.3, 0.5],
    "threshold": {"elbo": 0.55, "attention": 0.35},
    "temperature": 0.2,
    "absent_below": 0.3,
    "distilled": True,
}


@pytest.fixture
def folder(sd1_folder, tmp_path):
    """A saved tiny pipeline with settings of its own."""
    copy = tmp_path / "own-sd1"
    shutil.copytree(sd1_folder, copy)
    (copy / SETTINGS_FILE).write_text(json.dumps(OWN))
    return copy


def test_settings_are_read(tmp_path):
    assert model_settings(tmp_path) == {}
    (tmp_path / "pixalign.json").write_text(json.dumps(OWN))
    assert model_settings(tmp_path) == OWN
    assert set(OWN) == set(MODEL_SETTINGS)
    (tmp_path / "pixalign.json").write_text("{}")
    assert model_settings(tmp_path) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"treshold": 0.4}', "'treshold'; allowed: .*'threshold'"),
        ('{"collect_strategy": "small"}', "'collect_strategy'; allowed: .*'collect_range'"),
        ('{"elbo_steps": 3}', "'elbo_steps'; allowed"),
        ('{"threshold": 1.5}', "threshold is 1.5; allowed: 0 to 1"),
        ('{"threshold": {"elbo": 0.4, "attention": -1}}', "threshold is -1; allowed: 0 to 1"),
        ('{"temperature": {"dense": 0}}', "temperature is 0; allowed: a number above 0"),
        ('{"threshold": "high"}', "threshold is 'high'; allowed: a number"),
        ('{"collect_range": [0.5, 0.2]}', "collect_range is .*; allowed"),
        ('{"collect_range": 0.5}', ""),
        ('{"cross_weights": "best"}', "cross_weights is 'best'; allowed: 'resolution'"),
        ('{"cross_weights": {"mid-8-1": 0}}', "cross_weights is .*; allowed"),
        ('{"cross_weights": []}', "cross_weights is .*; allowed"),
        ('{"cross_weights": {"mid-8-1": "much"}}', ""),
        ('{"threshold": 0.4', "line 1 column"),
        ("", "line 1 column"),
        ("[]", ""),
        ("null", ""),
        ('"threshold"', ""),
        ("3", ""),
        ("\xff\xfe\x00", ""),  # no text
    ],
)
def test_bad_settings_are_refused_by_the_name_of_the_file(tmp_path, text, said):
    (tmp_path / "pixalign.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=rf"pixalign\.json' is no model's settings: .*{said}"):
        model_settings(tmp_path)


def test_a_folders_settings_are_used(folder, sd1, photo):
    aligner = model_of(folder, device="cpu", config=pa.AlignConfig(**QUICK))
    result = aligner.align(photo, ["dog", "cat"])

    assert result.config == pa.AlignConfig(
        method="elbo", calibrate="elbo", gamma=0.6, centred=True,
        cross_weights={"mid-8-1": 1.0, "up-4-2": 0.5},
        collect_strategy="small", collect_range=(0.3, 0.5), threshold=0.55, temperature=0.2,
        absent_below=0.3, information_weight=0.15, agreement_floor=0.0, edges="none",
        distilled=True, leave_one_out=False, **QUICK,
    )  # fmt: skip
    assert result.provenance["timesteps"]["collect"] == [350, 450]
    assert result.scores.min() == pytest.approx(0.6)
    assert result.to_dict()["config"]["cross_weights"] == {"mid-8-1": 1.0, "up-4-2": 0.5}
    assert result.to_dict()["threshold"] == 0.55
    assert np.array_equal(result.mask(), result.mask(0.55))
    assert not np.array_equal(result.mask(), result.mask(0.4))
    aligner.backbone.denoiser.to(memory_format=torch.contiguous_format)  # as the other's
    ours = aligner.align(photo, ["dog", "cat"])
    same = model_of(sd1).align(photo, ["dog", "cat"], config=result.config)
    assert np.array_equal(ours.heatmaps, same.heatmaps)
    other = model_of(sd1, config=pa.AlignConfig(**QUICK)).align(photo, ["dog", "cat"])
    assert not np.allclose(result.heatmaps, other.heatmaps, atol=1e-2)
    assert other.config == pa.AlignConfig(method="elbo", **QUICK).resolved()


def test_a_call_decides_over_the_folder(folder, photo):
    aligner = model_of(str(folder), device="cpu")
    plain = aligner.align(photo, ["dog"], config=pa.AlignConfig.uncalibrated(collect_steps=2))
    assert plain.config.threshold == 0.35
    assert np.array_equal(plain.mask(), plain.mask(0.35))
    given = pa.AlignConfig.uncalibrated(
        gamma=0.5, centred=False, cross_weights="uniform", threshold=0.1,
        collect_strategy="large", collect_steps=2, temperature=0.5, absent_below=0.1,
        information_weight=0.2, agreement_floor=0.1, edges="none", leave_one_out=True,
        distilled=False,
    )  # fmt: skip
    result = aligner.align(photo, ["dog"], config=given)
    assert result.config == given
    assert result.provenance["timesteps"]["collect"] == [750, 850]
    official = pa.AlignConfig.official(method="attention", collect_timesteps=(20, 200))
    result = aligner.align(photo, ["dog"], config=official)
    assert result.config.cross_weights == "resolution"
    assert result.provenance["timesteps"]["collect"] == [20, 200]


def test_a_broken_file_is_said_before_the_weights_are_read(folder):
    (folder / "unet" / "diffusion_pytorch_model.safetensors").unlink()
    (folder / SETTINGS_FILE).write_text('{"threshold": 2}')
    with pytest.raises(ValueError, match=r"own-sd1.pixalign\.json' is no model's settings"):
        model_of(folder)


def test_a_pipeline_may_be_given_settings(sd1, photo):
    aligner = model_of(sd1, settings=OWN, config=pa.AlignConfig.uncalibrated(collect_steps=2))
    result = aligner.align(photo, ["dog"])
    assert result.config.cross_weights == OWN["cross_weights"]
    assert result.config.threshold == 0.35


def test_named_layers_are_read(sd1, photo):
    """The lowest resolution of this UNet has one layer: by name or by rank, it is the same."""
    plain = pa.AlignConfig.uncalibrated(self_attention="none", collect_steps=2)
    named, ranked, other = (
        model_of(sd1).align(photo, ["dog", "cat"], config=replace(plain, cross_weights=weights))
        for weights in ({"mid-8-1": 1}, (1, 0, 0, 0), {"up-4-2": 1})
    )
    assert np.array_equal(named.heatmaps, ranked.heatmaps)
    assert not np.allclose(named.heatmaps, other.heatmaps, atol=1e-2)


def test_unknown_layers_are_refused_with_those_there_are(sd1, photo):
    config = pa.AlignConfig.uncalibrated(cross_weights={"mid-4-1": 1}, collect_steps=1)
    with pytest.raises(ValueError, match=r"'mid-4-1'; allowed: 'down-1-1', .*'mid-8-1', "):
        model_of(sd1).align(photo, ["dog"], config=config)


def test_the_embedded_model_needs_no_name(photo):
    aligner = model_of(device="cpu", config=pa.AlignConfig(**QUICK))
    assert aligner.settings == model_settings(EMBEDDED)
    assert aligner.backbone.native_size == (128, 128)
    result = aligner.align(photo, ["strawberry", "dog"])
    assert result.provenance["model"]["name"] == "sd1-like, embedded"
    assert result.config == aligner.resolve()
    assert result.config.threshold == aligner.settings["threshold"]["elbo"]
    assert result.heatmaps.shape == (2, 80, 120)

    by_path = model_of(str(EMBEDDED), device="cpu")
    assert (by_path.name, by_path.settings) == (str(EMBEDDED), aligner.settings)

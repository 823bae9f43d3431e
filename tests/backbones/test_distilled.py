"""Networks that were distilled to answer as if guided: how they are known, and what is done."""

import copy
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import LatentConsistencyModelPipeline, LCMScheduler

import pixalign as pa
import tiny
import zoo
from adapters import add_lora
from pixalign.backbones import wrap
from pixalign.backbones.locations import SETTINGS_FILE

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from guidance import BuiltIn

QUICK = {"elbo_steps": 2, "collect_steps": 1}


def renamed(pipe, name):
    """The pipeline as if loaded by a name."""
    other = copy.copy(pipe)
    other._internal_dict = copy.copy(pipe._internal_dict)
    other.register_to_config(_name_or_path=name)
    return other


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("stabilityai/sdxl-turbo", "turbo"),
        ("black-forest-labs/FLUX.1-schnell", "schnell"),
        ("someone/DreamShaperXLTurbo_v2", "turbo"),
        ("ByteDance/Hyper-SD", "hyper"),
        ("latent-consistency/lcm-sdxl", "lcm"),
        ("/cache/models--Tongyi-MAI--Z-Image-Turbo/snapshots/0123abc", "turbo"),
        ("stable-diffusion-v1-5/stable-diffusion-v1-5", None),
        ("/turbo/models/stable-diffusion-v1-5", None),  # somebody's folder
        ("someone/hyperrealistic-v3", None),
        ("nyanko7/flux-dev-de-distill", None),
        ("black-forest-labs/FLUX.1-dev", None),
        ("segmind/SSD-1B", None),  # a smaller network, taught by features and not by steps
    ],
)
def test_names_tell(sd1, name, word):
    said = wrap(renamed(sd1, name)).distilled
    assert said is None if word is None else said.endswith(f"says {word!r}")
    if word and "models--" in name:
        assert "'Tongyi-MAI/Z-Image-Turbo'" in said


def test_schedulers_pipelines_and_marks_tell(sd1):
    lcm = copy.copy(sd1)
    lcm.scheduler = LCMScheduler.from_config(sd1.scheduler.config)
    assert wrap(lcm).distilled == "its scheduler is a LCMScheduler"
    parts = {**sd1.components, "requires_safety_checker": False}
    few = LatentConsistencyModelPipeline(**parts)
    few.scheduler = sd1.scheduler
    said = "LatentConsistencyModelPipeline takes 4 steps unless told otherwise"
    assert wrap(few).distilled == said
    marked = renamed(zoo.built("krea2"), "")
    marked.register_to_config(is_distilled=True)
    assert wrap(marked).distilled == "its pipeline is marked as distilled"


def test_no_other_model_of_the_zoo_is_taken_for_distilled():
    """FLUX.1 dev is told its guidance, which is another thing."""
    said = {name for name in zoo.cases() if wrap(zoo.built(name)).distilled}
    assert said == {"lcm", "lcm-sdxl"}


def test_adapters_tell(sd1):
    pipe = tiny.sd1()
    assert wrap(pipe).distilled is None
    add_lora(pipe, "sdxl-lightning-4step")
    assert wrap(pipe).distilled == "its name, 'sdxl-lightning-4step', says 'lightning'"


def test_a_file_and_its_settings_tell(sd1_folder, tmp_path, photo):
    folder = shutil.copytree(sd1_folder, tmp_path / "sd-turbo")
    assert pa.load(folder, device="cpu").resolve().distilled
    assert not pa.load(folder, device="cpu").resolve(pa.AlignConfig(distilled=False)).distilled
    (folder / SETTINGS_FILE).write_text(json.dumps({"distilled": False}))
    model = pa.load(folder, device="cpu")
    assert not model.resolve().distilled
    result = model.align(photo, ["dog", "cat"], config=pa.AlignConfig(**QUICK))
    assert not any("distilled" in warning for warning in result.warnings)


@pytest.mark.parametrize(
    ("config", "raw"),
    [
        (pa.AlignConfig(**QUICK), False),
        (pa.AlignConfig(method="likelihood", **QUICK), False),
        (pa.AlignConfig(method="likelihood", leave_one_out=True, **QUICK), True),
        (pa.AlignConfig(evidence_form="error", **QUICK), True),
        (pa.AlignConfig.paper(**QUICK), True),
    ],
)
def test_what_the_evidence_is_worth_is_said(sd1, photo, config, raw):
    result = pa.load(renamed(sd1, "sd-turbo")).align(photo, ["dog", "cat"], config=config)
    (said,) = [warning for warning in result.warnings if "distilled" in warning]
    assert ("take method='dense'" in said) == raw
    assert "its name, 'sd-turbo', says 'turbo'" in said
    assert result.config.distilled


def test_attention_alone_has_no_evidence_to_warn_of(sd1, photo):
    model = pa.load(renamed(sd1, "sd-turbo"))
    result = model.align(photo, ["dog"], config=pa.AlignConfig.uncalibrated(collect_steps=1))
    assert result.warnings == ()


def test_likelihood_leaves_raw_errors_out(sd1, photo):
    """It then takes what texts change, and no more passes than "dense" does."""
    plain, model = pa.load(sd1), pa.load(renamed(sd1, "sd-turbo"))
    ask = {"method": "likelihood", "config": pa.AlignConfig(**QUICK)}
    found = model.align(photo, ["dog", "cat"], **ask)
    expected = pa.AlignConfig(leave_one_out=False, **QUICK)
    same = plain.align(photo, ["dog", "cat"], method="likelihood", config=expected)
    assert np.array_equal(found.heatmaps, same.heatmaps)
    assert not np.array_equal(found.heatmaps, plain.align(photo, ["dog", "cat"], **ask).heatmaps)


@pytest.mark.parametrize("method", ["dense", "likelihood"])
def test_guidance_built_in_changes_no_map(photo, method):
    """What is read on distilled networks is the same at any guidance, to the last digits."""
    config = pa.AlignConfig(method=method, distilled=True, **QUICK)
    maps = []
    for guidance in (1.0, 3.5):
        model = pa.load(tiny.sd1())
        model.backbone.epsilon = BuiltIn(model.backbone, guidance)
        maps.append(model.align(photo, ["dog", "cat", "tree"], config=config))
    np.testing.assert_allclose(maps[0].heatmaps, maps[1].heatmaps, atol=1e-3)
    np.testing.assert_allclose(maps[0].evidence, maps[1].evidence, atol=2e-3)
    assert not np.allclose(maps[0].losses, maps[1].losses, rtol=1e-3)


def test_networks_that_are_told_are_measured_at_none(photo):
    """FLUX.1 dev: whatever its pictures are made with, the evidence is told 1, and says so."""
    model, told = pa.load(zoo.built("flux-dev")), []
    hook = model.backbone.denoiser.register_forward_pre_hook(
        lambda module, args, kwargs: told.append(kwargs["guidance"]), with_kwargs=True
    )
    with hook:
        result = model.align(photo, ["dog", "cat"], config=pa.AlignConfig(**QUICK))
    assert (torch.cat(told) == 1).all()
    assert not result.config.distilled
    assert any("is told its guidance" in warning for warning in result.warnings)

"""A tiny model, and finished audits of it that tests share."""

import dataclasses

import pytest

import pixalign as pa
from bench_folder import dataset_of
from helpers import small
from pixalign.audit import MaskedPictures, Prompts, audit
from pixalign.generation.prompt_sets import SetPrompt

FEW = {"elbo_steps": 3, "collect_steps": 2}
PROMPTS = (
    SetPrompt("a photo of a red dog and a hot cat", ("red dog", "hot cat")),
    SetPrompt("a dog", ("dog",)),
)


@pytest.fixture(scope="session")
def few():
    return pa.AlignConfig(**FEW)


@pytest.fixture(scope="session")
def tiny_model():
    """Random weights at 64 pixels."""
    return pa.load(small("sd1"))


@pytest.fixture(scope="session")
def other_model():
    return pa.load(small("sd2-v"))


@pytest.fixture(scope="session")
def masked(tmp_path_factory):
    """Four pictures of 0 to 3 classes with random masks."""
    dataset = dataset_of(tmp_path_factory.mktemp("masked"), 4)
    return MaskedPictures(dataset, {name: 10 * n for n, name in enumerate(dataset.classes)})


@pytest.fixture(scope="session")
def drawn():
    return Prompts(PROMPTS, count=2, steps=2)


@pytest.fixture(scope="session")
def finished(masked, drawn, tiny_model, other_model, few, tmp_path_factory):
    """(document, folder) of two subjects on masks, and of one on prompts."""
    folders = [tmp_path_factory.mktemp(name) for name in ("masks", "prompts")]
    both = {"one": tiny_model, "other": other_model}
    return {
        "masks": (audit(both, masked, folders[0], config=few), folders[0]),
        "prompts": (audit({"one": tiny_model}, drawn, folders[1], config=few), folders[1]),
    }


@pytest.fixture
def fewer(masked):
    """The same pictures but the last."""
    keys = masked.dataset.keys[:-1]
    return dataclasses.replace(masked, dataset=dataclasses.replace(masked.dataset, keys=keys))

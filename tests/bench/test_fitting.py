"""Settings that are fitted are the best of those tried, and are taken by the model."""

import json

import numpy as np
import pytest
import torch

import pixalign as pa
import tiny
from bench_folder import CLASSES, dataset_of, folder_of
from pixalign.bench import fitting
from pixalign.bench.metrics import IGNORE
from pixalign.bench.subject import image_seed


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    dataset = dataset_of(folder, 4)
    model = pa.load(tiny.sd1())
    return model, dataset, fitting.fit_settings(model, dataset, show=False)


def test_the_threshold_is_the_best_of_all(fitted):
    """Counted anew, picture by picture, from what the front door gives."""
    model, dataset, record = fitted
    config = pa.AlignConfig(method="attention")
    hits, either = np.zeros((2, len(CLASSES) + 1, 99))
    for index in range(len(dataset)):
        sample = dataset[index]
        if not sample.present:
            continue
        names = [CLASSES[label] for label in sample.present]
        seed = image_seed(0, sample.key)
        result = model.align(sample.image, names, config=config, seed=seed)
        numbers = np.array([0, *(label + 1 for label in sample.present)])
        known = sample.truth != IGNORE
        for step in range(99):
            found, truth = numbers[result.mask((step + 1) / 100)][known], sample.truth[known]
            for label in numbers:
                hits[label, step] += ((found == label) & (truth == label)).sum()
                either[label, step] += ((found == label) | (truth == label)).sum()
    there = either.max(1) > 0
    means = (hits[there] / np.maximum(either[there], 1)).mean(0)
    own = record["methods"]["attention"]
    assert own["miou"] == pytest.approx(100 * means.max(), abs=0.01)
    assert own["threshold"] == pytest.approx((means.argmax() + 1) / 100)


def test_what_is_not_counted_does_not_count():
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(2, 9, 9, generator=generator)
    truth = torch.randint(0, 3, (9, 9), generator=generator)
    part = truth.clone()
    part[:, 5:] = IGNORE
    assert fitting.best_temperature([maps], [part], 0.4) in fitting.TEMPERATURES
    whole = fitting.best_temperature([maps], [truth], 0.4)
    assert fitting.best_temperature([maps] * 2, [truth, torch.full((9, 9), IGNORE)], 0.4) == whole


def test_the_command_writes_settings_that_segment_takes(shell, sd1_folder, tmp_path):
    root, path = folder_of(tmp_path / "data", 3), tmp_path / "own.json"
    model = ("--model", sd1_folder, "--device", "cpu")
    code, out, err = shell("fit", root, *model, "--out", path)
    assert code == 0, err
    settings = json.loads(path.read_text())
    assert set(settings["threshold"]) == set(fitting.FITTED)
    assert f"threshold {settings['threshold']['dense']:.2f}" in out
    assert "pictures are few" in err
    picture = next((root / "images").iterdir())
    arguments = ("segment", picture, "dog", "car", *model, "--settings", path, "--json")
    code, out, _ = shell(*arguments)
    assert code == 0
    assert json.loads(out)["threshold"] == settings["threshold"]["dense"]
    assert not (sd1_folder / "pixalign.json").exists()


def test_the_packages_own_model_is_not_changed(shell, tmp_path):
    root = folder_of(tmp_path / "data", 1)
    for arguments, message in (
        ((root,), "name --out FILE"),
        ((root, "--out", tmp_path), "is a folder; name a file"),
        ((tmp_path, "--out", tmp_path / "own.json"), "one level deeper"),
    ):
        code, _, err = shell("fit", *arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err


def test_a_model_is_made_by_load():
    with pytest.raises(ValueError, match=r"Model is given 'lab:sd2'; pixalign.load\(...\) makes"):
        pa.Model("lab:sd2")

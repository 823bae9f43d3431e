"""Settings that are chosen on val scenes hold on those scenes."""

import json

import pytest
import torch

import pixalign as pa
from lab import tune as tuning
from pixalign.backbones.locations import EMBEDDED, model_settings
from pixalign.bench.datasets import open_dataset
from pixalign.bench.metrics import Tally, curve, tally, threshold_index
from pixalign.bench.subject import Subject
from pixalign.config import AlignConfig

FEW = {"elbo_steps": 2, "collect_steps": 1}


def test_chosen_settings_hold_on_their_scenes(tmp_path, monkeypatch):
    """mIoU through the front door, under the settings that were written, is that of the search."""
    folder = tmp_path / "model"
    folder.mkdir()
    for part in EMBEDDED.iterdir():
        if part.name != "pixalign.json":
            (folder / part.name).symlink_to(part)
    monkeypatch.setattr(tuning, "AlignConfig", lambda **options: AlignConfig(**FEW, **options))
    monkeypatch.setattr(tuning, "RANGES", ((0.0, 0.1), (0.0, 0.2)))
    monkeypatch.setattr(tuning, "WEIGHTS", (0.0, 1.0))
    monkeypatch.setattr(tuning.fitting, "STRENGTHS", (1.5, 3.0))
    monkeypatch.setattr(tuning, "_ROUNDS", 1)
    monkeypatch.setattr(tuning.fitting, "FITTED", ("attention", "elbo", "dense"))
    found = tuning.tune_model(folder, 3, "cpu", show=False)
    json.dumps(found, allow_nan=False)
    assert found["scenes"] == 3
    assert model_settings(folder) == found["settings"]
    tried = [step["miou"] for step in found["tried"]]
    assert tried == sorted(tried)
    assert found["uncalibrated"] == max(found["ranges"].values()) >= tried[-1]
    assert found["calibrated"] == max(*found["gammas"].values(), *found["centred"].values())
    assert set(found["alone"]) == set(found["tried"][0]["layers"])

    model = pa.load(folder, device="cpu", dtype="float32")
    dataset = open_dataset("lab", None, "val", 3)
    group = [Subject(dataset[index], index, dataset.classes, 0) for index in range(3)]
    encoded = [model.encode(subject.sample.image) for subject in group]

    def values(config):
        """mIoU in percent at every threshold."""
        rows = []
        for picture, subject in zip(encoded, group, strict=True):
            result = model.align(picture, subject.phrases, config=config, seed=subject.seed)
            heatmaps = torch.from_numpy(result.heatmaps)[None]
            labels = [label + 1 for label in subject.labels]
            rows += tally(heatmaps, subject.truth, labels, subject.index)
        return 100 * curve(Tally.concatenate(rows)).miou[0]

    plain = values(AlignConfig.uncalibrated(**FEW))
    calibrated = values(AlignConfig(method="elbo", **FEW))
    dense = values(AlignConfig(**FEW))
    first = AlignConfig.uncalibrated(cross_weights="uniform", collect_range=(0, 0.2), **FEW)
    uniform = values(first)
    settings = found["settings"]
    assert found["tried"][0]["miou"] == pytest.approx(float(uniform.max()), abs=0.02)
    curves = {"attention": plain, "elbo": calibrated, "dense": dense}
    for name, values_of in curves.items():
        about = found["methods"][name]
        assert settings["threshold"][name] == about["threshold"]
        assert settings["temperature"][name] == about["temperature"] > 0
        reached = float(values_of[threshold_index(about["threshold"])])
        assert about["miou"] == pytest.approx(reached, abs=0.02)
    assert found["uncalibrated"] == pytest.approx(found["methods"]["attention"]["miou"], abs=0.02)
    assert found["calibrated"] == pytest.approx(found["methods"]["elbo"]["miou"], abs=0.02)
    assert plain.max() >= uniform.max()

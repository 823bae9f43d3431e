"""``pixalign models``, ``classes`` and ``doctor``."""

import json
import shutil

from pixalign.backbones import FAMILIES
from pixalign.bench.datasets.sample import class_list
from pixalign.cli.models import cached_models
from pixalign.scenes.atlas import class_names


def test_models(shell):
    code, out, _ = shell("models")
    assert code == 0
    assert all(f"  {family} " in out for family in FAMILIES)
    record = json.loads(shell("models", "--json")[1])
    measured = {entry["family"]: entry["measured"] for entry in record["families"]}
    assert set(measured) == set(FAMILIES)
    assert measured["sd"][:1] == ["lab:sd1"]
    assert {model for own in measured.values() for model in own} == set(record["lab"])


def test_doctor(shell):
    code, out, _ = shell("doctor", "--device", "cpu")
    assert code == 0
    assert "All is well." in out
    record = json.loads(shell("doctor", "--device", "cpu", "--json")[1])
    assert record["device"] == "cpu"
    assert record["dtypes"] == dict.fromkeys(FAMILIES, "float32")
    assert record["versions"]["diffusers"]
    assert record["problems"] == []


def test_cached_models_are_found(tmp_path, monkeypatch, sd1_folder):
    """A hub cache in the hub's own layout."""
    snapshot = tmp_path / "models--someone--tiny" / "snapshots" / ("0" * 40)
    shutil.copytree(sd1_folder, snapshot)
    unfinished = tmp_path / "models--someone--index-only" / "snapshots" / ("1" * 40)
    unfinished.mkdir(parents=True)
    shutil.copy(sd1_folder / "model_index.json", unfinished)
    refs = tmp_path / "models--someone--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", tmp_path)
    assert cached_models() == [{"model": "someone/tiny", "family": "sd"}]


def test_classes(shell):
    code, out, _ = shell("classes")
    assert code == 0
    assert "voc      20 classes" in out
    assert f"scenes   {len(class_names())} classes" in out
    assert shell("classes", "coco")[1].splitlines() == list(class_list("coco"))
    assert json.loads(shell("classes", "scenes", "--json")[1]) == list(class_names())
    lists = json.loads(shell("classes", "--json")[1])
    assert list(lists) == ["ade20k", "aep", "coco", "context", "voc", "scenes"]
    code, _, err = shell("classes", "imagenet")
    assert code == 2
    assert "'imagenet' is not one of" in err

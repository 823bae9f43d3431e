"""``pixalign audit``, as typed."""

import json

import numpy as np
import pytest
from safetensors.torch import save_file

import pixalign as pa
import tiny
from adapters import lora_weights
from bench_folder import folder_of

QUICK = ("--device", "cpu", "--preset", "fast")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return folder_of(tmp_path_factory.mktemp("data") / "own", 3)


def test_masks_and_a_lora(shell, data, sd1_folder, sd1, tmp_path):
    """The model with the LoRA is another subject, and differs."""
    save_file(lora_weights(sd1), tmp_path / "style.safetensors")
    out = tmp_path / "out"
    asked = ("audit", sd1_folder, "--dataset", "folder", "--root", data, "--out", out, *QUICK)
    code, said, err = shell(*asked, "--lora", tmp_path / "style.safetensors")
    assert code == 0, err
    assert "mIoU of dense, %" in said
    assert f"from {sd1_folder} to {sd1_folder} + style.safetensors" in said
    document = json.loads((out / "audit.json").read_text())
    plain, changed = document["subjects"]
    assert plain["weights"] != changed["weights"]
    assert plain["overall"] != changed["overall"]
    assert (out / "report.html").is_file()
    code, said, err = shell(*asked, "--json")  # one of the two, from what is kept
    assert code == 0, err
    assert json.loads(said)["subjects"] == [plain]


def test_pictures_with_classes_from_a_file(shell, sd1_folder, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("a.png", "b.png"):
        tiny.photo(48, 40).save(photos / name)
    (tmp_path / "classes.txt").write_text("dog\ncat=a red cat\n")
    asked = ("audit", sd1_folder, "--images", photos, "--out", tmp_path / "out", *QUICK)
    code, said, err = shell(*asked, "--classes", tmp_path / "classes.txt", "--json")
    assert code == 0, err
    document = json.loads(said)
    assert document["kind"] == "pictures"
    assert [row["name"] for row in document["subjects"][0]["classes"]] == ["cat", "dog"]
    code, _, err = shell(*asked, "--classes", "dog", "--classes", "cat")
    assert code == 2
    assert "choose another --out" in err


def test_prompts(shell, sd1_folder, tmp_path):
    prompts = tmp_path / "prompts.json"
    prompts.write_text('[{"prompt": "a red dog and a cat", "entities": ["red dog", "cat"]}]')
    asked = ("audit", sd1_folder, "--prompts", prompts, "--steps", 2, "--out", tmp_path / "out")
    code, said, err = shell(*asked, *QUICK)
    assert code == 0, err
    assert "entities neglected, %" in said
    assert len(list((tmp_path / "out").glob("pictures/*/*.png"))) == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "nothing is given to audit on; allowed: one of --dataset, --images, --prompts"),
        (("--dataset", "lab", "--images", "."), "--dataset and --images is given to audit on"),
        (("--dataset", "lab", "--classes", "dog"), "--classes are given without --images"),
        (("--dataset", "imagenet"), "'imagenet' is not one of 'voc'"),
        (("--dataset", "voc"), "dataset 'voc' needs a root"),
        (("--images", "missing", "--classes", "dog"), "folder 'missing' is missing"),
        (("--images", "."), "--images needs --classes"),
        (("--prompts", "missing.txt"), "file 'missing.txt' is missing"),
        (("nowhere", "--dataset", "lab"), "one of them is given twice"),
        (("b", "--dataset", "lab", "--lora", "x.safetensors"), "--lora is given and 2 models"),
        (("--dataset", "lab", "--lora", "x.safetensors"), "LoRA 'x.safetensors' is missing"),
        (("--dataset", "lab", "--preset", "paper"), "'paper' is not one of 'default', 'fast'"),
    ],
)
def test_bad_input_is_told_before_a_model_is_loaded(shell, tmp_path, monkeypatch, more, message):
    monkeypatch.chdir(tmp_path)
    tiny.photo(16, 16).save("x.png")
    code, _, err = shell("audit", "nowhere", *more, "--out", "out")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_lora_is_loaded_as_diffusers_does(sd1_folder, sd1, photo, tmp_path):
    """Like a LoRA that was put into the pipeline by hand; what does not fit is refused."""
    weights = lora_weights(sd1)
    save_file(weights, tmp_path / "style.safetensors")
    few = pa.AlignConfig(elbo_steps=2, collect_steps=1)
    loaded = pa.load(sd1_folder, device="cpu", lora=tmp_path / "style.safetensors")
    assert loaded.name.endswith("tiny-sd1 + style.safetensors")
    by_hand = pa.load(sd1_folder, device="cpu").pipe
    by_hand.load_lora_weights(weights)
    ours, theirs, plain = (
        model.align(photo, ["dog", "cat"], config=few).heatmaps
        for model in (loaded, pa.load(by_hand), pa.load(sd1_folder, device="cpu"))
    )
    assert np.array_equal(ours, theirs)
    assert not np.allclose(ours, plain, atol=1e-3)
    other = {f"unknown.{name}": weight for name, weight in weights.items()}
    save_file(other, tmp_path / "other.safetensors")
    with pytest.raises((ValueError, OSError), match=r"other\.safetensors"):
        pa.load(sd1_folder, device="cpu", lora=tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"is no .safetensors file"):
        pa.load(sd1_folder, device="cpu", lora=tmp_path / "style.pt")
    with pytest.raises(ValueError, match="lora and options cannot change"):
        pa.load(by_hand, lora=tmp_path / "style.safetensors")

"""The result: masks, probabilities, files."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

import tiny
from pixalign.alignment.result import Alignment
from pixalign.config import AlignConfig
from pixalign.core import files as export
from pixalign.core.values import Phrase
from pixalign.pictures import drawing as viz


def result_of(heatmaps, names=None, **config):
    count, height, width = heatmaps.shape
    names = names or [f"class {i}" for i in range(count)]
    return Alignment(
        image=tiny.photo(width, height),
        phrases=tuple(Phrase(name) for name in names),
        losses=np.ones((count, 2), np.float32),
        elbo=np.ones(count, np.float32),
        scores=np.linspace(1, 0.5, count).astype(np.float32),
        heatmaps=heatmaps.astype(np.float32),
        config=AlignConfig(**config).resolved(),
    )


def test_mask_by_hand():
    heatmaps = np.array([[[0.9, 0.2, 0.5]], [[0.1, 0.3, 0.6]]])
    result = result_of(heatmaps, threshold=0.4)
    assert result.mask().tolist() == [[1, 0, 2]]
    assert result.mask(0.3).tolist() == [[1, 2, 2]]  # equal to the threshold is foreground
    assert result.mask().dtype == np.uint8
    assert result.shares().tolist() == pytest.approx([1 / 3] * 3)


def test_mask_uses_the_threshold_of_the_settings():
    heatmaps = np.linspace(0, 1, 11).reshape(1, 1, 11)
    for method, threshold in {"elbo": 0.75, "attention": 0.25}.items():
        own = {"threshold": {"elbo": 0.75, "attention": 0.25}}
        config = AlignConfig(method=method).resolved("sd", own)
        result = dataclasses.replace(result_of(heatmaps), config=config)
        assert result.mask().tolist() == (heatmaps[0] >= threshold).astype(int).tolist()
        assert result.to_dict()["threshold"] == threshold
        assert np.array_equal(result.probs().argmax(0), result.mask())
    unresolved = dataclasses.replace(result_of(heatmaps), config=AlignConfig())
    assert np.array_equal(unresolved.mask(), unresolved.mask(0.4))


heat = hnp.arrays(np.float32, (3, 4, 5), elements=st.floats(0, 1, width=32))


@given(heat, st.floats(0, 1, width=32), st.sampled_from([0.02, 0.1]))
def test_probabilities_sum_to_one_and_reproduce_the_mask(heatmaps, threshold, temperature):
    result = result_of(heatmaps, temperature=temperature)
    probs = result.probs(threshold)
    assert probs.shape == (4, 4, 5)
    assert probs.dtype == np.float32
    np.testing.assert_allclose(probs.sum(0), 1, atol=1e-5)
    # Two classes nearer to each other than float32 resolves are a tie in the probabilities.
    top = np.sort(np.concatenate([np.full((1, 4, 5), threshold, np.float32), heatmaps]), 0)
    clear = (top[-1] - top[-2] > 1e-6) | (top[-1] == top[-2])
    assert np.array_equal(probs.argmax(0)[clear], result.mask(threshold)[clear])


@given(heat, st.floats(0, 1))
def test_a_higher_threshold_never_adds_foreground(heatmaps, threshold):
    result = result_of(heatmaps)
    low, high = result.mask(threshold / 2), result.mask(threshold)
    assert ((high == 0) | (high == low)).all()


@pytest.mark.parametrize("wrong", [-0.1, 1.5, float("nan")])
def test_bad_threshold(wrong):
    with pytest.raises(ValueError, match="threshold is"):
        result_of(np.zeros((1, 8, 8))).mask(wrong)


def test_more_classes_than_a_byte_holds(tmp_path):
    heatmaps = np.zeros((300, 8, 8))
    heatmaps[299, 0, 0] = 1
    result = result_of(heatmaps, names=[f"c{i}" for i in range(300)])
    assert result.mask().dtype == np.uint16
    assert result.mask()[0, 0] == 300
    result.save(tmp_path)
    assert np.asarray(Image.open(tmp_path / "mask.png"))[0, 0] == 300


def test_saved_files(tmp_path):
    heatmaps = np.random.default_rng(0).random((2, 30, 50))
    result = result_of(heatmaps, names=["hot dog", "Café / bar"])
    written = result.save(tmp_path / "new" / "folder")

    names = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert names == [
        "heatmap_1_hot-dog.png",
        "heatmap_2_café-bar.png",
        "mask.png",
        "overlay.png",
        "result.json",
        "result.npz",
    ]
    assert sorted(path.name for path in written) == names
    mask = Image.open(tmp_path / "new" / "folder" / "mask.png")
    assert mask.mode == "P"
    assert np.array_equal(np.asarray(mask), result.mask())
    assert mask.getpalette()[:3] == [0, 0, 0]
    assert mask.convert("RGB").getpixel((0, 0)) == tuple(viz.palette(2)[result.mask()[0, 0]])
    grey = np.asarray(Image.open(tmp_path / "new" / "folder" / names[0]))
    assert np.abs(grey / 255 - heatmaps[0]).max() < 0.5 / 255 + 1e-6
    record = json.loads((tmp_path / "new" / "folder" / "result.json").read_text("utf-8"))
    assert [row["name"] for row in record["classes"]] == ["hot dog", "Café / bar"]
    shares = [row["pixel_share"] for row in record["classes"]]
    assert sum(shares) + record["background_share"] == pytest.approx(1)
    assert record["config"]["gamma"] == pytest.approx(1 / 3)


def test_saving_keeps_other_files(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    result_of(np.zeros((1, 8, 8))).save(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "precious"
    result_of(np.zeros((1, 8, 8))).save(tmp_path)  # again, over its own files


def test_saving_over_a_file_is_refused(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file; name a folder"):
        result_of(np.zeros((1, 8, 8))).save(tmp_path / "taken")


def test_interrupted_writing_leaves_no_trace(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    export.write_json(path, {"old": 1})

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(export.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export.write_json(path, {"new": 2})
    assert json.loads(path.read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_uncalibrated_record_is_valid_json():
    result = result_of(np.zeros((1, 8, 8)))
    object.__setattr__(result, "elbo", np.array([np.nan], np.float32))
    record = json.dumps(result.to_dict(), allow_nan=False)
    assert json.loads(record)["classes"][0]["elbo"] is None


def test_overlay_shows_image_and_legend():
    heatmaps = np.zeros((2, 300, 500))
    heatmaps[0, 50:150, 50:250] = 1
    heatmaps[1, 200:280, 300:450] = 1
    result = result_of(heatmaps, names=["dog", "a class with quite a long name"])
    picture = result.overlay()
    assert picture.width >= 500
    assert picture.height > 300
    untouched = np.asarray(picture)[:300, :500][result.mask() == 0]
    assert np.array_equal(untouched, np.asarray(result.image)[result.mask() == 0])
    tinted = np.asarray(picture)[100, 100].astype(int)
    colour = viz.palette(2)[1].astype(int)
    plain = np.asarray(result.image)[100, 100].astype(int)
    assert np.abs(tinted - colour).sum() < np.abs(plain - colour).sum()


@pytest.mark.parametrize("size", [(8, 8), (2000, 60), (60, 2000)])
@pytest.mark.parametrize("count", [1, 30])
def test_overlay_of_any_shape(size, count):
    height, width = size
    result = result_of(np.random.default_rng(0).random((count, height, width)))
    assert result.overlay().mode == "RGB"


def test_palette_colours_differ():
    colours = viz.palette(40).astype(int)
    assert len({tuple(colour) for colour in colours}) == 41
    assert colours[0].tolist() == [0, 0, 0]
    nearest = [np.abs(colours[i] - colours[j]).sum() for i in range(41) for j in range(i)]
    assert min(nearest) > 20


def test_heatmaps_of_an_earlier_result_are_removed(tmp_path):
    result_of(np.zeros((2, 8, 8)), names=["dog", "cat"]).save(tmp_path)
    (tmp_path / "heatmap_9_mine.png").write_text("not listed, so not ours")
    result_of(np.zeros((1, 8, 8)), names=["car"]).save(tmp_path)
    heatmaps = sorted(path.name for path in tmp_path.glob("heatmap*"))
    assert heatmaps == ["heatmap_1_car.png", "heatmap_9_mine.png"]


def test_a_foreign_result_json_removes_nothing(tmp_path):
    for text in ("[]", "{", '{"classes": [{"heatmap": "../precious.png"}]}', '{"classes": 3}'):
        (tmp_path / "result.json").write_text(text)
        (tmp_path.parent / "precious.png").write_text("")
        result_of(np.zeros((1, 8, 8))).save(tmp_path)
        assert (tmp_path.parent / "precious.png").exists()


@pytest.mark.parametrize("temperature", [0.01, 1.0, 50.0])
def test_ties_with_the_threshold_go_to_the_class(temperature):
    heatmaps = np.array([[[0.5, 0.25, 0.75]]])
    result = result_of(heatmaps, temperature=temperature)
    for threshold in (0.25, 0.5, 0.75):
        assert np.array_equal(result.probs(threshold).argmax(0), result.mask(threshold))

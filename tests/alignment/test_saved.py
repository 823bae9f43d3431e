"""What is saved is given back, bit for bit, or refused; and it appears whole."""

import json

import numpy as np
import pytest

import pixalign as pa
import tiny
from pixalign.alignment.saved import ARRAYS, RECORD


@pytest.fixture(scope="module")
def result(request):
    model = pa.load(tiny.sd1())
    config = pa.AlignConfig(elbo_steps=2, collect_steps=1)
    return model.align(tiny.photo(40, 32), ["hot dog", pa.Phrase("Café", "a café")], config=config)


def test_load_gives_back_what_save_wrote(result, tmp_path):
    result.save(tmp_path / "out")
    again = pa.Alignment.load(tmp_path / "out")
    assert again.to_dict() == result.to_dict()
    for name in ("heatmaps", "losses", "elbo", "scores", "evidence"):
        assert np.array_equal(getattr(again, name), getattr(result, name), equal_nan=True)
    assert np.array_equal(again.mask(), result.mask())
    assert np.array_equal(np.asarray(again.image), np.asarray(result.image))
    assert (again.trust, again.config, again.phrases) == (
        result.trust, result.config, result.phrases,
    )  # fmt: skip


def test_a_class_is_asked_for_by_name(result):
    assert np.array_equal(result["Café"], result.heatmaps[1])
    with pytest.raises(KeyError, match="'dog' is none of the classes: hot dog, Café"):
        result["dog"]
    assert repr(result).startswith("<pixalign.Alignment dense of 40x32 pixels: hot dog ")
    assert len(repr(result)) < 200
    assert result._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("seed", range(40))
def test_changed_files_are_refused(result, tmp_path, seed):
    """Of the numbers any bit; of the record whatever does not change its meaning may pass."""
    result.save(tmp_path)
    rng, path = np.random.default_rng(seed), tmp_path / ARRAYS
    content = bytearray(path.read_bytes())
    if seed % 2:
        content = content[: int(rng.integers(len(content)))]
    else:
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)
    try:
        again = pa.Alignment.load(tmp_path)
    except ValueError as error:
        assert str(tmp_path) in str(error)  # noqa: PT017
    else:  # in a field of the archive that is of no number
        assert np.array_equal(again.heatmaps, result.heatmaps)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["classes"].pop(),
        lambda record: record.pop("config"),
        lambda record: record["config"].update(gamma=7),
        lambda record: record["classes"][0].update(trust={"verdict": "sure"}),
        lambda record: record.update(classes=None),
    ],
)
def test_records_that_do_not_fit_are_refused(result, tmp_path, change):
    result.save(tmp_path)
    record = json.loads((tmp_path / RECORD).read_text())
    change(record)
    (tmp_path / RECORD).write_text(json.dumps(record))
    with pytest.raises(ValueError, match="holds no result that can be read"):
        pa.Alignment.load(tmp_path)


def test_a_folder_appears_whole_or_not_at_all(result, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pixalign.alignment.saved.write_json", full)
    with pytest.raises(OSError, match="No space left"):
        result.save(tmp_path / "new")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "mask.png").write_text("before")
    with pytest.raises(OSError, match="No space left"):
        result.save(tmp_path / "old")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mask.png", "old"]
    assert (tmp_path / "old" / "mask.png").read_text() == "before"

"""A folder in, labels out: each picture once, whatever happens in between."""

import csv
import json
import shutil
import threading

import numpy as np
import pytest

import pixalign as pa
from label_folders import CLASSES, QUICK, contents, label, noise_png, write_pictures
from pixalign.core.files import held_alone
from pixalign.labelling import manifest, work
from pixalign.labelling.classes import PictureClasses
from pixalign.pictures.segments import find_segments


@pytest.fixture(scope="module")
def model(pipeline):
    return pa.load(pipeline("sd1"))


@pytest.fixture
def folder(tmp_path):
    return write_pictures(tmp_path / "pictures")


def test_labels_are_those_of_align(model, folder, tmp_path):
    run = label(model, folder, tmp_path / "out", seed=3)
    assert run.finished.classes == CLASSES
    assert [picture.key for picture in run.finished] == [f"{i:02d}.png" for i in range(5)]
    paths = sorted(folder.iterdir())
    expected = model.align(paths, CLASSES, config=QUICK, seed=3)
    for picture, result in zip(run.finished, expected, strict=True):
        assert np.array_equal(picture.mask, result.mask())
        _, segments = find_segments(result.mask(), result.confidence())
        assert [(s.label, s.box, s.area) for s in picture.segments] == [
            (s.label, s.box, s.area) for s in segments
        ]
        for found, known in zip(picture.segments, segments, strict=True):
            assert found.score == pytest.approx(known.score, abs=1e-6)
        verdicts = [known["trust"]["verdict"] for known in picture.record["classes"]]
        assert verdicts == [trust.verdict for trust in result.trust]
        top = np.sort(result.probs(), axis=0)
        assert picture.record["margin"] == pytest.approx(
            float((top[-1] - top[-2]).mean()), abs=1e-5
        )


def test_objects_may_be_told_apart_or_not_after_the_labelling(model, folder, tmp_path):
    out = tmp_path / "out"
    apart = label(model, folder, out)
    together = label(model, folder, out, instances=False)
    large = label(model, folder, out, min_area=100)
    assert together.summary["labelled_now"] == large.summary["labelled_now"] == 0
    for one, all_, some in zip(apart.finished, together.finished, large.finished, strict=True):
        assert np.array_equal(one.mask, all_.mask)
        assert len(all_.segments) == len(set(np.unique(one.mask)) - {0})
        for segment in all_.segments:
            parts = [part for part in one.segments if part.label == segment.label]
            assert segment.area == sum(part.area for part in parts)
            mean = sum(part.area * part.score for part in parts) / segment.area
            assert segment.score == pytest.approx(mean)
        assert {s.area for s in some.segments} == {s.area for s in one.segments if s.area >= 100}
        assert np.count_nonzero(some.mask) == sum(s.area for s in some.segments)


def test_nothing_is_labelled_twice(model, folder, tmp_path, monkeypatch):
    out = tmp_path / "out"
    first = label(model, folder, out)
    shards = {path.name: path.stat().st_mtime_ns for path in (out / "run/shards").iterdir()}
    monkeypatch.setattr(model.backbone, "encode_image", None)  # nothing may be encoded
    monkeypatch.setattr(manifest.hashlib, "file_digest", None)  # nor read
    again = label(model, folder, out)
    assert again.summary["labelled_now"] == 0
    assert contents(again.finished) == contents(first.finished)
    assert {p.name: p.stat().st_mtime_ns for p in (out / "run/shards").iterdir()} == shards


def test_pictures_are_known_by_their_content(model, folder, tmp_path):
    """Moved, doubled, changed, added and removed ones."""
    out = tmp_path / "out"
    first = {p.key: p.mask.tobytes() for p in label(model, folder, out).finished}
    (folder / "below").mkdir()
    shutil.move(folder / "00.png", folder / "below" / "moved.png")
    shutil.copy(folder / "01.png", folder / "twin.png")
    (folder / "02.png").unlink()
    shutil.copy(folder / "04.png", folder / "03.png")
    write_pictures(tmp_path / "more", 6)
    shutil.copy(tmp_path / "more" / "05.png", folder / "new.png")
    run = label(model, folder, out)
    assert run.summary["labelled_now"] == 1
    found = {picture.key: picture.mask.tobytes() for picture in run.finished}
    assert list(found) == ["01.png", "03.png", "04.png", "below/moved.png", "new.png", "twin.png"]
    assert found["below/moved.png"] == first["00.png"]
    assert found["twin.png"] == found["01.png"] == first["01.png"]
    assert found["03.png"] == first["04.png"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ("dog", "cat")}, 'classes.car was "car", is null'),
        ({"config": pa.AlignConfig(elbo_steps=3, collect_steps=1)}, "elbo_steps was 2, is 3"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"lists": {"00.png": PictureClasses((pa.Phrase("dog"),))}}, "classes.dog was"),
    ],
)
def test_changed_settings_are_noticed(model, folder, tmp_path, change, message):
    label(model, folder, tmp_path / "out")
    with pytest.raises(ValueError, match=f"of another run: .*{message}.*another --out"):
        label(model, folder, tmp_path / "out", **change)


def test_changed_weights_are_noticed(pipeline, folder, tmp_path):
    import torch

    import tiny

    pipe = tiny.BUILDERS["sd1"]()
    label(pa.load(pipe), folder, tmp_path / "out")
    with torch.no_grad():
        next(pipe.unet.parameters())[0, 0] += 1
    with pytest.raises(ValueError, match=r"model\.weights was"):
        label(pa.load(pipe), folder, tmp_path / "out")


def test_a_damaged_shard_is_made_anew(model, folder, tmp_path):
    out = tmp_path / "out"
    first = label(model, folder, out)
    (shard,) = (out / "run/shards").iterdir()
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    again = label(model, folder, out)
    assert again.summary["damaged_shards"] == [shard.name]
    assert again.summary["labelled_now"] == 5
    assert contents(again.finished) == contents(first.finished)
    assert label(model, folder, out).summary["damaged_shards"] == []


def test_what_is_no_file_among_the_shards_is_not_read(model, folder, tmp_path):
    """A device has no end, and a folder no bytes."""
    out = tmp_path / "out"
    first = label(model, folder, out)
    (shard,) = (out / "run/shards").iterdir()
    shard.unlink()
    shard.symlink_to("/dev/zero")
    again = label(model, folder, out)
    assert again.summary["damaged_shards"] == [shard.name]
    assert contents(again.finished) == contents(first.finished)
    assert shard.is_file()
    (out / "run/run.json").unlink()
    (out / "run/run.json").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"run\.json' is damaged: .* no ordinary file"):
        label(model, folder, out)


def test_an_altered_manifest_is_not_believed(model, folder, tmp_path):
    out = tmp_path / "out"
    first = label(model, folder, out)
    path = out / "run" / "pictures.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records[1]["size"] = [8, 8]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    again = label(model, folder, out)
    assert contents(again.finished) == contents(first.finished)
    assert json.loads(path.read_text().splitlines()[1])["size"] == [32, 40]


def test_bad_pictures_are_reported_and_tried_again(model, folder, tmp_path):
    out = tmp_path / "out"
    noise_png(folder / "00b.png")
    (folder / "03.png").write_bytes((folder / "03.png").read_bytes()[:200])
    run = label(model, folder, out)
    assert [failure.key for failure in run.failures] == ["00b.png", "03.png"]
    assert run.summary["pictures"] == 4
    rows = list(csv.DictReader((out / "failed.csv").open()))
    assert [row["image"] for row in rows] == ["00b.png", "03.png"]
    assert "damaged or cut short" in rows[1]["reason"]
    with pytest.raises(ValueError, match=r"00b\.png"):
        label(model, folder, out, strict=True)
    (folder / "00b.png").unlink()
    write_pictures(folder)
    again = label(model, folder, out)
    assert again.summary["labelled_now"] == 1
    assert not again.failures
    assert not (out / "failed.csv").exists()


def test_a_picture_that_no_class_list_suits_does_not_take_others_along(model, folder, tmp_path):
    """What fails in the network is found by labelling one after the other."""
    lists = {f"{i:02d}.png": PictureClasses((pa.Phrase("dog"),)) for i in range(5)}
    lists["02.png"] = PictureClasses((pa.Phrase("dog " * 100),))
    run = label(model, folder, tmp_path / "out", lists=lists)
    assert [failure.key for failure in run.failures] == ["02.png"]
    assert run.summary["pictures"] == 4
    lists = {key: PictureClasses((pa.Phrase("cat " * 100),)) for key in lists}
    with pytest.raises(ValueError, match="cat cat"):  # not the pictures' fault
        label(model, folder, tmp_path / "other", lists=lists)


def test_lists_by_picture(model, folder, tmp_path):
    dog, cat = pa.Phrase("dog", "a red dog"), pa.Phrase("cat")
    lists = {
        "04.png": PictureClasses((cat,), seed=9),
        "01.png": PictureClasses((dog, cat)),
        "02.png": PictureClasses(()),
    }
    run = label(model, folder, tmp_path / "out", lists=lists, seed=2)
    assert run.finished.classes == ("dog", "cat")
    masks = {picture.key: picture.mask for picture in run.finished}
    assert list(masks) == ["01.png", "02.png", "04.png"]
    assert not masks["02.png"].any()
    expected = model.align(folder / "04.png", [cat], config=QUICK, seed=9).mask()
    assert np.array_equal(masks["04.png"], expected * 2)  # "cat" is the second class of all
    expected = model.align(folder / "01.png", [dog, cat], config=QUICK, seed=2).mask()
    assert np.array_equal(masks["01.png"], expected)
    with pytest.raises(FileNotFoundError, match=r"1 picture of the list .* 'gone.png' first"):
        label(model, folder, tmp_path / "x", lists={"gone.png": PictureClasses((dog,))})


def test_long_lists_are_cut_to_the_likely(model, folder, tmp_path):
    """As `present` ranks them; then `align` sees those alone."""
    bounds = {"absent_below": 0.0}  # then all are there
    config = pa.AlignConfig(elbo_steps=2, collect_steps=1, absent="drop", **bounds)
    names = ("dog", "cat", "car", "tree", "door")
    run = label(model, folder, tmp_path / "out", classes=names, config=config, candidates=2)
    for picture in run.finished:
        few = pa.AlignConfig.fast(**bounds)
        ranked = model.present(picture.path, names, config=few)
        likely = {candidate.name for candidate in ranked[:2]}
        assert {known["name"] for known in picture.record["classes"]} == likely
        asked = [name for name in names if name in likely]
        result = model.align(picture.path, asked, config=config)
        labels = np.array([0, *(names.index(name) + 1 for name in asked)])
        assert np.array_equal(picture.mask, labels[result.mask()])


def test_sizes_are_kept_and_batches_filled(model, tmp_path, monkeypatch):
    """Wide and high pictures in turn, seen in their own shapes: two units, not ten."""
    folder = tmp_path / "pictures"
    for index in range(10):
        size = (80, 20) if index % 2 else (20, 80)
        write_pictures(tmp_path / f"{index}", 1, size)
        folder.mkdir(exist_ok=True)
        shutil.move(tmp_path / f"{index}" / "00.png", folder / f"{index}.png")
    config = pa.AlignConfig(elbo_steps=2, collect_steps=1, resize="keep")
    run = label(model, folder, tmp_path / "out", config=config)
    assert len(list((tmp_path / "out/run/shards").iterdir())) == 2
    assert {picture.size for picture in run.finished} == {(20, 80), (80, 20)}
    expected = model.align(sorted(folder.iterdir()), CLASSES, config=config)
    for picture, result in zip(run.finished, expected, strict=True):
        assert picture.mask.shape == picture.size
        assert np.mean(picture.mask == result.mask()) > 0.99  # batches round differently


def test_the_network_does_not_wait_for_what_remains_of_a_unit(model, folder, tmp_path, monkeypatch):
    """The next unit goes through the network while the last one's shard waits to be written."""
    monkeypatch.setattr(work, "UNIT", 2)
    seen, ahead, third = [], [], threading.Event()
    keep, write = work.kept_of, work.write_shard

    def kept(aligned):
        seen.append(aligned.provenance["source"])
        if len(seen) == 3:
            third.set()
        return keep(aligned)

    def written(*arguments):
        ahead.append(third.wait(30))
        return write(*arguments)

    monkeypatch.setattr(work, "kept_of", kept)
    monkeypatch.setattr(work, "write_shard", written)
    run = label(model, folder, tmp_path / "out")
    assert ahead == [True] * 3
    assert run.summary["pictures"] == 5


@pytest.mark.parametrize("where", ["before the network", "after it"])
def test_a_unit_that_fails_takes_no_other_along(model, tmp_path, monkeypatch, where):
    """Its pictures are tried alone; those before and after it are labelled as ever."""
    folder = write_pictures(tmp_path / "pictures", 8)
    monkeypatch.setattr(work, "UNIT", 2)
    keys = [f"{i:02d}.png" for i in range(8)]
    lists = {key: PictureClasses((pa.Phrase("dog"), pa.Phrase("cat"))) for key in keys}
    calm, keep = label(model, folder, tmp_path / "calm", lists=lists), work.kept_of
    if where == "before the network":
        lists["03.png"] = PictureClasses((pa.Phrase("dog " * 100),))
    else:

        def kept(aligned):
            if aligned.provenance["source"].endswith("03.png"):
                raise ArithmeticError("not finite")
            return keep(aligned)

        monkeypatch.setattr(work, "kept_of", kept)
    run = label(model, folder, tmp_path / "out", lists=lists)
    assert [failure.key for failure in run.failures] == ["03.png"]
    found, expected = ({each[0]: each for each in contents(x.finished)} for x in (run, calm))
    assert list(found) == [key for key in keys if key != "03.png"]
    for key in found.keys() - {"02.png"}:  # that one has lost its company, and may round otherwise
        assert found[key] == expected[key]


def test_one_command_writes_at_a_time(model, folder, tmp_path):
    with held_alone(tmp_path / "out" / "run"), pytest.raises(ValueError, match="another process"):
        label(model, folder, tmp_path / "out")


def test_the_labels_folder_is_no_source(model, folder):
    """An output folder inside of the pictures', with copies of them."""
    out = folder / "labels"
    first = label(model, folder, out, queue=2)
    assert len(list((out / "queue").glob("*.png"))) == 2
    again = label(model, folder, out, queue=1)
    assert again.summary["pictures"] == first.summary["pictures"] == 5
    assert len(list((out / "queue").glob("*.png"))) == 1


def test_the_most_doubtful_come_first(model, folder, tmp_path):
    out = tmp_path / "out"
    run = label(model, folder, out, queue=2)
    rows = list(csv.DictReader((out / "review.csv").open()))
    levels = [float(row["uncertainty"]) for row in rows]
    assert levels == sorted(levels, reverse=True)
    assert {row["image"] for row in rows} == {picture.key for picture in run.finished}
    queued = {path.name for path in (out / "queue").glob("*.png")}
    assert queued == {row["image"] for row in rows[:2]}
    assert json.loads((out / "summary.json").read_text())["pictures"] == 5
    by_key = {row["image"]: row for row in rows}
    for key in by_key:
        result = model.align(folder / key, CLASSES, config=QUICK)
        mask, own = result.mask(), result.confidence()
        least = {n: own[mask == i].mean() for i, n in enumerate(CLASSES, 1) if (mask == i).any()}
        name, row = min(least, key=least.get), by_key[key]
        assert row["least_certain"] == name
        assert float(row["probability"]) == pytest.approx(least[name], abs=2e-3)
        drawn = [t for i, t in enumerate(result.trust, 1) if (mask == i).any()]
        stands = min(trust.numbers["standing"] for trust in drawn)
        expected = (1 - least[name] + 0.3 / (0.3 + stands)) / 2
        assert float(row["uncertainty"]) == pytest.approx(expected, abs=2e-3)


def test_without_evidence_entropy_tells_doubt(model, folder, tmp_path):
    config = pa.AlignConfig(method="attention", collect_steps=1)
    label(model, folder, tmp_path / "out", config=config)
    for row in csv.DictReader((tmp_path / "out" / "review.csv").open()):
        expected = (1 - float(row["probability"]) + float(row["entropy"])) / 2
        assert float(row["uncertainty"]) == pytest.approx(expected, abs=2e-4)


def test_the_page_escapes_names_and_needs_nothing_else(model, tmp_path):
    folder, evil = tmp_path / "pictures", "<img src=x onerror=alert(1)>.png"
    write_pictures(folder, 1)
    (folder / "00.png").rename(folder / evil)
    label(model, folder, tmp_path / "out", classes=["dog", "<b>cat"])
    page = (tmp_path / "out" / "review.html").read_text()
    assert "<img src=x" not in page
    assert "<b>cat" not in page
    assert "&lt;img src=x" in page
    assert "http://" not in page
    assert "https://" not in page
    assert page.count("data:image/webp;base64,") == 2

"""Whole audits: what they write, that they go on, and what they refuse."""

import dataclasses
import json
import re

import pytest
from PIL import Image

import pixalign as pa
import tiny
from pixalign.audit import PlainPictures, Prompts, audit, read_prompts
from pixalign.generation.prompt_sets import SetPrompt
from pixalign.labelling.classes import PictureClasses
from pixalign.text.prompts import as_phrases

EVIL = "<script>alert('x')</script> & co"


def read(folder):
    return json.loads((folder / "audit.json").read_text(encoding="utf-8"))


def test_the_document_is_what_is_returned(finished):
    for document, folder in finished.values():
        assert read(folder) == json.loads(json.dumps(document))
        assert document["version"] == 2
    document, _ = finished["masks"]
    assert [subject["name"] for subject in document["subjects"]] == ["one", "other"]
    (pair,) = document["comparisons"]
    assert (pair["from"], pair["to"]) == ("one", "other")
    first, second = (subject["overall"]["miou_dense"]["value"] for subject in document["subjects"])
    assert pair["overall"]["miou_dense"][0] == pytest.approx(second - first, abs=2e-3)
    assert {"confusion", "groups", "layers"} <= document["subjects"][0].keys()
    assert not document["subjects"][0]["own_bounds"]
    assert "no bound of its own" in (finished["masks"][1] / "report.html").read_text()


def test_the_same_again_is_the_same(finished, masked, tiny_model, other_model, few, tmp_path):
    document, folder = finished["masks"]
    audit({"one": tiny_model, "other": other_model}, masked, tmp_path, config=few)
    for name in ("audit.json", "report.html"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    assert document["pictures"] == 4


class Stopping:
    """A source that is stopped before a picture."""

    def __init__(self, source, at):
        self.source, self.at = source, at

    def __getattr__(self, name):
        return getattr(self.source, name)

    def record(self, model, index, *options):
        if index >= self.at:
            raise KeyboardInterrupt
        return self.source.record(model, index, *options)


@pytest.mark.parametrize("kind", ["masks", "prompts"])
def test_a_stopped_audit_goes_on(kind, finished, masked, drawn, tiny_model, few, tmp_path):
    source = masked if kind == "masks" else drawn
    with pytest.raises(KeyboardInterrupt):
        audit({"one": tiny_model}, Stopping(source, 2), tmp_path, config=few)
    assert not (tmp_path / "audit.json").exists()
    done = sorted(tmp_path.glob("run/*/0*.json"))
    assert len(done) == 2
    before = [path.stat().st_mtime_ns for path in done]
    whole = audit({"one": tiny_model}, source, tmp_path, config=few)
    assert [path.stat().st_mtime_ns for path in done] == before
    assert whole["subjects"][0] == finished[kind][0]["subjects"][0]


def test_what_is_damaged_or_gone_is_made_again(drawn, tiny_model, few, tmp_path):
    audit({"one": tiny_model}, drawn, tmp_path, config=few)
    before = (tmp_path / "audit.json").read_bytes()
    first, second, *_ = sorted(tmp_path.glob("run/*/0*.json"))
    first.write_text(first.read_text().replace('"seed": 0', '"seed": 7'))
    second.write_text("{")
    next(tmp_path.glob("pictures/*/00002-*.png")).unlink()
    audit({"one": tiny_model}, drawn, tmp_path, config=few)
    assert (tmp_path / "audit.json").read_bytes() == before
    assert len(list(tmp_path.glob("pictures/*/*.png"))) == 4


def test_other_settings_are_refused(finished, masked, fewer, tiny_model, few):
    _, folder = finished["masks"]
    subjects = {"one": tiny_model}
    with pytest.raises(ValueError, match="choose another --out"):
        audit(subjects, masked, folder, config=few, seed=1)
    with pytest.raises(ValueError, match="choose another --out"):
        audit(subjects, fewer, folder, config=few)
    with pytest.raises(ValueError, match="choose another --out"):
        audit(subjects, masked, folder, config=dataclasses.replace(few, elbo_steps=2))


def test_nothing_to_audit_is_told(masked, tiny_model, tmp_path):
    with pytest.raises(ValueError, match="no model to audit"):
        audit({}, masked, tmp_path)
    with pytest.raises(ValueError, match="method of an audit is 'elbo'"):
        audit({"one": tiny_model}, masked, tmp_path, config=pa.AlignConfig.paper())


# ---- pictures without masks ----


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for index, name in enumerate(("a.png", "b & <i>.png", "c.png")):
        tiny.photo(48, 40, index).save(folder / name)
    return folder


def test_lists_by_picture_and_pictures_that_fail(photos, tiny_model, few, tmp_path):
    (photos / "broken.png").write_bytes(b"no picture")
    lists = {
        "a.png": PictureClasses(as_phrases(["dog", EVIL])),
        "b & <i>.png": PictureClasses(as_phrases(["cat", "dog", "car"]), 4),
        "broken.png": PictureClasses(as_phrases(["dog"])),
        "c.png": PictureClasses(()),
    }
    source = PlainPictures(photos, lists, tmp_path / "out")
    document = audit({EVIL: tiny_model}, source, tmp_path / "out", config=few)
    assert document["pictures"] == 2
    assert list(document["failed"]) == ["broken.png"]
    classes = {row["name"]: row["pictures"] for row in document["subjects"][0]["classes"]}
    assert classes == {"dog": 2, EVIL: 1, "cat": 1, "car": 1}
    tiny.photo(48, 40, 5).save(photos / "broken.png")  # mended: another picture, another audit
    again = PlainPictures(photos, lists, tmp_path / "out")
    with pytest.raises(ValueError, match="choose another --out"):
        audit({EVIL: tiny_model}, again, tmp_path / "out", config=few)


def test_pages_escape_names_and_load_nothing(photos, tiny_model, few, finished, tmp_path):
    source = PlainPictures(photos, ["dog", EVIL], tmp_path / "out")
    audit({EVIL: tiny_model}, source, tmp_path / "out", config=few)
    folders = [tmp_path / "out", *(folder for _, folder in finished.values())]
    for folder in folders:
        page = (folder / "report.html").read_text(encoding="utf-8")
        assert not re.search(r"<script|<i>|@import|url\(", page)
        assert not re.search(r"""(?:src|href)=["'](?!data:image/webp;base64,)""", page)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;" in page
    assert "b &amp; &lt;i&gt;.png" in page


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"z.png": PictureClasses(())}, "'z.png' is no picture below"),
        ({"a.png": PictureClasses(())}, "has a class to ask for"),
        ([], "no classes given"),
    ],
)
def test_classes_must_suit(photos, tmp_path, classes, message):
    with pytest.raises(ValueError, match=message):
        PlainPictures(photos, classes, tmp_path / "out")


def test_an_audit_of_nothing_but_failures_says_why(tmp_path, tiny_model, few):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "x.png").write_bytes(b"no picture")
    source = PlainPictures(folder, ["dog"], tmp_path / "out")
    with pytest.raises(ValueError, match=r"no picture could be audited; 'x.png': .*x.png"):
        audit({"one": tiny_model}, source, tmp_path / "out", config=few)


# ---- prompts ----


def test_drawn_pictures_are_kept(finished):
    document, folder = finished["prompts"]
    pictures = sorted(folder.glob("pictures/*/*.png"))
    assert len(pictures) == document["pictures"] == 4
    assert {Image.open(path).mode for path in pictures} == {"RGB"}
    assert set(document["subjects"][0]["overall"]) <= {"neglected", "merged", "leaked", "whole"}
    assert document["source"]["prompts"] == 2


def test_prompts_from_files(tmp_path):
    text, listed = tmp_path / "p.txt", tmp_path / "p.json"
    text.write_text("# a remark\na red dog\n\na cat\n")
    assert read_prompts(text) == (SetPrompt("a red dog", ()), SetPrompt("a cat", ()))
    listed.write_text('["a cat", {"prompt": "a red dog", "entities": ["red dog"]}]')
    assert read_prompts(listed)[1] == SetPrompt("a red dog", ("red dog",))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", "# nothing\n", "holds no prompt"),
        ("p.json", "{}", "allowed: a list of prompts"),
        ("p.json", "[7]", "entry 1 of .* is 7"),
        ("p.json", '[{"prompt": "a", "entities": "b"}]', "allowed: a text, or prompt and"),
        ("p.json", "[", "is no JSON"),
    ],
)
def test_wrong_prompts_are_told(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_prompts(tmp_path / name)


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ((), {}, "there are no prompts"),
        ((SetPrompt("a dog", ("cat",)),), {}, "does not occur in the prompt"),
        ((SetPrompt("a dog", ("dog",)),), {"count": 0}, "count is 0"),
        ((SetPrompt("a dog", ("dog",)),), {"steps": 0}, "steps is 0"),
    ],
)
def test_prompts_must_suit(prompts, options, message):
    with pytest.raises(ValueError, match=message):
        Prompts(prompts, **options)


def test_entities_are_found():
    pytest.importorskip("spacy")
    source = Prompts((SetPrompt("a red dog and a car", ()),))
    assert [entity.text for entity in source.entities[0]] == ["red dog", "car"]
    with pytest.raises(ValueError, match="names no entity"):
        Prompts((SetPrompt("running", ()),))

"""Specs: read, inherited, digested, and every bad field refused by name."""

import re
from pathlib import Path

import pytest
import yaml

from pixalign import AlignConfig
from pixalign.backbones.locations import EMBEDDED
from pixalign.bench.spec import MODELS, SPECS, load_spec, paper_model_name

SMALL = {
    "version": 1,
    "label": "tab:small",
    "title": "A small table",
    "datasets": ["voc", "coco"],
    "preset": "official",
    "baseline": "before",
    "rows": [
        {"name": "before", "method": "attention"},
        {"name": "after", "set": {"gamma": "1/2"}},
    ],
    "paper": {"SD1.5": {"before": {"voc": 50, "coco": 40.5}, "after": {"voc": 51.25}}},
}
TWIN = {"version": 1, "extends": "small", "datasets": ["lab"], "preset": "default"}


@pytest.fixture
def write(tmp_path):
    def write_spec(content, name="small"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return write_spec


def test_a_file_is_read(write):
    spec = load_spec(write(SMALL))
    assert (spec.name, spec.version) == ("small", 1)
    assert (spec.label, spec.title) == ("tab:small", "A small table")
    assert (spec.datasets, spec.split, spec.columns) == (("voc", "coco"), None, "datasets")
    assert (spec.baseline, spec.notes, spec.extends) == ("before", (), None)
    before, after = spec.rows
    assert before.config == AlignConfig.official(method="attention", calibrate="none")
    assert after.config == AlignConfig.official(gamma=1 / 2, calibrate="elbo")
    assert (after.method, after.scores, after.baseline) == ("elbo", None, "before")
    assert spec.paper == {
        ("SD1.5", "before", "voc"): 50.0,
        ("SD1.5", "before", "coco"): 40.5,
        ("SD1.5", "after", "voc"): 51.25,
    }
    assert load_spec(str(write(SMALL))) == spec


def test_a_twin_inherits(write):
    original = load_spec(write(SMALL | {"notes": ["one"], "split": "val"}))
    twin = load_spec(write(TWIN | {"notes": ["two"], "split": "test"}, "other"))
    assert (twin.name, twin.extends, twin.split) == ("other", "small", "test")
    for field in ("title", "baseline", "paper"):
        assert getattr(twin, field) == getattr(original, field)
    assert twin.notes == ("one", "two")
    assert [row.config for row in twin.rows] == [
        AlignConfig.uncalibrated(),
        AlignConfig(method="elbo", calibrate="elbo", gamma=1 / 2),
    ]
    rows = {"rows": [{"name": "only", "preset": "paper"}], "baseline": "only"}
    third = load_spec(write(TWIN | {"extends": "other"} | rows, "third"))
    assert [row.config for row in third.rows] == [AlignConfig.paper(calibrate="elbo")]
    assert (third.notes, third.paper, third.split) == (("one", "two"), original.paper, "test")
    shipped = load_spec(write(TWIN | {"extends": "models"}, "fourth"))
    assert shipped.paper == load_spec("models").paper


def test_digest_is_of_what_determines_results(write):
    digest = load_spec(write(SMALL)).digest()
    assert re.fullmatch("[0-9a-f]{64}", digest)
    same = [
        {"title": "Other words"},
        {"label": "tab:other"},
        {"paper": {}},
        {"notes": ["a note"]},
        {"baseline": "after"},
        {"rows": SMALL["rows"][::-1]},
        {"datasets": ["coco", "voc"]},
        {"rows": [SMALL["rows"][0], {"name": "after", "set": {"gamma": 0.5, "centred": False}}]},
    ]
    for change in same:
        assert load_spec(write(SMALL | change)).digest() == digest, change
    dense = [SMALL["rows"][0], {"name": "after", "method": "dense"}]
    other = [
        {"datasets": ["voc"], "paper": {}},
        {"split": "val"},
        {"preset": "default"},
        {"rows": [SMALL["rows"][0], {"name": "after", "set": {"gamma": 0.25}}]},
        {"rows": [SMALL["rows"][0], {"name": "after", "set": {"gamma": 0.5}, "scores": 0.5}]},
        {"rows": [SMALL["rows"][0], {"name": "after", "method": "daam"}]},
        {"preset": "default", "rows": dense},
        {"preset": "default", "rows": [dense[0], dense[1] | {"evidence": "shifted"}]},
        {"preset": "default", "rows": [dense[0], dense[1] | {"set": {"evidence_margin": 0}}]},
    ]
    digests = {load_spec(write(SMALL | change)).digest() for change in other}
    assert len(digests | {digest}) == len(other) + 1


def row(**changes):
    return {"rows": [SMALL["rows"][0], {"name": "after"} | changes]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, ["version is 2", "allowed: 1"]),
        ({"version": True}, ["version is True", "allowed: 1"]),
        ({"version": None}, ["version is None"]),
        ({"colums": "metrics"}, ["a key is 'colums'", "'columns'"]),
        ({"label": 3}, ["label is 3"]),
        ({"title": " "}, ["title is ' '"]),
        ({"datasets": ["voc", "imagenet"]}, ["'imagenet'", "'ade20k'", "'lab-toy'"]),
        ({"datasets": "voc"}, ["datasets is 'voc'", "a list"]),
        ({"datasets": []}, ["datasets are []", "one or more"]),
        ({"datasets": ["voc", "voc"]}, ["['voc', 'voc']", "each once"]),
        ({"datasets": ["coco", {}]}, ["an item of datasets is {}"]),
        ({"columns": "metrics"}, ["['voc', 'coco']", "'metrics': one"]),
        ({"columns": "groups"}, ["'groups': lab-toy"]),
        ({"columns": "rows"}, ["columns is 'rows'", "'frequency'"]),
        ({"columns": "groups", "datasets": ["lab-toy"]}, ["paper is", "nothing"]),
        ({"split": "test"}, ["split of voc is 'test'", "'val'"]),
        ({"preset": "best"}, ["preset is 'best'", "'official'"]),
        ({"baseline": "never"}, ["baseline is 'never'", "'before', 'after'"]),
        ({"baseline": None}, ["baseline is None"]),
        ({"rows": []}, ["rows are []"]),
        ({"rows": {"before": {}}}, ["rows are {'before': {}}", "a list"]),
        ({"rows": ["before"]}, ["row 1 is 'before'", "mapping"]),
        ({"rows": [{"set": {}}]}, ["name of row 1 is None"]),
        ({"rows": [{"name": 5}]}, ["name of row 1 is 5"]),
        ({"rows": SMALL["rows"][:1] * 2}, ["row 'before' stands 2 times"]),
        (row(methods="daam"), ["a key of row 2 is 'methods'", "'method'"]),
        (row(method="sam"), ["method of row 'after' is 'sam'", "'ovam-optimized'"]),
        (row(preset="mine"), ["preset of row 'after' is 'mine'", "'uncalibrated'"]),
        (row(baseline="never"), ["baseline of row 'after' is 'never'", "'before'"]),
        (row(set={"gama": 1}), ["a field in set of row 'after' is 'gama'", "'gamma'"]),
        (row(set={"gamma": 2}), ["row 'after'", "gamma is 2", "0 < gamma <= 1"]),
        (row(set={"gamma": "1/0"}), ["gamma is '1/0'"]),
        (row(set={"elbo_range": 3}), ["set of row 'after' is {'elbo_range': 3}"]),
        (row(set={"template": 3}), ["set of row 'after' is {'template': 3}"]),
        (row(set=["gamma"]), ["set of row 'after' is ['gamma']", "mapping"]),
        (row(scores=0), ["scores of row 'after' is 0", "above 0"]),
        (row(scores="3/2"), ["scores of row 'after' is '3/2'", "up to 1"]),
        (row(scores=True), ["scores of row 'after' is True"]),
        (row(scores="mean"), ["scores of row 'after' is 'mean'", "elbo"]),
        (row(scores=0.5, method="attention"), ["is 0.5", "where calibrate is 'elbo'"]),
        (row(scores=0.5, method="daam"), ["is 0.5", "where calibrate is 'elbo'"]),
        (row(scores=0.5, method="dense"), ["is 0.5", "where calibrate is 'elbo'"]),
        (row(set={"calibrate": "none"}), ["row 'after'", "calibrate of elbo is 'none'", "'elbo'"]),
        (row(set={"method": "daam"}), ["a field in set of row 'after' is 'method'", "'gamma'"]),
        (row(exponents="sorted"), ["exponents of row 'after' is 'sorted'", "'best-order'"]),
        (row(exponents="shuffled", method="attention"),
         ["is 'shuffled'", "where calibrate is 'elbo'"]),
        (row(evidence="none", method="dense"), ["evidence of row 'after'", "'own-noise'"]),
        (row(evidence="shifted"), ["is 'shifted'", "where calibrate is 'evidence'"]),
        (row(evidence="shifted", method="daam", set={"calibrate": "evidence"}),
         ["evidence of row 'after' is 'shifted'", "method dense"]),
        (row(exponents="shuffled", scores=0.5), ["is 'shuffled'", "no scores"]),
        (row(exponents="shuffled", method="daam", set={"calibrate": "elbo"}),
         ["exponents of row 'after' is 'shuffled'", "method elbo"]),
        ({"paper": {"SD9": {}}}, ["a key of paper is 'SD9'", "'SD3.5'"]),
        ({"paper": {"SD2": {"later": {}}}}, ["a key of paper, SD2 is 'later'", "'after'"]),
        ({"paper": {"SD2": {"after": {"ade20k": 1.0}}}},
         ["a key of paper, SD2, after is 'ade20k'", "'voc', 'coco'"]),
        ({"paper": {"SD2": {"after": 61.2}}}, ["paper, SD2, after is 61.2", "mapping"]),
        ({"paper": {"SD2": {"after": {"voc": "61,2"}}}}, ["paper, SD2, after, voc is '61,2'"]),
        ({"paper": {"SD2": {"after": {"voc": 612}}}}, ["voc is 612", "0 to 100"]),
        ({"notes": "one"}, ["notes is 'one'", "a list"]),
        ({"notes": [1]}, ["an item of notes is 1"]),
        ({"extends": "sota"}, ["a key is 'label'", "'extends'"]),
    ],
)  # fmt: skip
def test_bad_fields_are_named(write, change, words):
    refused(write(SMALL | change), words)


def refused(path, words):
    """In one line with the file's name and these words."""
    with pytest.raises(ValueError, match=re.escape(str(path))) as error:
        load_spec(path)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_columns_of_metrics_and_frequency(write):
    paper = {"SD1.5": {"after": {"miou": 1, "precision": 2, "f1": 3}}}
    spec = load_spec(write(SMALL | {"columns": "metrics", "datasets": ["aep"], "paper": paper}))
    names = ("miou", "precision", "f1")
    assert spec.paper == {("SD1.5", "after", name): n for n, name in enumerate(names, 1)}
    paper = {"SD1.5": {"after": {"coco": {"rare": 1, "common": 2, "frequent": 3}}}}
    spec = load_spec(write(SMALL | {"columns": "frequency", "paper": paper}))
    names = ("rare", "common", "frequent")
    assert spec.paper == {("SD1.5", "after", "coco", name): n for n, name in enumerate(names, 1)}
    paper = {"SD1.5": {"after": {"coco": {"seldom": 1}}}}
    with pytest.raises(ValueError, match="after, coco is 'seldom'; allowed: 'rare'"):
        load_spec(write(SMALL | {"columns": "frequency", "paper": paper}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 1\nrows: [", ["this is no YAML in line 2"]),
        ("version: 1\ntitle: a\ntitle: b\n", ["in line 3", "'title' stands twice"]),
        ("version: 1\nrows:\n- {name: a, set: {gamma: 1, gamma: 0.5}}", ["in line 3", "'gamma'"]),
        ("title: !!python/object:os.system a", ["this is no YAML in line 1"]),
        ("a: \x01", ["this is no YAML"]),
        ("- version: 1", ["the file is [{'version': 1}]", "mapping"]),
        ("", ["the file is None"]),
    ],
)
def test_bad_yaml_is_named(write, text, words):
    refused(write(text), words)


def test_extending_goes_somewhere(write):
    write(SMALL | {"baseline": "never"})
    twin = write(TWIN, "twin")
    with pytest.raises(ValueError, match=r"small\.yaml': baseline is 'never'") as error:
        load_spec(twin)
    assert "twin.yaml" not in str(error.value)
    with pytest.raises(ValueError, match=r"lone\.yaml'.* extends is 'nothing'.* sota"):
        load_spec(write(TWIN | {"extends": "nothing"}, "lone"))
    with pytest.raises(ValueError, match="extends is None"):
        load_spec(write(TWIN | {"extends": None}, "lone"))
    write(TWIN | {"extends": "third"}, "second")
    write(TWIN | {"extends": "first"}, "third")
    first = write(TWIN | {"extends": "second"}, "first")
    with pytest.raises(ValueError, match="first extends second extends third extends first"):
        load_spec(first)
    for key in ("paper", "label", "columns"):
        with pytest.raises(ValueError, match=f"a key is '{key}'"):
            load_spec(write(TWIN | {key: "x"}, "twin"))


def test_names_and_files():
    with pytest.raises(ValueError, match=r"spec is 'sotta'; allowed: a file NAME\.yaml, or .*sota"):
        load_spec("sotta")
    with pytest.raises(OSError, match=r"none\.yaml"):
        load_spec("none.yaml")
    assert load_spec(SPECS / "sota.yaml") == load_spec("sota")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (None, "embedded"),
        (EMBEDDED, "embedded"),
        (str(EMBEDDED), "embedded"),
        ("SD1.5", "SD1.5"),
        ("sd2-base", "SD2-base"),
        ("runwayml/stable-diffusion-v1-5", "SD1.5"),
        ("stabilityai/stable-diffusion-2", "SD2"),
        ("stabilityai/stable-diffusion-2-1", "SD2.1"),
        ("stabilityai/stable-diffusion-2-1-base", None),
        ("stable-diffusion-v1-5/stable-diffusion-inpainting", None),
        ("stabilityai/stable-diffusion-3.5-large", None),
        (Path("models") / "stable-diffusion-xl-base-1.0", "SDXL"),
        ("hub/models--CompVis--stable-diffusion-v1-4/snapshots/133a22", "SD1.4"),
        ("stable-diffusion-v1-5/tuned", None),
        ("", None),
    ],
)
def test_model_names(model, name):
    assert paper_model_name(model) == name


def test_models_are_found_by_their_ids():
    assert {paper_model_name(hub_id): hub_id for hub_id in MODELS.values()} == MODELS

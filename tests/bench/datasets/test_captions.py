"""Captions: which words name a class, in files of every kind, and tables of counts."""

import csv
import gzip
import json
import re
import sys
import time
import tracemalloc

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixalign.bench.datasets.captions import (
    FORMATS,
    Matcher,
    aliases_of,
    count_captions,
    forms_of,
    load_counts,
    plurals_of,
)
from pixalign.bench.datasets.sample import CLASSES, class_list
from pixalign.core.files import write_json
from pixalign.scenes.atlas import class_names, plurals

# Words

PLURALS = """
dog: dogs; strawberry: strawberries; monkey: monkeys; bus: buses; box: boxes; bench: benches;
toothbrush: toothbrushes; glass: glasses; knife: knives, knifes; shelf: shelves, shelfs;
leaf: leaves, leafs; giraffe: giraffes; roof: roofs; cafe: cafes; tomato: tomatoes, tomatos;
radio: radios; man: men; woman: women; snowman: snowmen; ottoman: ottomans;
person: people, persons; child: children; mouse: mice; sheep: sheep;
computer mouse: computer mice; wine glass: wine glasses; chest of drawers: chests of drawers
"""


@pytest.mark.parametrize("line", PLURALS.strip().replace("\n", " ").split("; "))
def test_plurals_by_hand(line):
    name, expected = line.split(": ")
    assert list(plurals_of(name)) == expected.split(", ")


def test_plural_names_also_mean_one():
    assert forms_of("buses") == ("buses", "bus")
    assert forms_of("people") == ("people", "person", "persons")
    assert forms_of("glasses")[0] == "glasses"
    assert "glass" not in forms_of("glasses")
    assert forms_of("sheep") == ("sheep",)
    assert forms_of("bus") == ("bus", "buses")


def test_rules_agree_with_the_lab_plurals():
    """A table that other people wrote."""
    pairs = zip(class_names(), plurals(), strict=True)
    assert not [(name, many) for name, many in pairs if many not in forms_of(name)]


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A dog and a DOG", "dog"),
        ("two dogs, three hot dogs", "dog, hot dog"),
        ("a hot dog", "hot dog"),
        ("hot-dog stand", "hot dog"),
        ("hot  Dog's bun", "hot dog"),
        ("hotdog doghouse underdog dog_2 dogged", "hot dog"),  # by its alias
        ("a dog-friendly cafe", "dog"),
        ("dog,person", "dog, person"),
        ("people", "person"),
        ("traffic light bulb", "traffic light, light bulb"),
        ("light", ""),
        ("a teddy bear is no bear", "bear, teddy bear"),
        ("teddy bears", "teddy bear"),
        ("hot. dog", "dog"),
        ("CAFÉ", "café"),
        ("cafe\N{COMBINING ACUTE ACCENT}s", "café"),
        ("", ""),
    ],
)
def test_which_classes_a_caption_names(caption, expected):
    names = "dog,hot dog,person,traffic light,light bulb,bear,teddy bear,café".split(",")
    match = Matcher(names)
    assert {names[index] for index in match(caption)} == set(filter(None, expected.split(", ")))


WORDS = ("hot", "dog", "dogs", "house", "bun", "x")
NAMES = ("dog", "hot dog", "dog house", "hot", "house bun", "hot dog house")


@given(st.lists(st.sampled_from(WORDS), max_size=8))
def test_names_inside_longer_ones_do_not_count(words):
    """Against all spans of words, compared by hand."""
    forms = {form: name for name in NAMES for form in forms_of(name)}
    spans = [
        (start, end, forms[" ".join(words[start:end])])
        for start in range(len(words))
        for end in range(start + 1, len(words) + 1)
        if " ".join(words[start:end]) in forms
    ]
    free = {
        name
        for start, end, name in spans
        if not any(a <= start and end <= b and (a, b) != (start, end) for a, b, _ in spans)
    }
    found = Matcher(NAMES)(" ".join(words))
    assert {NAMES[index] for index in found} == free


@given(
    st.lists(st.sampled_from(class_list("coco")), max_size=5),
    st.sampled_from((", ", " and ", "/", ".\n")),
)
def test_any_list_of_names_is_found(names, between):
    found = Matcher(class_list("coco"))(between.join(names).upper())
    assert {class_list("coco")[index] for index in found} == set(names)


def test_bad_classes():
    with pytest.raises(ValueError, match="class 'Dog' is given twice"):
        count_captions("captions.txt", ["dog", "Dog"])
    with pytest.raises(ValueError, match="no classes given"):
        count_captions("captions.txt", [])


# Files

CAPTIONS = ["a dog, the dog", 'he said: "cats"', "two\ttabs, a hot dog", "", "dog\nand cat"]
EXPECTED = {"dog": 2, "cat": 2, "hot dog": 1}


def written(folder, kind):
    path = folder / f"captions{kind}"
    rows = [("http://x/dog.jpg", caption) for caption in CAPTIONS]
    if kind == ".parquet":
        table = pyarrow.table({"URL": ["cat"] * 6, "TEXT": [*CAPTIONS, None]})
        pyarrow.parquet.write_table(table, path)
        return path
    opened = gzip.open if kind.endswith(".gz") else open
    with opened(path, "wt", encoding="utf-8", newline="") as file:
        if ".txt" in kind:
            file.writelines(caption.replace("\n", " ") + "\n" for caption in CAPTIONS)
        elif ".csv" in kind:
            csv.writer(file).writerows([("url", "caption"), *rows, ("short",)])
        else:
            plain = [(url, text.replace("\n", " ").replace("\t", " ")) for url, text in rows]
            file.writelines("\t".join(row) + "\n" for row in [("url", "text"), *plain])
    return path


@pytest.mark.parametrize("kind", FORMATS)
def test_every_kind_of_file(kind, tmp_path):
    path = written(tmp_path, kind)
    assert count_captions(path, list(EXPECTED)) == EXPECTED
    twice = {name: 2 * count for name, count in EXPECTED.items()}
    assert count_captions([str(path), path], list(EXPECTED)) == twice
    assert len(FORMATS) == 7


def test_odd_bytes_and_quotes(tmp_path):
    path = tmp_path / "a.tsv"  # unclosed quotes swallow nothing
    path.write_text('caption\turl\n"a dog\tx\na dog"\ty\na dog\tz\n')
    assert count_captions(path, ["dog"]) == {"dog": 3}
    path = tmp_path / "a.txt"  # bytes that are no text
    path.write_bytes(b"\xef\xbb\xbfdog\r\n\xff dog \xfe\ncat")
    assert count_captions(path, ["dog", "cat"]) == {"dog": 2, "cat": 1}


def test_columns(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("alt,text,caption\ncat,dog,fish\n")
    assert count_captions(path, ["cat", "dog", "fish"]) == {"cat": 0, "dog": 0, "fish": 1}
    assert count_captions(path, ["cat", "dog"], column="alt") == {"cat": 1, "dog": 0}
    with pytest.raises(ValueError, match=r"a.csv' has no column title; allowed: 'alt', 'text', 'c"):
        count_captions(path, ["cat"], column="title")
    path.write_text("")
    with pytest.raises(ValueError, match="has no column caption or TEXT or text; allowed: "):
        count_captions(path, ["cat"])
    with pytest.raises(ValueError, match="has no column x; allowed: 'URL', 'TEXT'"):
        count_captions(written(tmp_path, ".parquet"), ["cat"], column="x")


def test_bad_files(tmp_path, monkeypatch):
    def refused(kind, message, paths):
        with pytest.raises(kind, match=message):
            count_captions(paths, ["cat"])

    good = written(tmp_path, ".txt")
    missing = tmp_path / "none.txt"
    refused(FileNotFoundError, r"caption file '.*none.txt' is missing", [good, missing])
    refused(FileNotFoundError, "is a folder", tmp_path)
    (tmp_path / "a.json").write_text("[]")
    refused(ValueError, r"a.json' ends in '.json'; allowed: .txt, .csv, .tsv", tmp_path / "a.json")
    refused(ValueError, "there are 0 files of captions", [])
    packed = written(tmp_path, ".txt.gz")
    for data in (packed.read_bytes()[:-12], b"not packed"):
        packed.write_bytes(data)
        refused(ValueError, r"captions.txt.gz' is damaged", packed)
    (tmp_path / "a.parquet").write_text("no table")
    refused(ValueError, r"a.parquet' is damaged", tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    refused(ValueError, r'needs pyarrow; .*pip install "pixalign\[bench\]"', tmp_path / "a.parquet")


def test_long_files_are_fast_and_not_kept(tmp_path):
    """The bound is far below what is usual: 150,000 captions a second on one core."""
    path, count = tmp_path / "a.txt", 60_000
    text = "photo {} of two dogs beside a parking meter on a long street at night\n"
    path.write_text("".join(text.format(number) for number in range(count)))
    begun = time.process_time()
    found = count_captions(path, class_list("coco"))
    assert count / (time.process_time() - begun) > 20_000
    assert found["parking meter"] == found["dog"] == count
    tracemalloc.start()
    count_captions(path, ["dog"])
    assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 8
    tracemalloc.stop()


# Tables


def test_names_of_a_table(tmp_path):
    """As in public tables: singulars only, and other words for some classes."""
    table = {"hot dog": 3, "café": 0, "bus": 5, "person": 7, "people": 9, "airplane": 2,
             "t-shirt": 4, "Shelf": 6, "toilet": 8, "dining table": 1, "screen": 10}  # fmt: skip
    path = write_json(tmp_path / "counts.json", table)
    names = {"café": 0, "Hot Dog": 3, "buses": 5, "people": 9, "persons": 7, "T shirt": 4,
             "shelves": 6}  # fmt: skip
    assert load_counts(path, list(names)) == names
    by_alias = {"plane": 2, "closestool": 8, "diningtable": 1, "monitor": 10}
    assert load_counts(path, list(by_alias)) == by_alias
    message = "counts.json' has no count of cat; sofa (or couch, settee). Add a line for each"
    with pytest.raises(ValueError, match=re.escape(message)):
        load_counts(path, ["plane", "bus", "cat", "sofa"])


def test_of_several_words_for_a_class_the_most_frequent_counts(tmp_path):
    table = {"motorbike": 3, "motorcycle": 9, "sofa": 5, "tv": 99, "television": 16}
    path = write_json(tmp_path / "counts.json", table)
    expected = {"motorbike": 9, "couch": 5, "tvmonitor": 99}
    assert load_counts(path, list(expected)) == expected
    # A word that is a class itself stands for no other.
    assert load_counts(path, ["motorbike", "motorcycle"]) == {"motorbike": 3, "motorcycle": 9}


def test_joined_names_are_found_as_captions_write_them(tmp_path):
    text = "a potted plant on dining tables\nToilet, TV and a hotdog\na plane; an airplane\ntv, tv"
    (tmp_path / "captions.txt").write_text(text)
    expected = {"pottedplant": 1, "diningtable": 1, "closestool": 1, "tvmonitor": 2, "hot dog": 1}
    expected |= {"aeroplane": 1, "dog": 0}
    assert count_captions(tmp_path / "captions.txt", list(expected)) == expected


def test_aliases_are_of_classes_and_of_no_other_class():
    table = json.loads((CLASSES / "aliases.json").read_text(encoding="utf-8"))
    assert list(table) == sorted(table)
    lists = [class_list(name) for name in ("voc", "context", "coco", "ade20k", "aep")]
    known = {form for names in lists for name in names for form in forms_of(name)}
    assert set(table) <= known | {"motorcycle", "couch"}
    for names in lists:
        taken = {form for name in names for form in forms_of(name)}
        used = [alias for own in aliases_of(names) for alias in own]
        assert not taken & set(used)
        assert len(used) == len(set(used)), "two classes of a list share a word"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "holds a list; allowed: name, count"),
        ('{"dog": "3"}', "has the count '3' of 'dog'; allowed: integers from 0"),
        ('{"dog": -1}', "has the count -1 of 'dog'"),
        ('{"dog": true}', "has the count True of 'dog'"),
    ],
)
def test_bad_tables(text, message, tmp_path):
    path = tmp_path / "counts.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"counts.json' {message}"):
        load_counts(path, ["dog"])

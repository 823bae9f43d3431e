"""Files of classes, for all pictures or picture by picture."""

import pytest

import pixalign as pa
from pixalign.labelling.classes import PictureClasses, read_classes


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_a_class_a_line(tmp_path):
    text = "\ufeff# animals\ndog\n\ncat = a black cat, asleep \nhot dog, bun\n"
    assert read_classes(write(tmp_path / "classes.txt", text)) == (
        pa.Phrase("dog"),
        pa.Phrase("cat", "a black cat, asleep"),
        pa.Phrase("hot dog, bun"),
    )


LISTS = {
    "a.jpg": PictureClasses((pa.Phrase("dog"), pa.Phrase("car", "a red car")), 7),
    "below/b, c.jpg": PictureClasses((pa.Phrase("cat"),)),
    "none.jpg": PictureClasses(()),
}


def test_lists_as_csv(tmp_path):
    text = 'image,classes,seed\na.jpg,dog; car=a red car,7\n"below/b, c.jpg",cat,\nnone.jpg,,\n'
    assert read_classes(write(tmp_path / "list.csv", text)) == LISTS
    text = "classes,image\ndog,a.jpg\n"
    lists = read_classes(write(tmp_path / "few.CSV", text))
    assert lists == {"a.jpg": PictureClasses((pa.Phrase("dog"),))}


def test_lists_as_json(tmp_path):
    text = """[{"image": "a.jpg", "classes": ["dog", "car=a red car"], "seed": 7},
               {"image": "below/b, c.jpg", "classes": ["cat"]},
               {"image": "none.jpg", "classes": []}]"""
    assert read_classes(write(tmp_path / "list.json", text)) == LISTS
    text = '{"a.jpg": ["dog", "cat"]}'
    (own,) = read_classes(write(tmp_path / "map.json", text)).values()
    assert [phrase.name for phrase in own.phrases] == ["dog", "cat"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "\n# nothing\n", "names no class"),
        ("a.txt", "dog\nDog\n", "'Dog' is given twice"),
        ("a.txt", "dog=\n", "has nothing after '='"),
        ("a.csv", "picture,classes\na.jpg,dog\n", "line 2 of '.*a.csv' names no image"),
        ("a.csv", "image,classes\n", "lists no picture"),
        ("a.csv", "image,classes\na.jpg,dog\na.jpg,cat\n", "line 3 .* names 'a.jpg' again"),
        ("a.csv", "image,classes,seed\na.jpg,dog,x\n", "line 2 .*seed is 'x'"),
        ("a.json", "{", "is no JSON"),
        ("a.json", "3", "holds 3; allowed: a list or an object"),
        ("a.json", '[{"image": "a.jpg", "classes": "dog"}]', "entry 1 .*classes are 'dog'"),
        ("a.json", '{"a.jpg": ["dog", "dog"]}', "entry 1 .*'dog' is given twice"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message):
        read_classes(write(tmp_path / name, text))


def test_other_bytes_are_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match="no text in UTF-8"):
        read_classes(tmp_path / "a.txt")

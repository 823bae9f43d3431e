"""Files are written whole, read with care, and what a kill left is swept away."""

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixalign.core.files import (
    make_folder,
    plain_name,
    read_json,
    unique_slug,
    write_bytes,
    writing_whole,
)


def test_a_full_disk_is_told_with_the_files_name(tmp_path):
    path = tmp_path / "mask.png"
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*mask.png'"),
        writing_whole(path),
    ):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_what_a_kill_left_is_removed_after_an_hour(tmp_path):
    left, young = tmp_path / f".mask.png.{'0' * 32}", tmp_path / f".mask.png.{'1' * 32}"
    others = tmp_path / ".mask.png.kept", tmp_path / "mask.png"
    for path in (left, young, *others):
        path.write_text("x")
    os.utime(left, (time.time() - 4000,) * 2)
    make_folder(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted((young, *others))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is no JSON"),
        (b"[" * 100_000, "is nested too deeply"),
        (b"\xff\xfe\xff", "is no UTF-8 text"),
    ],
)
def test_json_that_cannot_be_read_is_named(tmp_path, content, message):
    path = write_bytes(tmp_path / "settings.json", content)
    with pytest.raises(ValueError, match=rf"settings\.json' {message}"):
        read_json(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError, match="is no ordinary file"):
        read_json(tmp_path / "pipe")


@given(st.text(), st.text())
def test_names_of_files_tell_texts_apart(one, other):
    names = unique_slug(one), unique_slug(other)
    assert (names[0] == names[1]) == (one == other)
    assert all(plain_name(name) and len(name) < 90 for name in names)


@pytest.mark.parametrize("name", ["../x.png", "/etc/passwd", "a/b.png", "..", "", None, 3])
def test_names_that_lead_elsewhere_are_refused(name):
    with pytest.raises(ValueError, match="is no plain file name"):
        plain_name(name)

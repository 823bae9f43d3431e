"""Files, written whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import struct
import time
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock, Timeout

_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{32}")  # names of what is being written
_LEFT = 3600  # seconds after which that is taken to be given up


@contextmanager
def writing_whole(path: Path) -> Iterator[BinaryIO]:
    """Write beside the target, then rename: a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.filename is None:  # a full disk says so without a name
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def writing_folder(folder: str | os.PathLike[str]) -> Iterator[tuple[Path, Path]]:
    """A folder to write some files into, and the one that they are for.

    They come there when all are written: with the folder, if it is new, else one after the other,
    JSON last.
    """
    final = check_folder(folder)
    there = final.is_dir()
    beside = final if there else final.parent
    beside.mkdir(parents=True, exist_ok=True)
    sweep(beside)
    temporary = beside / f".{final.name or 'files'}.{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        yield temporary, final
        if not there:
            os.replace(temporary, final)
            return
        for path in sorted(temporary.iterdir(), key=lambda path: (path.suffix == ".json", path)):
            os.replace(path, final / path.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sweep(folder: Path, older: float = _LEFT) -> None:
    """Remove what a kill has left unfinished in a folder, so many seconds ago or more.

    0 is for a folder that nobody else writes to.
    """
    for entry in os.scandir(folder):
        if _UNFINISHED.fullmatch(entry.name):
            with suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime < older:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)


def write_bytes(path: Path, data: bytes) -> Path:
    """Write a file whole or not at all."""
    with writing_whole(path) as file:
        file.write(data)
    return path


def write_text(path: Path, text: str) -> Path:
    """Write a file of UTF-8 whole or not at all."""
    return write_bytes(path, text.encode())


def write_json(path: Path, values: Mapping[str, Any]) -> Path:
    """Indented JSON; what is not a number (NaN) must have become null before."""
    text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)
    return write_text(path, text + "\n")


def read_text(path: str | os.PathLike[str]) -> str:
    """A file of UTF-8; what is no ordinary file, or none of text, is refused by its name."""
    path = Path(path)
    if not path.is_file():
        what = "no ordinary file" if path.exists() else "missing"
        raise FileNotFoundError(f"file {readable(path)!r} is {what}")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{readable(path)!r} is no UTF-8 text: {error}") from error


def read_json(path: str | os.PathLike[str]) -> Any:
    """What a file of JSON holds."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{readable(path)!r} is no JSON: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{readable(path)!r} is nested too deeply") from error


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """Arrays of numbers by name, in a compressed .npz file, which has checksums."""
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return write_bytes(path, file.getvalue())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of such a file; a damaged one is refused by its name, and objects are."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays.items())
    except FileNotFoundError:
        raise
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        TypeError,
        AttributeError,
        SyntaxError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        MemoryError,
    ) as error:
        raise ValueError(f"{readable(path)!r} is damaged: {error}") from error


def check_folder(folder: str | os.PathLike[str]) -> Path:
    """A folder that exists or can be made, and written to; else an error."""
    path = Path(folder)
    for part in (path, *path.absolute().parents):
        if part.is_dir():
            try:
                TemporaryFile(dir=part).close()
            except OSError as error:
                what = f"output {str(path)!r}: nothing can be written to {str(part)!r}"
                raise PermissionError(f"{what}: {error.strerror}") from error
            break
        if part.exists() or part.is_symlink():
            raise NotADirectoryError(f"output {str(part)!r} is a file; name a folder")
    return path


def make_folder(folder: str | os.PathLike[str]) -> Path:
    """An existing or new folder; never emptied."""
    path = check_folder(folder)
    path.mkdir(parents=True, exist_ok=True)
    sweep(path)
    return path


@contextmanager
def held_alone(folder: Path) -> Iterator[None]:
    """Hold a folder, which is made; it is an error if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(folder / "run.lock").acquire(blocking=False)
    except Timeout as error:
        raise ValueError(
            f"another process is writing to {str(folder)!r}; wait until it is done, or choose "
            "another --out"
        ) from error
    with held:
        yield


def plain_name(name: object) -> str:
    """The name of a file in a folder that a list speaks of; what leads elsewhere is refused."""
    if not isinstance(name, str) or Path(name).name != name or name in ("", ".."):
        raise ValueError(f"{name!r} is no plain file name")
    return name


def readable(path: str | os.PathLike[str]) -> str:
    """A path as text that any file can hold: bytes that are no UTF-8 are written as \\xff."""
    return os.fsencode(path).decode(errors="backslashreplace")


def unique_slug(name: str) -> str:
    """`slug`, with a part of a digest where it leaves out what tells names apart."""
    short, digest = slug(name), hashlib.sha256(os.fsencode(name)).hexdigest()[:8]
    plain = "-".join(name.split(" "))
    return short if short == plain or short.endswith(digest) else f"{short}-{digest}"


def slug(name: str) -> str:
    """A name or text as part of a file name; long ones are cut, and still differ."""
    short = re.sub(r"[^\w]+", "-", name.lower()).strip("-")
    if len(short) > 60:
        short = f"{short[:51]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}"
    return short or "class"

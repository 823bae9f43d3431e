"""Seeded damage: to bytes, to JSON-able values, and to files of a folder."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

INTERESTING = (
    b"\x00", b"\xff" * 4, b"\xff\xff\xff\x7f", b"../../", b"<script>", b"\n", b"\r\n\r\n",
    b"[" * 64, b"{}", b"1e999", b"NaN", b"-1", b"9" * 40, b"\xed\xa0\x80", "é\u202e💥".encode(),
    b"*a", b"&a ",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**70, 1e308, float("nan"), float("inf"), "", " ", "a" * 5000, "\x00", "💥",
    "../x", "{}", [], {}, [[]], {"a": {}}, [None] * 3,
)  # fmt: skip


def damaged(rng: Random, content: bytes) -> bytes:
    """A file's bytes after one to six changes."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at] = rng.choice(INTERESTING)
        elif kind == 3:
            del data[at : at + rng.randrange(1, 40)]
        elif kind == 4:
            data[at : at + 4] = rng.randbytes(4)
        else:
            data[at:at] = data[at : at + rng.randrange(1, 200)]
    return bytes(data)


def changed(rng: Random, value: Any) -> Any:
    """A JSON-able value with something in it replaced, removed or renamed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        copy, key = dict(value), rng.choice(list(value))
        kind = rng.random()
        if kind < 0.1:
            del copy[key]
        elif kind < 0.2:
            copy[str(rng.choice(VALUES))] = copy.pop(key)
        else:
            copy[key] = changed(rng, value[key])
        return copy
    if isinstance(value, list | tuple) and value and rng.random() < 0.85:
        items, at = list(value), rng.randrange(len(value))
        items[at : at + 1] = [] if rng.random() < 0.15 else [changed(rng, items[at])]
        return items
    return rng.choice(VALUES)


def damage_file(rng: Random, path: Path) -> None:
    """Change a file's bytes, or if it is JSON perhaps its meaning."""
    content = path.read_bytes()
    if path.suffix == ".json" and rng.random() < 0.6:
        try:
            path.write_text(json.dumps(changed(rng, json.loads(content))), encoding="utf-8")
            return
        except (ValueError, UnicodeEncodeError):
            pass
    path.write_bytes(damaged(rng, content))


def damaged_copy(rng: Random, folder: Path, copy: Path) -> Path:
    """A copy of a folder in which one to three files are damaged, gone, or something else."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy, symlinks=True)
    files = [path for path in sorted(copy.rglob("*")) if path.is_file()]
    for path in rng.sample(files, min(len(files), rng.randint(1, 3))):
        kind = rng.random()
        if kind < 0.85:
            damage_file(rng, path)
        else:
            path.unlink()
            if kind < 0.9:
                path.mkdir()
            elif kind < 0.95:
                path.symlink_to("/dev/zero")
    return copy

"""1,000 malformed requests: never a 500, nothing left behind."""

import gc
import json
import random
import socket
import tempfile
import threading
from pathlib import Path

import pytest

import pixalign as pa
import tiny
from asking_explorer import HEADER, Asking, png
from helpers import small
from pixalign.explorer.app import create_app
from pixalign.explorer.sessions import MOST_BYTES

PATHS = [
    ("POST", "/api/session"), ("GET", "/api/session"), ("PUT", "/api/picture"),
    ("GET", "/api/picture"), ("POST", "/api/scene"), ("POST", "/api/align"),
    ("POST", "/api/conclude"), ("POST", "/api/download"), ("POST", "/api/entities"),
    ("POST", "/api/generate"), ("POST", "/api/edit"), ("GET", "/api/results/edit"),
    ("GET", "/api/jobs/x"), ("DELETE", "/api/jobs/x"), ("GET", "/static/x"), ("GET", "/api/about"),
]  # fmt: skip
FIELDS = {
    "classes", "method", "detail", "seed", "measurement", "strength", "kind", "threshold", "prompt",
    "entities", "steps", "source", "target", "blend", "inversion", "given", "number", "objects",
}  # fmt: skip
VALUES = [
    None, True, -1, 0, 1, 10**30, 0.5, float("nan"), float("inf"), "", "dog", "dense", "quick",
    "\ud800", "\0", "é" * 5000, "../../etc/passwd", [], [""], ["dog"], ["dog", "DOG"], [1], {},
    {"a": {"b": []}}, ["x"] * 500, "mask", "a photo of dog", [["dog"]], "{}", "%s", "'; drop",
]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return pa.load(small("sd1"))


def a_body(rng):
    """Anything but what is asked for: (content, content type)."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.randbytes(rng.randrange(200)), "application/octet-stream"
    if kind == 1:
        return rng.randbytes(rng.randrange(50)), "application/json"
    if kind == 2:
        return b"[" * rng.randrange(1, 60_000), "application/json"
    if kind == 3:
        return b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n', "multipart/form-data"
    values = {name: rng.choice(VALUES) for name in rng.sample(sorted(FIELDS), rng.randrange(8))}
    text = json.dumps(rng.choice([values, [values], "text", 5, values]))
    encoding = rng.choice(["utf-8", "utf-16", "utf-8", "latin-1"])
    data = text.encode(encoding, "replace")
    return data[: rng.randrange(len(data) + 1)] if kind == 4 else data, "application/json"


def a_request(rng, person):
    method, path = rng.choice(PATHS)
    content, kind = a_body(rng)
    headers = {"content-type": kind, HEADER: person.id}
    odd = rng.randrange(12)
    if odd == 0:
        headers[HEADER] = rng.choice(["", "x" * 9000, "../x", "%00"])
    elif odd == 1:
        headers["host"] = rng.choice(["evil.example", "", "[::1", "127.0.0.1:99999999"])
    elif odd == 2:
        headers["origin"] = rng.choice(["null", "http://evil.example", "http://[", "file://"])
    elif odd == 3:
        headers["content-length"] = rng.choice(["-5", "abc", "99999999999", "1e3"])
    elif odd == 4:
        method = rng.choice(["PATCH", "OPTIONS", "TRACE", "HEAD", "PUT", "DELETE"])
    elif odd == 5:
        path = rng.choice(
            ["//", "/api", "/api/../..", "/static/%00", "/%ff%fe", "/api/jobs/%2e%2e"]
        )
    elif odd == 6:
        path += rng.choice(["?" + "a=b&" * 500, "?token=x", "?%ff", "?session[]=1"])
    elif odd == 7:
        headers["content-encoding"] = headers["accept-encoding"] = "gzip, nonsense"
    return person.client.request(method, path, content=content, headers=headers)


def test_no_malformed_request_is_a_500(model):
    rng, app = random.Random(0), create_app(model)
    person = Asking(app)
    person.ask("PUT", "/api/picture", content=png(tiny.photo(24, 16)))
    queue = app.app.state.explorer.queue
    files = set(Path(tempfile.gettempdir()).iterdir())
    threads, seen = threading.active_count(), {}
    for number in range(900):
        answer = a_request(rng, person)
        seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
        assert answer.status_code < 500 or answer.status_code == 503, (number, answer.text)
        if answer.status_code >= 400 and answer.request.method != "HEAD":
            assert answer.json()["error"]
            assert "Traceback" not in answer.text
    assert {400, 403, 404, 405, 413, 421, 422} <= seen.keys()
    for job in [*queue._waiting, *([queue._running] if queue._running else [])]:
        queue.cancel(job)
        assert job.wait(30)
    explorer = app.app.state.explorer
    assert len(explorer.sessions) <= explorer.sessions.most
    assert threading.active_count() <= threads + 2
    left = {path.name for path in set(Path(tempfile.gettempdir()).iterdir()) - files}
    assert not [name for name in left if "pixalign" in name or name.startswith("tmp")]
    assert person.client.get("/api/about").status_code == 200


def test_cut_uploads_and_races_leave_nothing(model, running):
    """100 sockets that send half of what they promise, all at once, and a person in between."""
    rng = random.Random(1)
    with running(model) as url:
        host, port = url.removeprefix("http://").strip("/").split(":")

        def send(number):
            path = rng.choice(["/api/picture", "/api/align", "/api/session"])
            head = f"PUT {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{HEADER}: nobody\r\n"
            ends = [
                b"Content-Length: 1000\r\n\r\nhalf",
                b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
                b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
                f"Content-Length: {MOST_BYTES}\r\n\r\n".encode() + b"x" * 5000,
                b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
                b"\xff\xfe: \x00\r\n\r\n",
                b"X" * 70_000,
            ]
            with socket.create_connection((host, int(port)), timeout=10) as made:
                made.sendall(head.encode() + ends[number % len(ends)])
                if number % 3:
                    made.settimeout(0.2)
                    try:
                        said = made.recv(100)
                    except TimeoutError:
                        return
                    assert b" 500 " not in said

        threads = [threading.Thread(target=send, args=(number,)) for number in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        gc.collect()
        with socket.create_connection((host, int(port)), timeout=10) as made:
            made.sendall(f"GET /api/about HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            assert made.recv(100).startswith(b"HTTP/1.1 200")

"""The backend as Label Studio meets it: real HTTP on loopback."""

import threading
import time
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
import uvicorn

import pixalign as pa
import tiny
from helpers import small
from labelling_runs import POLYGONS, read_brush
from pixalign.config import AlignConfig
from pixalign.labelling.backend import Backend, create_app
from pixalign.labelling.formats.label_studio import labelling_interface
from pixalign.serving.run import address, bound

TOKEN = "a-token-of-enough-characters"
INTERFACE = labelling_interface(("dog", "cat"))
QUICK = AlignConfig(elbo_steps=2, collect_steps=1)


@contextmanager
def served(backend, **options):
    """A client of the app on a port of its own."""
    app = create_app(backend, **options)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_level="warning"))
    with bound("127.0.0.1", 0, 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            with httpx.Client(base_url=address(listening, "127.0.0.1"), timeout=60) as client:
                for _ in range(100):
                    if server.started:
                        break
                    time.sleep(0.05)
                yield client
        finally:
            server.should_exit = True
            thread.join(10)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    (folder / "photos").mkdir()
    tiny.photo(40, 24).save(folder / "photos" / "a b.png")
    tiny.photo(24, 24).save(folder / "photos" / "c.png")
    (folder / "photos" / "no.png").write_text("no picture")
    tiny.photo(24, 24).save(folder.parent / "secret.png")
    (folder / "photos" / "link.png").symlink_to(folder.parent / "secret.png")
    return folder


@pytest.fixture(scope="module")
def loads():
    return []


@pytest.fixture(scope="module")
def client(root, loads):
    def load():
        loads.append(time.time())
        return pa.load(small("sd1"))

    backend = Backend(load, version="pixalign tiny dense", root=root, config=QUICK)
    with served(backend) as client:
        yield client


def local(name):
    return f"/data/local-files/?d={name}"


def task(number, image, key="image"):
    """As Label Studio writes it."""
    return {
        "id": number,
        "data": {key: image},
        "meta": {},
        "project": 7,
        "created_at": "2026-11-19T03:12:01.510021Z",
        "is_labeled": False,
        "overlap": 1,
        "annotations": [],
        "predictions": [],
    }


def request(*images, label_config=INTERFACE, key="image"):
    return {
        "tasks": [task(number, image, key) for number, image in enumerate(images)],
        "model_version": "pixalign tiny dense",
        "project": "7.1763521921",
        "label_config": label_config,
        "params": {"login": None, "password": None, "context": None},
    }


def test_health_and_setup_answer_before_the_model_is_there(client, loads):
    before = time.time()
    assert client.get("/health").json()["status"] == "UP"
    setup = {
        "project": "7.1763521921",
        "schema": INTERFACE,
        "hostname": "http://localhost:8080",
        "access_token": "abc",
    }
    assert client.post("/setup", json=setup).json() == {"model_version": "pixalign tiny dense"}
    assert time.time() - before < 1
    assert client.post("/webhook", json={"action": "ANNOTATION_CREATED"}).status_code == 200


def test_predictions(client, root, loads):
    answer = client.post("/predict", json=request(local("photos/a%20b.png"), local("photos/c.png")))
    assert answer.status_code == 200
    results = answer.json()["results"]
    expected = pa.load(small("sd1")).align(
        root / "photos" / "a b.png", ["dog", "cat"], config=QUICK
    )
    mask = np.zeros((24, 40), dtype=int)
    for result in results[0]["result"]:
        assert result["type"] == "brushlabels"
        assert (result["from_name"], result["to_name"]) == ("label", "image")
        assert (result["original_width"], result["original_height"]) == (40, 24)
        values = read_brush(result["value"]["rle"]).reshape(24, 40, 4)[..., 3]
        (label,) = result["value"]["brushlabels"]
        mask[values > 0] = ("dog", "cat").index(label) + 1
    assert expected.mask().any()
    np.testing.assert_array_equal(mask, expected.mask())
    assert {result["model_version"] for result in results} == {"pixalign tiny dense"}
    assert len(loads) == 1


def test_the_project_s_interface_is_remembered(client):
    setup = {"project": "9.1", "schema": POLYGONS, "hostname": "", "access_token": ""}
    assert client.post("/setup", json=setup).status_code == 200
    asked = request(local("photos/c.png"), label_config=None, key="photo") | {"project": "9.1"}
    (result,) = client.post("/predict", json=asked).json()["results"]
    assert result["result"]
    for row in result["result"]:
        assert row["type"] == "polygonlabels"
        points = np.array(row["value"]["points"])
        assert points.shape[1] == 2
        assert points.min() >= 0
        assert points.max() <= 100
    asked["project"] = "10.1"
    answer = client.post("/predict", json=asked)
    assert answer.status_code == 400
    assert "no label_config" in answer.json()["error"]


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (local("../secret.png"), "not below"),
        (local("%2e%2e/secret.png"), "not below"),
        (local("photos/link.png"), "not below"),
        (local("/etc/passwd"), "missing"),
        (local("photos"), "a folder"),
        (local("photos/none.png"), "missing"),
        (local("photos/no.png"), "no image of a known format"),
        (local("photos/a%00b.png"), "null"),
        (local(""), "allowed: local files"),
        ("http://169.254.169.254/latest", "allowed: local files"),
        ("http://localhost/data/local-files/?d=photos/c.png", "allowed: local files"),
        ("/data/upload/7/photo.png", "allowed: local files"),
        ("data:image/png;base64,AAAA", "allowed: local files"),
        ("file:///etc/passwd", "allowed: local files"),
        ("/etc/passwd", "allowed: local files"),
        (None, "no text 'image'"),
        ({"a": 1}, "no text 'image'"),
    ],
)
def test_other_pictures_are_refused_in_a_sentence(client, root, image, said):
    answer = client.post("/predict", json=request(image))
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert str(root) not in answer.json()["error"]


def test_one_bad_task_does_not_take_others_along(client):
    answer = client.post("/predict", json=request(local("photos/c.png"), local("none.png")))
    good, bad = answer.json()["results"]
    assert answer.status_code == 200
    assert good["result"]
    assert bad["result"] == []
    assert "missing" in bad["error"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"tasks": 1}', b'{"tasks": [1]}', b'{"tasks": [{"data": 1}]}'],
)
def test_bodies_that_are_none(client, body):
    for route in ("/predict", "/setup"):
        answer = client.post(route, content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422)
        assert answer.json()["error"]


def test_unknown_routes_and_hosts(client):
    assert client.get("/none").json() == {"error": "Not Found"}
    assert client.get("/predict").status_code == 405
    assert client.get("/health", headers={"host": "evil.example"}).status_code == 421
    assert client.post("/predict", content=b"x" * (33 * 2**20)).status_code == 413


def test_a_model_that_cannot_be_loaded_is_a_sentence(root):
    def load():
        raise ValueError("model 'nowhere' is missing")

    backend = Backend(load, version="x", root=root)
    with served(backend, token=TOKEN) as client:
        asked = request(local("photos/c.png"))
        assert client.post("/predict", json=asked).status_code == 401
        answer = client.post("/predict", json=asked, auth=("label-studio", TOKEN))
        assert answer.status_code == 400
        assert answer.json() == {"error": "model 'nowhere' is missing"}


def test_without_a_root_nothing_is_read(root):
    backend = Backend(lambda: pa.load(small("sd1")), version="x")
    with pytest.raises(ValueError, match="started without --root"):
        backend.picture(local("photos/c.png"))
    backend.queue.close()

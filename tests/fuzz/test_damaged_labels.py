"""A folder's labels on disk, and what a server is asked, damaged."""

import json
import shutil

import pytest
from fastapi.testclient import TestClient
from fuzzing import COUNT, fuzz
from mutations import changed, damaged, damaged_copy

import pixalign as pa
import tiny
from helpers import small
from label_folders import QUICK, contents, label, write_pictures
from pixalign.labelling.backend import Backend, create_app
from pixalign.labelling.formats.label_studio import labelling_interface

pytestmark = pytest.mark.fuzz


def test_label_runs(tmp_path):
    """Shards, manifest and header of a folder's labels, damaged: refused, or labelled as before."""
    model, folder = pa.load(small("sd1")), write_pictures(tmp_path / "pictures", 3)
    known = contents(label(model, folder, tmp_path / "out").finished)

    def work(rng):
        out = tmp_path / "copy"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(tmp_path / "out", out)
        damaged_copy(rng, tmp_path / "out" / "run", tmp_path / "run")
        shutil.rmtree(out / "run")
        (tmp_path / "run").rename(out / "run")
        assert contents(label(model, folder, out).finished) == known

    fuzz(work, COUNT)


def test_label_studio_requests(tmp_path):
    """Bodies that Label Studio would not send: an answer below 500 with a sentence."""
    (root := tmp_path / "root").mkdir()
    tiny.photo(24, 24).save(root / "a.png")
    backend = Backend(lambda: pa.load(small("sd1")), version="tiny", root=root, config=QUICK)
    image = "/data/local-files/?d=a.png"
    whole = {
        "tasks": [{"id": 1, "data": {"image": image}}],
        "label_config": labelling_interface(("dog", "cat")),
        "project": "3.1",
        "schema": labelling_interface(("dog", "cat")),
    }

    def work(rng):
        path = rng.choice(["/predict", "/setup", "/webhook"])
        text = json.dumps(changed(rng, whole)).encode()
        body = damaged(rng, text) if rng.random() < 0.5 else text
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code < 500, (path, body, answer.text)
        assert "Traceback" not in answer.text

    with TestClient(create_app(backend), base_url="http://127.0.0.1:8000") as client:
        assert client.post("/predict", json=whole).status_code == 200
        fuzz(work, 3 * COUNT)

"""A client of the explorer, as the page's own script would ask."""

import io
import json
import time

import numpy as np
from fastapi.testclient import TestClient

from pixalign.explorer.app import create_app

HEADER = "X-Pixalign-Session"


def png(image):
    file = io.BytesIO()
    image.save(file, format="png")
    return file.getvalue()


def unpacked(data):
    """(header, arrays) of a bundle, read anew."""
    length = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + length])
    arrays = {}
    for about in header["arrays"]:
        begin, count = 4 + length + about["begin"], int(np.prod(about["shape"]))
        assert begin % 8 == 0
        values = np.frombuffer(data, np.dtype(about["dtype"]), count, begin)
        arrays[about["name"]] = values.reshape(about["shape"])
    return header, arrays


class Asking:
    """One session of an app."""

    def __init__(self, app):
        self.client = TestClient(app, base_url="http://127.0.0.1:8000")
        self.id = self.client.post("/api/session").json()["session"]

    def ask(self, method, path, **options):
        options.setdefault("headers", {}).setdefault(HEADER, self.id)
        return self.client.request(method, path, **options)

    def get(self, path):
        return self.ask("GET", path)

    def post(self, path, **body):
        return self.ask("POST", path, json=body)

    def done(self, path, **body):
        """The end of a job."""
        answer = self.post(path, **body)
        assert answer.status_code == 200, answer.text
        job = answer.json()
        end = time.monotonic() + 120
        while job["state"] in ("waiting", "running"):
            assert time.monotonic() < end
            time.sleep(0.02)
            job = self.get(f"/api/jobs/{job['job']}").json()
        return job

    def conclude(self, **body):
        answer = self.post("/api/conclude", **body)
        assert answer.status_code == 200, answer.text
        return unpacked(answer.content)


def asking(model, **options):
    """A client of an app of its own."""
    return Asking(create_app(model, **options))

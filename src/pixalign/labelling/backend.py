"""A machine-learning backend for Label Studio: pre-labels for the task that a person opens."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from pixalign.alignment.objects import find_objects
from pixalign.config import AlignConfig
from pixalign.core.protocols import AlignmentModel
from pixalign.labelling.formats.label_studio import prediction
from pixalign.labelling.label_config import LabelConfig, read_label_config
from pixalign.pictures.reading import read_image
from pixalign.serving.guard import Guard
from pixalign.serving.jobs import JobQueue, QueueFull

_MOST_BYTES = 32 * 2**20
_MOST_PROJECTS = 64  # whose interface is remembered
_LOCAL = "/data/local-files/"


class SetupBody(BaseModel):
    """What Label Studio sends when a project is connected."""

    project: str = ""
    schema_: str = ""

    model_config = {"alias_generator": lambda name: name.rstrip("_"), "populate_by_name": True}


class PredictBody(BaseModel):
    """What Label Studio sends for predictions; of more that it says nothing is read."""

    tasks: list[dict[str, Any]]
    project: str | None = ""
    label_config: str | None = ""


class Backend:
    """What the routes share: a model that is loaded when first needed, a queue, a folder.

    ``version`` is the name under which Label Studio keeps the predictions; ``root`` is the only
    folder from which pictures are read, LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT.
    """

    def __init__(
        self,
        load: Callable[[], AlignmentModel],
        *,
        version: str,
        root: Path | None = None,
        config: AlignConfig | None = None,
        instances: bool = True,
        min_area: int = 0,
    ) -> None:
        self._load, self.version = load, version
        self._root = None if root is None else root.resolve(strict=True)
        self._config = config or AlignConfig(absent="drop")
        self._instances, self._min_area = instances, min_area
        self._model: AlignmentModel | None = None
        self._interfaces: dict[str, LabelConfig] = {}
        self._lock = threading.Lock()
        self.queue = JobQueue(most_waiting=32, most_of_owner=32)

    def remember(self, project: str, text: str) -> None:
        """A project's interface, for predictions that are asked for without it."""
        interface = read_label_config(text)
        with self._lock:
            self._interfaces[project] = interface
            while len(self._interfaces) > _MOST_PROJECTS:
                self._interfaces.pop(next(iter(self._interfaces)))

    def interface(self, project: str, text: str) -> LabelConfig:
        """The one that is sent, or the project's."""
        if text:
            return read_label_config(text)
        with self._lock:
            if project not in self._interfaces:
                raise ValueError(f"project {project[:100]!r} sent no label_config and no schema")
            return self._interfaces[project]

    def predict(self, task: Mapping[str, Any], interface: LabelConfig) -> dict[str, Any]:
        """A prediction for one task; in the queue's thread."""
        data = task.get("data")
        address = data.get(interface.data_key) if isinstance(data, dict) else None
        if not isinstance(address, str):
            raise ValueError(f"the task has no text {interface.data_key!r} in its data")
        path = self.picture(address)
        try:
            image = read_image(path)
        except (ValueError, OSError) as error:
            raise ValueError(str(error).replace(repr(str(path)), repr(address))) from error
        if self._model is None:
            self._model = self._load()
        result = self._model.align(image, interface.phrases, config=self._config)
        found, segments = find_objects(result, instances=self._instances, min_area=self._min_area)
        return prediction(
            found,
            segments,
            result.classes,
            version=self.version,
            kind=interface.kind,
            from_name=interface.from_name,
            to_name=interface.to_name,
        )

    def picture(self, address: str) -> Path:
        """The file below the root that a task's address names; nothing else is ever opened."""
        parts = urlsplit(address)
        named = parse_qs(parts.query).get("d", [""])[0]
        if parts.scheme or parts.netloc or not parts.path.endswith(_LOCAL) or not named:
            raise ValueError(
                f"{address[:200]!r} is not downloaded; allowed: local files, {_LOCAL}?d=..."
            )
        if self._root is None:
            raise ValueError(f"{address[:200]!r}: the server was started without --root")
        path = (self._root / named.lstrip("/")).resolve()
        if not path.is_relative_to(self._root):
            raise ValueError(f"{address[:200]!r} is not below the server's root")
        return path

    def answer(self, body: PredictBody) -> tuple[int, dict[str, Any]]:
        """Status and answer for some tasks, each a job of its own in the queue.

        A task that fails has no objects and says why; if all do, that is the answer.
        """
        interface = self.interface(body.project or "", body.label_config or "")
        jobs = [
            self.queue.submit("label-studio", partial(self.predict, task, interface))
            for task in body.tasks
        ]
        results, errors = [], []
        for job in jobs:
            job.wait()
            if job.result is None:
                errors.append(job.error or "the server is closing")
                empty = {"model_version": self.version, "score": 0.0, "result": []}
                results.append({**empty, "error": errors[-1]})
            else:
                results.append(job.result)
        if errors and len(errors) == len(jobs):
            return 400, {"error": errors[0]}
        return 200, {"results": results, "model_version": self.version}


def create_app(
    backend: Backend, *, host: str = "127.0.0.1", token: str | None = None, names: Any = ()
) -> Guard:
    """The server; ``names`` are those under which Label Studio may know this machine."""

    @asynccontextmanager
    async def closing(_: FastAPI) -> AsyncIterator[None]:
        yield
        backend.queue.close()

    app = FastAPI(lifespan=closing, docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/")
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "UP", "model_class": backend.version}

    @app.post("/setup")
    def setup(body: SetupBody) -> dict[str, str]:
        backend.remember(body.project, body.schema_)
        return {"model_version": backend.version}

    @app.post("/predict")
    def predict(body: PredictBody) -> JSONResponse:
        status, answer = backend.answer(body)
        return JSONResponse(answer, status)

    @app.post("/webhook")
    async def webhook() -> dict[str, str]:
        return {"status": "nothing to do: the model is frozen"}

    for kind in (ValueError, QueueFull, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _sentence)
    return Guard(app, host=host, token=token, most_bytes=_MOST_BYTES, names=names)


def _sentence(_: Request, error: Exception) -> JSONResponse:
    """What was wrong, in a sentence."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": str(error.detail)}, error.status_code)
    if isinstance(error, RequestValidationError):
        places = [".".join(map(str, problem["loc"][1:3])) for problem in error.errors()[:3]]
        said = "; ".join(
            f"{place or 'the body'} is not as Label Studio sends it" for place in places
        )
        return JSONResponse({"error": said}, 422)
    return JSONResponse({"error": str(error)}, 503 if isinstance(error, QueueFull) else 400)

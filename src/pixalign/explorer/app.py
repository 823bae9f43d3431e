"""The server behind the page: thin routes, one queue for the network, bad input as a sentence."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from pixalign.core.protocols import AlignmentModel
from pixalign.explorer import aligning, making
from pixalign.explorer.about import about
from pixalign.explorer.bundle import pack
from pixalign.explorer.requests import (
    AlignBody,
    ConcludeBody,
    DownloadBody,
    EditBody,
    EntitiesBody,
    GenerateBody,
    SceneBody,
)
from pixalign.explorer.scenes import drawn_scene, prepared_scene
from pixalign.explorer.sessions import MOST_BYTES, Picture, Session, Sessions, Unknown
from pixalign.pictures.drawing import palette
from pixalign.pictures.saving import encoded, mask_image
from pixalign.serving.guard import Guard
from pixalign.serving.jobs import Job, JobQueue, QueueFull
from pixalign.text.prompts import as_phrases

STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_BINARY = "application/octet-stream"
router = APIRouter()


class Explorer:
    """What the routes share: the model, its queue, the sessions, the files of the page."""

    def __init__(self, model: AlignmentModel, demo: bool) -> None:
        self.model, self.demo = model, demo
        self.queue = JobQueue()
        self.sessions = Sessions(self.queue)
        # Read once: no path that a client names is ever opened.
        files = [path for path in STATIC.iterdir() if path.suffix in _TYPES]
        self.files = {path.name: (path.read_bytes(), _TYPES[path.suffix]) for path in files}

    @cached_property
    def about(self) -> dict[str, Any]:
        """What the page must know of the model."""
        return about(self.model, self.demo)

    def submit(self, session: Session, work: Callable[[], Any]) -> dict[str, Any]:
        """A job of a session, as the page hears of it."""
        job = session.remember(self.queue.submit(session.id, work))
        return self.job(job)

    def job(self, job: Job) -> dict[str, Any]:
        """How far a job is."""
        far = {"stage": job.stage, "done": job.done, "total": job.total}
        result = job.result if isinstance(job.result, Mapping) else None
        said = {"error": job.error, "ahead": self.queue.ahead(job), "result": result}
        return {"job": job.id, "state": job.state, **far, **said}


def create_app(
    model: AlignmentModel, *, host: str = "127.0.0.1", token: str | None = None, demo: bool = False
) -> Guard:
    """The page and its server, for a model; ``demo`` begins every session with a scene."""
    explorer = Explorer(model, demo)

    @asynccontextmanager
    async def closing(_: FastAPI) -> AsyncIterator[None]:
        yield
        explorer.queue.close()

    app = FastAPI(lifespan=closing, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.explorer = explorer
    app.include_router(router)
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return Guard(app, host=host, token=token, most_bytes=MOST_BYTES)


def _sentence(_: Request, error: Exception) -> JSONResponse:
    """What was wrong, in the words of whoever noticed."""
    kinds = {Unknown: 404, QueueFull: 503, ClientDisconnect: 400}
    status = next((code for kind, code in kinds.items() if isinstance(error, kind)), 400)
    if isinstance(error, HTTPException):
        status, said = error.status_code, str(error.detail)
    elif isinstance(error, RequestValidationError):
        status, said = 422, "; ".join(map(_complaint, error.errors()[:3]))
    else:
        said = str(error) or "the upload was cut short"
    return JSONResponse({"error": said}, status)


def _complaint(problem: Mapping[str, Any]) -> str:
    """One of pydantic's, as a person would say it; never with what was sent."""
    where = ".".join(str(part) for part in problem["loc"][1:3] if str(part).isidentifier())
    return f"{where or 'the request'}: {str(problem['msg'])[:200].lower()}"


_HANDLERS: dict[type[Exception], Callable[[Request, Exception], JSONResponse]] = dict.fromkeys(
    (Unknown, QueueFull, ValueError, ClientDisconnect, HTTPException, RequestValidationError),
    _sentence,
)


def _explorer(request: Request) -> Explorer:
    explorer: Explorer = request.app.state.explorer
    return explorer


Shared = Annotated[Explorer, Depends(_explorer)]


def _session(explorer: Shared, x_pixalign_session: Annotated[str, Header()] = "") -> Session:
    return explorer.sessions.of(x_pixalign_session)


Own = Annotated[Session, Depends(_session)]


@router.get("/")
def page(explorer: Shared) -> Response:
    """The page."""
    return static("index.html", explorer)


@router.get("/static/{name}")
def static(name: str, explorer: Shared) -> Response:
    """One of the page's own files."""
    if name not in explorer.files:
        raise Unknown("there is no such file")
    data, kind = explorer.files[name]
    return Response(data, media_type=kind)


@router.get("/api/about")
def about_model(explorer: Shared) -> dict[str, Any]:
    """The model, its methods and its words."""
    return explorer.about


@router.post("/api/session")
def begin(explorer: Shared) -> dict[str, Any]:
    """A new session, in the demo with a scene."""
    session = explorer.sessions.new()
    if explorer.demo:
        session.picture = prepared_scene(explorer.model.backbone)
    return session.to_dict()


@router.get("/api/session")
def state(session: Own) -> dict[str, Any]:
    """What a page that was loaded again goes on with."""
    return session.to_dict()


@router.put("/api/picture")
async def upload(request: Request, session: Own) -> dict[str, Any]:
    """A picture's file as the body; it stays in memory."""
    data = await request.body()
    session.picture = await run_in_threadpool(Picture.uploaded, data)
    return session.picture.to_dict()


@router.post("/api/scene")
def scene(asked: SceneBody, session: Own, explorer: Shared) -> dict[str, Any]:
    """A scene of the lab."""
    session.picture = drawn_scene(explorer.model.backbone, asked.number, asked.objects)
    return session.picture.to_dict()


@router.get("/api/picture")
def picture(session: Own) -> Response:
    """The session's picture as it is shown."""
    return Response(encoded(session.shown.image), media_type="image/png")


@router.post("/api/align")
def align(asked: AlignBody, session: Own, explorer: Shared) -> dict[str, Any]:
    """Begin the passes that are lacking."""
    aligning.check_method(explorer.model, asked.method)
    phrases = as_phrases(asked.classes)
    how = (session.shown, phrases, asked.method, asked.detail, asked.seed)
    return explorer.submit(session, partial(aligning.align, explorer.model, session, *how))


@router.post("/api/conclude")
def conclude(asked: ConcludeBody, session: Own, explorer: Shared) -> Response:
    """Heatmaps float32 [N, H, W] of a setting, and what is said of them; no pass is made."""
    aligned = session.alignment(asked.measurement)
    result = aligning.concluded(explorer.model, aligned, asked.method, asked.strength)
    header = aligning.described(aligned, result, asked.method)
    return Response(pack(header, {"heatmaps": result.heatmaps}), media_type=_BINARY)


@router.post("/api/download")
def download(asked: DownloadBody, session: Own, explorer: Shared) -> Response:
    """A file, as `Alignment.save` writes it."""
    aligned = session.alignment(asked.measurement)
    result = aligning.concluded(explorer.model, aligned, asked.method, asked.strength)
    if asked.kind in ("result", "coco"):
        written = {"result": result.to_dict, "coco": result.to_coco}[asked.kind](asked.threshold)
        text = json.dumps(written, indent=2, ensure_ascii=False, allow_nan=False)
        return Response(text.encode(), media_type="application/json")
    if asked.kind == "overlay":
        image = result.overlay(asked.threshold)
    else:
        image = mask_image(result.mask(asked.threshold), palette(len(result.classes)))
    return Response(encoded(image), media_type="image/png")


@router.post("/api/entities")
def entities(asked: EntitiesBody, session: Own) -> dict[str, Any]:
    """What a prompt names."""
    return {"entities": making.entity_texts(asked.prompt)}


@router.post("/api/generate")
def generate(asked: GenerateBody, session: Own, explorer: Shared) -> dict[str, Any]:
    """Begin to draw."""
    making.check_methods(generation=asked.method)
    named = making.entity_texts(asked.prompt, asked.entities)
    return _made(explorer, session, "generate", partial(making.drawn, explorer.model, asked, named))


@router.post("/api/edit")
def edit(asked: EditBody, session: Own, explorer: Shared) -> dict[str, Any]:
    """Begin an edit."""
    making.check_methods(editing=asked.method, inversion=asked.inversion)
    image = session.shown.image if asked.given else None
    named = making.known_entities(asked)
    work = partial(making.edited, explorer.model, asked, image, named)
    return _made(explorer, session, "edit", work)


def _made(
    explorer: Explorer, session: Session, kind: str, work: Callable[[], bytes]
) -> dict[str, Any]:
    """A job whose result the session keeps."""

    def kept() -> None:
        session.results[kind] = work()

    return explorer.submit(session, kept)


@router.get("/api/results/{kind}")
def results(kind: str, session: Own) -> Response:
    """What was last drawn or edited."""
    if kind not in session.results:
        raise Unknown("nothing was made yet")
    return Response(session.results[kind], media_type=_BINARY)


@router.get("/api/jobs/{name}")
def job(name: str, session: Own, explorer: Shared) -> dict[str, Any]:
    """How far a job is."""
    return explorer.job(session.job(name))


@router.delete("/api/jobs/{name}")
def cancel(name: str, session: Own, explorer: Shared) -> dict[str, Any]:
    """Ask a job to end."""
    explorer.queue.cancel(session.job(name))
    return explorer.job(session.job(name))

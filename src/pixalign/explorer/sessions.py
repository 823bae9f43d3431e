"""Who is looking, and at what: one session a tab of a browser, nothing shared between them."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from pixalign.alignment.request import EncodedImage
from pixalign.alignment.result import Alignment
from pixalign.alignment.trust import Trust
from pixalign.methods.elbo import Measurement
from pixalign.pictures.reading import read_image
from pixalign.serving.jobs import Job, JobQueue

MOST_BYTES = 25 * 2**20  # of an upload
MOST_PIXELS = 40_000_000  # of a picture
MOST_SIDE = 1024  # pixels at which pictures are shown and aligned
_MOST_JOBS = 8  # that a session remembers


class Unknown(LookupError):
    """What is asked for is not there (any more); the text says so to a person."""


@dataclass(eq=False)
class Picture:
    """A picture as it is shown, and as the model saw it once it was encoded.

    ``size`` is the (width, height) of what came; ``names`` are the classes of a drawn scene.
    """

    image: Image.Image
    size: tuple[int, int]
    names: tuple[str, ...] = ()
    scene: int | None = None
    encoded: EncodedImage | None = None

    @classmethod
    def uploaded(cls, data: bytes) -> Picture:
        """From a file's bytes; what is larger than a page shows is made smaller."""
        if not data:
            raise ValueError("the upload is empty; choose a picture")
        image = read_image(data, MOST_PIXELS)
        shown = image.copy()
        shown.thumbnail((MOST_SIDE, MOST_SIDE), Image.Resampling.LANCZOS)
        return cls(read_image(shown), image.size)  # a sliver may have become too thin

    def to_dict(self) -> dict[str, Any]:
        """What the page says of it."""
        shown = {"width": self.image.width, "height": self.image.height}
        about = {"original": list(self.size), "names": list(self.names), "scene": self.scene}
        return shown | about


@dataclass(eq=False)
class AlignedPicture:
    """What was asked of the network about a picture, and what it said.

    ``number`` tells measurements of a session apart. ``trust`` are the verdicts of "dense";
    ``others`` hold what methods that share no passes made of it.
    """

    number: int
    picture: Picture
    classes: tuple[str, ...]
    detail: str
    seed: int
    measured: Measurement
    trust: tuple[Trust, ...]
    others: dict[str, Alignment] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """What a page needs to go on after it was loaded again."""
        asked = {"classes": list(self.classes), "detail": self.detail, "seed": self.seed}
        return {"measurement": self.number, "others": list(self.others), **asked}


@dataclass(eq=False)
class Session:
    """One tab's: its picture, what was measured of it, what was drawn, and its jobs."""

    id: str
    picture: Picture | None = None
    aligned: AlignedPicture | None = None
    results: dict[str, bytes] = field(default_factory=dict)
    jobs: OrderedDict[str, Job] = field(default_factory=OrderedDict)

    @property
    def shown(self) -> Picture:
        """The picture, which must be there."""
        if self.picture is None:
            raise Unknown("there is no picture yet; choose one, or draw a scene")
        return self.picture

    def alignment(self, number: int) -> AlignedPicture:
        """The measurement of that number, which must be the last."""
        if self.aligned is None or self.aligned.number != number:
            raise Unknown("this measurement is no longer there; align the picture again")
        return self.aligned

    def job(self, name: str) -> Job:
        """One of the session's own."""
        if name not in self.jobs:
            raise Unknown("there is no such job in this session")
        return self.jobs[name]

    def remember(self, job: Job) -> Job:
        """Keep a job among the last ones."""
        self.jobs[job.id] = job
        while len(self.jobs) > _MOST_JOBS:
            over = next((name for name, old in self.jobs.items() if old.over), None)
            if over is None:
                break
            del self.jobs[over]
        return job

    def to_dict(self) -> dict[str, Any]:
        """What a page needs to go on after it was loaded again."""
        return {
            "session": self.id,
            "picture": None if self.picture is None else self.picture.to_dict(),
            "aligned": None if self.aligned is None else self.aligned.to_dict(),
            "results": sorted(self.results),
        }


class Sessions:
    """The sessions by their secret ids, at most so many: the one unused for longest makes room."""

    def __init__(self, queue: JobQueue, most: int = 16) -> None:
        self.queue, self.most = queue, most
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def new(self) -> Session:
        """An empty one."""
        session = Session(secrets.token_urlsafe(24))
        with self._lock:
            self._sessions[session.id] = session
            leaving = [self._sessions.popitem(last=False)[1]] if len(self) > self.most else []
        for old in leaving:
            for job in old.jobs.values():
                self.queue.cancel(job)
        return session

    def of(self, name: str) -> Session:
        """The session of that id."""
        with self._lock:
            if name not in self._sessions:
                raise Unknown("this session is no longer there; load the page again")
            self._sessions.move_to_end(name)
            return self._sessions[name]

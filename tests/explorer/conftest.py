"""One model, one server and one browser for all tests of the explorer."""

import os
import shutil
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn

import pixalign as pa
from pixalign.explorer.app import create_app
from pixalign.serving.run import address, bound

CHROMIUM = "/usr/bin/chromium"
REQUIRED = "PIXALIGN_BROWSER_REQUIRED"  # set where tests in a browser must not be skipped


@pytest.fixture(scope="session")
def embedded():
    """The embedded model, which means what it says."""
    return pa.load()


@contextmanager
def _running(model, **options):
    """The address of a server in a thread."""
    with bound("127.0.0.1", 0, 0) as listening:
        app = create_app(model, **options)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.02)
        try:
            yield address(listening, "127.0.0.1")
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


@pytest.fixture(scope="session")
def running():
    """`with running(model) as url:`, a server in a thread."""
    return _running


@pytest.fixture(scope="session")
def browser():
    """Debian's chromium, headless."""
    if shutil.which(CHROMIUM) is None:
        said = f"{CHROMIUM} is not there: apt-get install chromium"
        assert not os.environ.get(REQUIRED), said
        pytest.skip(said)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-background-networking"]
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield started
        started.close()

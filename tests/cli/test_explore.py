"""`pixalign explore`: what it refuses, and that it serves until Ctrl-C."""

import os
import signal
import subprocess
import sys
import urllib.request
from functools import partial

import pytest

from pixalign.serving.run import bound


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--host", "0.0.0.0"), "can be reached from other machines"),
        (("--token", "short"), "token has 5 characters"),
        (("--port", "70000"), "65535"),
        (("--port", "0", "--model", "no/such"), "no/such"),
    ],
)
def test_bad_options_are_one_line(shell, arguments, said):
    code, out, err = shell("explore", "--no-browser", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_taken_port_is_told(shell):
    with bound("127.0.0.1", 0, 0) as taken:
        taken.listen()
        code, _, err = shell("explore", "--no-browser", "--port", taken.getsockname()[1])
    assert (code, "is taken" in err) == (2, True)


def test_it_serves_until_it_is_stopped(sd1_folder):
    command = [sys.executable, "-u", "-m", "pixalign", "explore", "--no-browser", "--port", "0"]
    command += ["--model", str(sd1_folder), "--token", "a-token-that-is-long"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background is deaf
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = subprocess.Popen(command, preexec_fn=heard, **pipes)
    try:
        line = started.stdout.readline()
        assert line.startswith("open http://127.0.0.1:")
        url = line.split()[1]
        jar = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert "where a model puts each word" in jar.open(url, timeout=20).read().decode()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url.split("?")[0], timeout=20)
        os.kill(started.pid, signal.SIGINT)
        assert started.wait(20) == 130
        assert started.stderr.read().strip().splitlines()[-1:] == ["stopped"]
    finally:
        started.kill()

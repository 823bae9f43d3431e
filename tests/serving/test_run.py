"""Sockets: the usual ports, taken ones, addresses to open."""

import socket

import pytest

from pixalign.serving.run import address, bound


def test_a_taken_usual_port_leads_to_the_next():
    with bound("127.0.0.1", 0, 0) as first:
        first.listen()
        taken = first.getsockname()[1]
        with pytest.raises(OSError, match=f"port {taken} is taken"):
            bound("127.0.0.1", taken, 1)
        with bound("127.0.0.1", None, taken) as second:
            assert taken < second.getsockname()[1] <= taken + 20


def test_hosts_that_are_not_ours_are_told():
    with pytest.raises(OSError, match=r"host '192\.0\.2\.1', port 0"):
        bound("192.0.2.1", 0, 0)


def test_addresses():
    with bound("127.0.0.1", 0, 0) as listening:
        port = listening.getsockname()[1]
        assert address(listening, "127.0.0.1") == f"http://127.0.0.1:{port}/"
        assert address(listening, "::1") == f"http://[::1]:{port}/"
        name = socket.gethostname()
        assert address(listening, "0.0.0.0", "secret") == f"http://{name}:{port}/?token=secret"

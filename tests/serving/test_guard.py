"""Who may ask a server, and how much they may send."""

import socket

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from pixalign.serving.guard import Guard, check_binding

TOKEN = "a-token-of-enough-characters"


def client(host="127.0.0.1", asked="http://127.0.0.1:8000", **options):
    app = FastAPI()

    @app.api_route("/size", methods=["GET", "POST"])
    async def size(request: Request):
        return {"bytes": len(await request.body()), "query": dict(request.query_params)}

    guarded = Guard(app, host=host, most_bytes=100, **options)
    return TestClient(guarded, base_url=asked, follow_redirects=False)


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:9", "[::1]:8000", "LOCALHOST"])
def test_names_of_this_machine_are_answered(host):
    answer = client().get("/size", headers={"host": host})
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "192.168.0.5", "", "[", "a@localhost@b", "::1"],
)
def test_other_names_are_refused(host):
    answer = client().get("/size", headers={"host": host})
    assert answer.status_code == 421
    assert "host" in answer.json()["error"]


def test_two_hosts_are_refused():
    guarded = client()
    answer = guarded.get("/size", headers=[("host", "localhost"), ("host", "evil.example")])
    assert answer.status_code == 421


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8000", 200),
        ("http://127.0.0.1:8001", 403),
        ("http://localhost:8000", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://[", 403),
    ],
)
def test_other_pages_are_refused(origin, status):
    answer = client().post("/size", content=b"x", headers={"origin": origin})
    assert answer.status_code == status


def test_bodies_are_bounded_whether_or_not_they_say_their_length():
    guarded = client()
    assert guarded.post("/size", content=b"x" * 100).json()["bytes"] == 100
    assert guarded.post("/size", content=b"x" * 101).status_code == 413
    chunks = (b"x" * 30 for _ in range(4))
    answer = guarded.post("/size", content=chunks)
    assert answer.status_code == 413
    assert "allowed" in answer.json()["error"]
    for length in ("-1", "many", "1, 2", "\u00b2", "9" * 400):
        answer = guarded.post(
            "/size", content=b"x", headers={"content-length": length.encode("latin-1")}
        )
        assert answer.status_code in (400, 413)


def test_a_token_is_asked_for_and_kept_in_a_cookie():
    guarded = client(token=TOKEN)
    assert guarded.get("/size").status_code == 401
    assert guarded.get("/size?token=wrong").status_code == 401
    for bearer, status in ((TOKEN, 200), ("wrong", 401), ("\u00e9", 401), ("", 401)):
        headers = {"authorization": b"Bearer " + bearer.encode("latin-1")}
        assert guarded.get("/size", headers=headers).status_code == status
    answer = guarded.get(f"http://127.0.0.1:8000//evil.example/a%0d%0ab?token={TOKEN}&keep=1")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/evil.example/a%0D%0Ab?keep=1"  # never to another host
    assert "HttpOnly; SameSite=Strict" in answer.headers["set-cookie"]
    assert guarded.get("/size?keep=1").json()["query"] == {"keep": "1"}


def test_beyond_loopback_addresses_and_own_names_count():
    guarded = client(host="0.0.0.0", token=TOKEN, names=["box.example"])
    known = {"authorization": f"Bearer {TOKEN}"}
    for host in ("192.168.0.5:80", socket.gethostname(), "Box.Example:1", "localhost"):
        assert guarded.get("/size", headers={"host": host, **known}).status_code == 200
        assert guarded.get("/size", headers={"host": host}).status_code == 401
    assert guarded.get("/size", headers={"host": "evil.example", **known}).status_code == 421


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.5", "::", "box.example"])
def test_others_may_come_with_a_token_only(host):
    with pytest.raises(ValueError, match="can be reached from other machines"):
        check_binding(host, None)
    check_binding(host, TOKEN)


def test_short_tokens_are_refused():
    for token in ("", "short", "a token of many characters", "\u00e9" * 20):
        with pytest.raises(ValueError, match="token has"):
            check_binding("127.0.0.1", token)
    for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        check_binding(host, None)


def test_the_token_may_be_the_password_of_basic_authentication():
    guarded = client(token=TOKEN)
    assert guarded.get("/size", auth=("anyone", TOKEN)).status_code == 200
    assert guarded.get("/size", auth=(TOKEN, "wrong")).status_code == 401
    for given in ("", "!", "/w==", TOKEN):
        assert guarded.get("/size", headers={"authorization": f"Basic {given}"}).status_code == 401

"""Who may ask a server, and how much they may send; plain ASGI, so any app can stand behind it."""

from __future__ import annotations

import base64
import hmac
import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SHORTEST_TOKEN = 16
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


def on_loopback(host: str) -> bool:
    """Whether a server bound to that host can be reached from this machine alone."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def check_binding(host: str, token: str | None) -> None:
    """Refuse a host that others can reach without a token that they cannot guess."""
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or " " in token):
        raise ValueError(
            f"token has {len(token)} characters; allowed: {SHORTEST_TOKEN} or more, ASCII, no space"
        )
    if token is None and not on_loopback(host):
        raise ValueError(
            f"host {host!r} can be reached from other machines; allowed: with a token of "
            f"{SHORTEST_TOKEN} or more characters (--token), or 127.0.0.1"
        )


class Guard:
    """Checks Host, Origin, token and size of every request before the app sees it.

    Host must name this machine, which is what stops pages that rebind their own name to it: a
    loopback name; where the server is bound beyond loopback also an address, the machine's name,
    ``host`` itself and ``names``. Origin, where a browser sends one, must be Host. The token comes
    as a bearer, as the password of basic authentication, or as ``?token=``, for which a browser
    gets a cookie.
    """

    def __init__(
        self,
        app: App,
        *,
        host: str,
        token: str | None = None,
        most_bytes: int,
        names: Iterable[str] = (),
    ) -> None:
        check_binding(host, token)
        self.app, self.token, self.most_bytes = app, token, most_bytes
        self.beyond = not on_loopback(host)
        own = (host, socket.gethostname(), socket.getfqdn()) if self.beyond else ()
        self.names = {name.lower() for name in (*LOOPBACK, *own, *names)}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer, or hand on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = _headers(scope)
        refused = self._refused(headers)
        asked = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        given = asked.pop("token", [""])[0]
        if refused is None and self._known(given) and scope["method"] == "GET":
            await self._redirect(scope, asked, send)
        elif refused is None and not self._allowed(scope, headers):
            refused = 401, "this server needs its token: open the address that its terminal shows"
        if refused is not None:
            await _answer(send, *refused)
        elif not (self._known(given) and scope["method"] == "GET"):
            await self._handed_on(scope, receive, send)

    def _refused(self, headers: dict[str, str]) -> tuple[int, str] | None:
        """Status and sentence for a request of a wrong host, origin or size."""
        host = headers.get("host", "")
        if not self._ours(host):
            return 421, f"host is {host[:100]!r}; this server answers under its own name only"
        origin = headers.get("origin")
        if origin is not None and _split(origin)[0].lower() != host.lower():
            return 403, f"origin is {origin[:100]!r}; allowed: this server's own page"
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()):
            return 400, f"content-length is {length[:100]!r}; allowed: a number"
        return self._large() if int(length[:20]) > self.most_bytes else None

    def _large(self) -> tuple[int, str]:
        return 413, f"the request is too large; allowed: {self.most_bytes / 2**20:g} MiB"

    def _ours(self, host: str) -> bool:
        name = _split(f"//{host}")[1].lower()
        return name in self.names or (self.beyond and _address(name) is not None)

    def _known(self, token: str) -> bool:
        return self.token is not None and hmac.compare_digest(token.encode(), self.token.encode())

    def _allowed(self, scope: Message, headers: dict[str, str]) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        bearer = given.strip() if scheme.lower() == "bearer" else ""
        password = _password(given) if scheme.lower() == "basic" else ""
        if self.token is None or self._known(bearer or password):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(_cookie_name(scope))
        except CookieError:
            return False
        return cookie is not None and self._known(cookie.value)

    async def _redirect(self, scope: Message, asked: dict[str, list[str]], send: Send) -> None:
        """The same address without the token, which stays in a cookie."""
        rest = urlencode(asked, doseq=True)
        where = "/" + quote(scope["path"].lstrip("/")) + (f"?{rest}" if rest else "")
        cookie = f"{_cookie_name(scope)}={self.token}; Path=/; HttpOnly; SameSite=Strict"
        more = {"location": where, "set-cookie": cookie}
        await _answer(send, 303, "the token is kept in a cookie", more)

    async def _handed_on(self, scope: Message, receive: Receive, send: Send) -> None:
        got, started, large = 0, False, False

        async def counted() -> Message:
            nonlocal got, large
            message = await receive()
            got += len(message.get("body", b""))
            if got <= self.most_bytes:
                return message
            if not (large or started):
                await _answer(send, *self._large())
            large = True
            return {"type": "http.disconnect"}

        async def headed(message: Message) -> None:
            nonlocal started
            if large:  # answered already
                return
            if message["type"] == "http.response.start":
                started = True
                known = {name.lower() for name, _ in message.get("headers", ())}
                own = [(k.encode(), v.encode()) for k, v in _HEADERS.items()]
                extra = [(name, value) for name, value in own if name not in known]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        try:
            await self.app(scope, counted, headed)
        except Exception:
            if not large:
                raise


def _headers(scope: Message) -> dict[str, str]:
    """By lower-case name; of a name that comes twice, both values, which nothing allows."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _password(given: str) -> str:
    """The password of basic authentication, whoever the user; empty where there is none."""
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _split(url: str) -> tuple[str, str]:
    """(host:port, host) of a URL; empty where it is none."""
    try:
        parts = urlsplit(url)
        return parts.netloc, parts.hostname or ""
    except ValueError:
        return "", ""


def _address(name: str) -> Any:
    try:
        return ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None


def _cookie_name(scope: Message) -> str:
    """Cookies know no ports, so each server of a machine has one of its own."""
    return f"pixalign_{(scope.get('server') or ('', 0))[1]}"


async def _answer(send: Send, status: int, said: str, more: dict[str, str] | None = None) -> None:
    headers = {**_HEADERS, "content-type": "application/json", **(more or {})}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    body = json.dumps({"error": said}).encode()
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})

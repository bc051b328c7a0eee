"""Which names a server may be called by.

A web page of another site can have its own name point to this machine (DNS rebinding) and then counts as the server's
own page, which CORS does not stop. Its requests still say that name, so on a server for this machine alone only names
of this machine are taken, and addresses, which cannot be rebound.
"""

from __future__ import annotations

import ipaddress

from starlette.types import ASGIApp, Receive, Scope, Send

from lcspec.server.errors import ApiError
from lcspec.server.limits import discard_body

# What a machine calls itself, and what its containers call it.
LOCAL = ("localhost", "*.localhost", "host.docker.internal", "host.containers.internal")


class HostCheck:
    """Middleware: answers 403 unless the Host header is an address or one of `names` (`*.name` takes subdomains)."""

    def __init__(self, app: ASGIApp, names: tuple[str, ...]) -> None:
        self.app = app
        self.names = tuple(name.lower().rstrip(".") for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then go on."""
        if scope["type"] != "http" or self.takes(_host(scope)):
            await self.app(scope, receive, send)
            return
        await discard_body(scope, receive)
        message = "this server is not called that: use localhost, or start it with --allowed-host NAME"
        await ApiError(403, message, code="host_not_allowed").response(scope["path"])(scope, receive, send)

    def takes(self, host: str) -> bool:
        """Whether a request for `host` is meant for this server; HTTP/1.0 clients may name none."""
        if not host or is_address(host):
            return True
        return any(host == name or (name[0] == "*" and host.endswith(name[1:])) for name in self.names)


def is_address(host: str) -> bool:
    """Whether it is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _host(scope: Scope) -> str:
    given = next((bytes(v) for k, v in scope["headers"] if k == b"host"), b"").decode("latin-1").strip().lower()
    if given.startswith("["):  # IPv6 in brackets
        return given[1:].partition("]")[0].partition("%")[0]
    return given.partition(":")[0].rstrip(".")

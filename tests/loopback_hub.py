"""A small hub on this machine: what huggingface_hub needs to list and download files, and faults on demand."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubState:
    """What the hub holds (repository -> file -> bytes), and how it misbehaves.

    Attributes:
        cut: break the connection after so many bytes of a download, for each entry once.
        wrong: name of a file of which other bytes are sent than described.
        gated: repositories that ask for consent.
        ranges: the Range headers that came.
    """

    repos: dict[str, dict[str, bytes]]
    cut: list[int] = field(default_factory=list)
    wrong: str = ""
    gated: set[str] = field(default_factory=set)
    ranges: list[str] = field(default_factory=list)
    url: str = ""


@contextlib.contextmanager
def loopback_hub(state: HubState) -> Iterator[HubState]:
    """Serve `state` on a free port of this machine; `state.url` is the endpoint."""

    class Handler(_Handler):
        hub = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: HubState

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        address = urlsplit(self.path)
        parts = address.path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            if len(parts) == 2:
                self._list(parse_qs(address.query))
            else:
                self._describe("/".join(parts[2:4]))
        elif len(parts) > 4 and parts[2] == "resolve":
            self._file("/".join(parts[:2]), "/".join(parts[4:]), body)
        else:
            self._error(404, "EntryNotFound")

    def _list(self, query: dict[str, list[str]]) -> None:
        author, search = query.get("author", [""])[0], query.get("search", [""])[0]
        found = [r for r in self.hub.repos if r.startswith(f"{author}/") and search.lower() in r.lower()]
        self._json([{"id": repo, "modelId": repo} for repo in found])

    def _describe(self, repo: str) -> None:
        if repo in self.hub.gated:
            self._error(403, "GatedRepo")
        elif repo not in self.hub.repos:
            self._error(404, "RepoNotFound")
        else:
            files = self.hub.repos[repo].items()
            siblings = [
                {"rfilename": n, "size": len(d), "lfs": {"sha256": _sha(d), "size": len(d), "pointerSize": 134}}
                for n, d in files
            ]
            self._json({"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings})

    def _file(self, repo: str, name: str, body: bool) -> None:
        data = self.hub.repos.get(repo, {}).get(name)
        if data is None:
            self._error(404, "EntryNotFound")
            return
        digest = _sha(data)
        if name == self.hub.wrong:
            data = data[:-1] + bytes([data[-1] ^ 1])
        start, wanted = 0, self.headers.get("Range")
        if body and wanted:
            self.hub.ranges.append(wanted)
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if body and wanted else 200)
        self.send_header("Content-Length", str(len(data) - start))
        if body and wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{digest}"')
        self.end_headers()
        if not body:
            return
        if self.hub.cut:
            self.wfile.write(data[start : start + self.hub.cut.pop(0)])
            self.close_connection = True
            return
        self.wfile.write(data[start:])

    def _json(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _error(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

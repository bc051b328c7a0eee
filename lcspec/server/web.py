"""The web page at `/`: a few files, the same for everybody, so they need no key. What they ask the server for does."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

FOLDER = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    # Nothing but this server's own files and answers; no page may put this one into a frame. With trusted types and no
    # policy, the browser refuses to parse any text as HTML, so no answer of a model can become more than text.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # Asked for again each time, and answered with 304 while it is the same: a new version shows at once.
    "cache-control": "no-cache",
}


@dataclass(frozen=True)
class File:
    """A file of the page."""

    data: bytes
    media_type: str
    etag: str


def read_files(folder: Path = FOLDER) -> dict[str, File]:
    """The page's files by name."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in TYPES:
            data = path.read_bytes()
            found[path.name] = File(data, TYPES[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:32]}"')
    return found


FILES = read_files()
PATHS = ("/", *(f"/page/{name}" for name in FILES))
router = APIRouter(include_in_schema=False)


@router.get("/")
@router.head("/")
async def index(http: Request) -> Response:
    """The page."""
    return _answer(http, "index.html")


@router.get("/page/{name}")
@router.head("/page/{name}")
async def part(name: str, http: Request) -> Response:
    """One of its files."""
    return _answer(http, name)


def _answer(http: Request, name: str) -> Response:
    file = FILES.get(name)
    if file is None:
        raise HTTPException(404)
    headers = HEADERS | {"etag": file.etag}
    known = [tag.strip().removeprefix("W/") for tag in http.headers.get("if-none-match", "").split(",")]
    if file.etag in known or known == ["*"]:
        return Response(status_code=304, headers=headers)
    return Response(file.data, media_type=file.media_type, headers=headers)

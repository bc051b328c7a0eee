"""The ASGI application: endpoints, and what every request passes on its way to them."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any, AsyncIterator, Callable, Sequence

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware

from lcspec import __version__
from lcspec.engine_host import EngineHost
from lcspec.server import (
    anthropic,
    chat,
    completions,
    embeddings,
    info,
    lora,
    native,
    ollama,
    ollama_info,
    rerank,
    responses,
    web,
)
from lcspec.server.auth import KeyCheck
from lcspec.server.errors import install_handlers
from lcspec.server.hosts import HostCheck
from lcspec.server.journal import Journal
from lcspec.server.limits import BodyLimit
from lcspec.server.models import Leases, Models
from lcspec.server.remembered import Remembered
from lcspec.server.service import Service
from lcspec.server.settings import ServerSettings
from lcspec.server.unknown import HEADER

ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
ERRORS = {
    status: {"description": text, "content": {"application/json": {"schema": ERROR_SCHEMA}}}
    for status, text in {
        400: "The request is wrong.",
        401: "The API key is missing or wrong.",
        404: "There is no such model.",
        413: "The body is too long.",
        501: "It cannot be done while the server runs.",
        429: "The queue is full; Retry-After says how many seconds to wait.",
        503: "The server is shutting down, or the model cannot be loaded.",
        504: "The answer was not finished in the time that --timeout allows.",
    }.items()
}


def create_app(worker: EngineHost, settings: ServerSettings) -> FastAPI:
    """The application over a worker that has loaded its model.

    Raises:
        LcspecError: the model could not be loaded, or its chat template cannot be used.
    """
    return app_over(Models.one(Service(worker, settings)))


def app_over(models: Models) -> FastAPI:
    """The application; `app.state.models` is its state."""
    settings = models.settings

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watch = asyncio.ensure_future(models.watch())
        yield
        watch.cancel()
        models.close()

    app = FastAPI(
        title="lcspec",
        version=__version__,
        description="Local GGUF inference with speculative decoding, behind the OpenAI API.",
        lifespan=lifespan,
        docs_url=None,  # the page would load scripts from elsewhere
        redoc_url=None,
        responses={status: dict(text) for status, text in ERRORS.items()},
    )
    app.state.models = models
    app.state.remembered = Remembered()
    rooms = (chat, completions, responses, anthropic, ollama, ollama_info, native, lora, embeddings, rerank, info, web)
    routes = [route for room in rooms for route in room.router.routes if isinstance(route, APIRoute)]
    for room in rooms:
        app.include_router(room.router)
    install_handlers(app)
    app.openapi = partial(describe, app)  # type: ignore[method-assign]
    # The last one added sees a request first.
    app.add_middleware(BodyLimit, limit=settings.max_body, seconds=settings.body_seconds)
    if settings.api_keys:
        app.add_middleware(KeyCheck, keys=settings.api_keys)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[HEADER, "retry-after", "x-request-id"],
            allow_private_network=True,  # a page of the internet asks whether it may call this machine
        )
    if settings.hosts:
        app.add_middleware(HostCheck, names=settings.hosts)
    app.add_middleware(Leases, models=models)
    app.add_middleware(Journal, metrics=models.http, paths=paths_of(routes))
    return app


def paths_of(routes: Sequence[APIRoute]) -> Callable[[str], str]:
    """What the log and the metrics call a path: its endpoint's, or `other`."""
    plain = {route.path_format for route in routes}
    named = [route for route in routes if route.param_convertors]

    def called(path: str) -> str:
        if path in plain:
            return path
        return next((route.path_format for route in named if route.path_regex.match(path)), "other")

    return called


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, without the 422 that the framework would answer and this server does not.

    Made when somebody asks for it: that takes as long as loading a small model.
    """
    document = FastAPI.openapi(app)  # made once and kept by the application
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document.get("components", {}).get("schemas", {}).pop(name, None)
    return document

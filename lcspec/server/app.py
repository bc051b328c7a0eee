"""The ASGI application: endpoints, and what every request passes on its way to them."""

from __future__ import annotations

import contextlib
from typing import Any, AsyncIterator

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from lcspec import __version__
from lcspec.engine_thread import EngineThread
from lcspec.server import (
    anthropic,
    chat,
    completions,
    embeddings,
    info,
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
        429: "The queue is full; Retry-After says how many seconds to wait.",
        503: "The server is shutting down.",
    }.items()
}


def create_app(worker: EngineThread, settings: ServerSettings) -> FastAPI:
    """The application over a worker that has loaded its model; `app.state.service` is its state.

    Raises:
        LcspecError: the model could not be loaded, or its chat template cannot be used.
    """
    service = Service(worker, settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="lcspec",
        version=__version__,
        description="Local GGUF inference with speculative decoding, behind the OpenAI API.",
        lifespan=lifespan,
        docs_url=None,  # the page would load scripts from elsewhere
        redoc_url=None,
        responses={status: dict(text) for status, text in ERRORS.items()},
    )
    app.state.service = service
    for module in (chat, completions, responses, anthropic, ollama, ollama_info, native, embeddings, rerank, info, web):
        app.include_router(module.router)
    install_handlers(app)
    paths = frozenset(describe(app)["paths"])
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
            expose_headers=[HEADER, "retry-after"],
            allow_private_network=True,  # a page of the internet asks whether it may call this machine
        )
    if settings.hosts:
        app.add_middleware(HostCheck, names=settings.hosts)
    app.add_middleware(Journal, metrics=service.metrics, paths=paths)
    return app


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, without the 422 that the framework would answer and this server does not."""
    document = app.openapi()  # made once and kept by the application
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document.get("components", {}).get("schemas", {}).pop(name, None)
    return document

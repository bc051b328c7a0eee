"""What Ollama's clients ask before they talk: which models there are, and what they can do."""

from __future__ import annotations

import datetime
import hashlib
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from lcspec.server.schemas_ollama import OllamaShowBody
from lcspec.server.service import Service
from lcspec.server.unknown import model_and_rest

router = APIRouter()
# The version of Ollama's API that is spoken here; some clients ask for a least one.
VERSION = "0.13.0"
FOR_EVER = "2318-01-01T00:00:00Z"


def _details(service: Service) -> dict[str, Any]:
    header = service.session.model.header
    n = header.n_params
    size = f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.0f}M"
    return {
        "parent_model": "",
        "format": "gguf",
        "family": header.architecture,
        "families": [header.architecture],
        "parameter_size": size,
        "quantization_level": header.quantization,
    }


def _entry(service: Service) -> dict[str, Any]:
    path, name = service.session.model.options.path, service.settings.models[0]
    changed = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc)
    return {
        "name": name,
        "model": name,
        "modified_at": changed.isoformat().replace("+00:00", "Z"),
        "size": service.session.model.header.file_size,
        "digest": hashlib.sha256(f"{path}{path.stat().st_mtime_ns}".encode()).hexdigest(),
        "details": _details(service),
    }


@router.get("/api/version", summary="The version of Ollama's API")
async def version() -> Response:
    """What clients compare with what they need."""
    return JSONResponse({"version": VERSION})


@router.get("/api/tags", summary="The models (Ollama's API)")
async def tags(http: Request) -> Response:
    """The loaded model."""
    return JSONResponse({"models": [_entry(http.app.state.service)]})


@router.get("/api/ps", summary="The loaded models (Ollama's API)")
async def ps(http: Request) -> Response:
    """The loaded model; it stays."""
    service: Service = http.app.state.service
    entry = _entry(service) | {"expires_at": FOR_EVER, "size_vram": 0, "context_length": service.n_ctx}
    return JSONResponse({"models": [entry]})


@router.post("/api/show", summary="What a model can do (Ollama's API)")
async def show(body: OllamaShowBody, http: Request) -> Response:
    """Architecture, template, capabilities."""
    service: Service = http.app.state.service
    model_and_rest(body, http, body.model or body.name)
    header, text = service.session.model.header, service.template.text
    capabilities = ["completion"] if service.session.engine.context.memory is not None else ["embedding"]
    if "completion" in capabilities:
        capabilities.append("tools")
        if service.vocab.fill_in_middle is not None:
            capabilities.append("insert")
        if "enable_thinking" in text or "<think>" in text:
            capabilities.append("thinking")
    info = {k: v for k, v in header.metadata.items() if not k.startswith("tokenizer.chat_template")}
    info |= {f"{header.architecture}.context_length": service.n_ctx, "general.parameter_count": header.n_params}
    return JSONResponse(
        {
            "modelfile": f"FROM {header.path.name}\n",
            "parameters": f"num_ctx {service.n_ctx}",
            "template": text,
            "details": _details(service),
            "model_info": info,
            "capabilities": capabilities,
        }
    )

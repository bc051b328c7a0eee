"""What Ollama's clients ask before they talk: which models there are, and what they can do."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import time
from typing import Any, Mapping

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from lcspec.modelfiles.modelfile import ModelHeader, read_header
from lcspec.modelfiles.pairing import reads_whole
from lcspec.server.info import SCAN_SECONDS
from lcspec.server.model_entry import Entry
from lcspec.server.models import Models
from lcspec.server.schemas_answers import OllamaModels, OllamaShown, OllamaVersion, answered
from lcspec.server.schemas_ollama import OllamaShowBody
from lcspec.server.unknown import chosen

router = APIRouter()
# The version of Ollama's API that is spoken here; some clients ask for a least one.
VERSION = "0.13.0"
FOR_EVER = "2318-01-01T00:00:00Z"


def _details(entry: Entry) -> dict[str, Any]:
    """Of a loaded model from its header, of another from what the library knows."""
    if entry.service is not None:
        header = entry.service.header
        family, n, quantization = header.architecture, header.n_params, header.quantization
    elif entry.about is not None:
        family, n, quantization = entry.about.architecture, entry.about.n_params, entry.about.quantization
    else:
        family, n, quantization = "", 0, ""
    size = f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.0f}M"
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": size,
        "quantization_level": quantization,
    }


def written(moment: datetime.datetime) -> str:
    """As this API writes it."""
    return moment.isoformat().replace("+00:00", "Z")


def _entry(entry: Entry) -> dict[str, Any]:
    path = entry.path
    try:
        changed, stamp = path.stat().st_mtime, path.stat().st_mtime_ns
    except OSError:  # it is gone
        changed, stamp = 0.0, 0
    if entry.service is not None:
        size = entry.service.header.file_size
    else:
        size = entry.about.size if entry.about is not None else 0
    return {
        "name": entry.name,
        "model": entry.name,
        "modified_at": written(datetime.datetime.fromtimestamp(changed, datetime.timezone.utc)),
        "size": size,
        "digest": hashlib.sha256(f"{path}{stamp}".encode()).hexdigest(),
        "details": _details(entry),
    }


@router.head("/api/version", include_in_schema=False)
@router.get("/api/version", summary="The version of Ollama's API", responses=answered(OllamaVersion))
async def version() -> Response:
    """What clients compare with what they need."""
    return JSONResponse({"version": VERSION})


@router.head("/api/tags", include_in_schema=False)
@router.get("/api/tags", summary="The models (Ollama's API)", responses=answered(OllamaModels))
async def tags(http: Request) -> Response:
    """Every model, loaded or not."""
    models: Models = http.app.state.models
    await models.rescan(SCAN_SECONDS)
    return JSONResponse({"models": [_entry(entry) for entry in models.entries]})


@router.get("/api/ps", summary="The loaded models (Ollama's API)", responses=answered(OllamaModels))
async def ps(http: Request) -> Response:
    """The loaded models, and when each would be unloaded if nobody used it any more."""
    models: Models = http.app.state.models
    limit, found = models.settings.idle_unload, []
    for entry in models.loaded:
        ends = FOR_EVER
        if limit and not entry.pinned and models.loader is not None:
            left = entry.used + limit - time.monotonic()
            moment = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=max(0.0, left))
            ends = written(moment)
        assert entry.service is not None
        more = {"expires_at": ends, "size_vram": 0, "context_length": entry.service.n_ctx}
        found.append(_entry(entry) | more)
    return JSONResponse({"models": found})


@router.post("/api/show", summary="What a model can do (Ollama's API)", responses=answered(OllamaShown))
async def show(body: OllamaShowBody, http: Request) -> Response:
    """Architecture, template, capabilities."""
    models: Models = http.app.state.models
    entry, _ = chosen(body, http, body.model or body.name)
    if entry.service is None and entry.about is not None:  # asking is no reason to load it
        return await asyncio.to_thread(_shown, entry)
    service = await models.use(entry, http)
    header, text = service.header, service.template.text
    capabilities = ["completion"] if service.facts.writes else ["embedding"]
    if "completion" in capabilities:
        capabilities.append("tools")
        if service.vocab.fill_in_middle is not None:
            capabilities.append("insert")
        if "enable_thinking" in text or "<think>" in text:
            capabilities.append("thinking")
    info = {k: v for k, v in header.metadata.items() if not k.startswith("tokenizer.chat_template")}
    info = named_info(header, info, service.n_ctx)
    return JSONResponse(
        {
            "modelfile": f"FROM {header.path.name}\n",
            "parameters": f"num_ctx {service.n_ctx}",
            "template": text,
            "details": _details(entry),
            "model_info": info,
            "capabilities": capabilities,
        }
    )


def named_info(header: ModelHeader, info: Mapping[str, Any], n_ctx: int) -> dict[str, Any]:
    """What the header says, with what clients rely on: a name to show, the context, the size."""
    own = {f"{header.architecture}.context_length": n_ctx, "general.parameter_count": header.n_params}
    return {"general.basename": header.name or header.path.stem, **info, **own}


def _shown(entry: Entry) -> Response:
    """What the header alone says."""
    header = read_header(entry.path)
    text = header.chat_template or ""
    capabilities = ["embedding"] if reads_whole(header.metadata) else ["completion", "tools"]
    if "enable_thinking" in text or "<think>" in text:
        capabilities.append("thinking")
    info = {k: v for k, v in header.metadata.items() if not k.startswith("tokenizer.")}
    info = named_info(header, info, header.context_length or 0)
    return JSONResponse(
        {
            "modelfile": f"FROM {header.path.name}\n",
            "parameters": "",
            "template": text,
            "details": _details(entry),
            "model_info": info,
            "capabilities": capabilities,
        }
    )

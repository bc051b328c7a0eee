"""Models, health, metrics, and the text tools: tokenize, detokenize, apply-template."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from lcspec.server import chat
from lcspec.server.errors import invalid
from lcspec.server.job import unless_gone
from lcspec.server.metrics import CONTENT_TYPE, Metrics, Page
from lcspec.server.model_entry import Entry
from lcspec.server.models import Models
from lcspec.server.schemas import DetokenizeBody, NamedBody, TokenizeBody
from lcspec.server.schemas_answers import (
    Detokenized,
    Done,
    Health,
    ModelObject,
    ModelObjects,
    Prompted,
    Tokenized,
    answered,
)
from lcspec.server.schemas_chat import TemplateBody
from lcspec.server.service import Service
from lcspec.server.unknown import chosen, named, not_found

router = APIRouter()
# A list of models is as old as this at most.
SCAN_SECONDS = 10.0


def _models(http: Request) -> Models:
    models: Models = http.app.state.models
    return models


@router.get("/health", summary="Whether it serves", responses=answered(Health))
@router.get("/v1/health", include_in_schema=False)
@router.head("/health", include_in_schema=False)
@router.head("/v1/health", include_in_schema=False)
async def health(http: Request) -> Response:
    """200 while it serves; 503 while it shuts down, after the engine has failed, or while it is started again."""
    models = _models(http)
    services = [entry.service for entry in models.loaded if entry.service is not None]
    away = [service.worker.life.away for service in services]
    status = "ok" if models.alive and not models.draining else "shutting_down" if models.alive else "failed"
    if status == "ok" and away and None not in away:  # others may be loaded beside those that are away
        status = "restarting" if models.loader is None else status
    found: dict[str, Any] = {"status": status, "slots": sum(s.slots for s in services)}
    found["running"] = sum(s.capacity.running for s in services)
    found["waiting"] = models.at_hand - found["running"]
    if status == "failed":
        found["error"] = str(models.only.worker.error or "the engine has stopped")
    if status == "restarting":
        found["error"] = str(away[0])
    if any(service.worker.life.restarts for service in services):
        found["restarts"] = sum(service.worker.life.restarts for service in services)
        found["last_restart"] = next(s.worker.life.last for s in reversed(services) if s.worker.life.restarts)
    if models.loader is not None:
        found["models"] = {entry.name: _state(entry) for entry in models.entries if entry.state != "unloaded"}
    return JSONResponse(found, 200 if status == "ok" else 503)


@router.get("/metrics", summary="Prometheus metrics", response_class=PlainTextResponse)
async def metrics(http: Request) -> Response:
    """Counters, gauges and histograms for Prometheus."""
    models = _models(http)
    found: dict[str, Metrics] = {}
    for entry in models.loaded:
        service = entry.service
        if service is None:
            continue
        if service.worker.alive and service.worker.life.away is None:
            await service.renew_totals()
        found[entry.name] = service.metrics
    page = Page(models.http, found, labelled=models.loader is not None)
    return PlainTextResponse(page.text(), media_type=CONTENT_TYPE)


def _state(entry: Entry) -> str:
    """Of a model: `restarting` while its engine's process is started again."""
    away = entry.service is not None and entry.service.worker.life.away is not None
    return "restarting" if away and entry.state == "loaded" else entry.state


def _model(entry: Entry, name: str) -> dict[str, Any]:
    service, about = entry.service, entry.about
    meta: dict[str, Any] = {"aliases": list(entry.names[1:])}
    if about is not None:
        meta |= {"n_ctx_train": about.context, "n_vocab": about.n_vocab, "n_params": about.n_params, "size": about.size}
        meta |= {"architecture": about.architecture, "quantization": about.quantization}
    if service is not None:
        facts, header = service.facts, service.header
        meta |= {
            "n_ctx": service.n_ctx,
            "n_ctx_train": facts.n_ctx_train,
            "n_vocab": service.vocab.n_tokens,
            "n_embd": facts.n_embd,
            "n_params": facts.n_params,
            "size": header.file_size,
            "architecture": header.architecture,
            "quantization": header.quantization,
            "drafters": service.draft.drafters,
            "slots": service.slots,
        }
    status: dict[str, Any] = {"value": _state(entry), "pinned": entry.pinned}
    if entry.state == "loading":
        status["progress"] = round(entry.progress, 3)
    if entry.state == "failed":
        status["failed"] = True  # as llama-server says it
    if entry.error is not None:
        status["error"] = entry.error
    created = service.created if service is not None else 0
    return {"id": name, "object": "model", "created": created, "owned_by": "lcspec", "status": status, "meta": meta}


@router.get("/v1/models", summary="The models", responses=answered(ModelObjects))
@router.get("/models", include_in_schema=False)
async def models(http: Request) -> Response:
    """Every model with its status; other names of it are in `meta.aliases`."""
    models = _models(http)
    await models.rescan(SCAN_SECONDS)
    return JSONResponse({"object": "list", "data": [_model(entry, entry.name) for entry in models.entries]})


@router.get("/v1/models/{name:path}", summary="One model", responses=answered(ModelObject))
@router.get("/models/{name:path}", include_in_schema=False)
async def model(name: str, http: Request) -> Response:
    """A model and its status."""
    entry = named(_models(http), name)
    if entry is None:
        raise not_found(_models(http), name)
    return JSONResponse(_model(entry, name))


@router.post("/models/load", summary="Load a model (llama-server's API)", responses=answered(Done))
async def load_model(body: NamedBody, http: Request) -> Response:
    """Load a model, as a request for it would; the answer comes when it is there."""
    entry = named(_models(http), body.model)
    if entry is None:
        raise not_found(_models(http), body.model)
    await unless_gone(http, _models(http).use(entry, http))
    return JSONResponse({"success": True})


@router.post("/models/unload", summary="Unload a model (llama-server's API)", responses=answered(Done))
async def unload_model(body: NamedBody, http: Request) -> Response:
    """Unload a model once it has finished what it was given."""
    entry = named(_models(http), body.model)
    if entry is None:
        raise not_found(_models(http), body.model)
    if entry.pinned or _models(http).loader is None:
        raise invalid(f"{entry.name} is always loaded: start the server without pinning it", "model")
    await _models(http).drop(entry)
    return JSONResponse({"success": True})


async def _service(body: TokenizeBody | DetokenizeBody | TemplateBody, http: Request) -> Service:
    entry, _ = chosen(body, http, body.model)
    return await unless_gone(http, _models(http).use(entry, http))


@router.post("/tokenize", summary="Text to token ids", responses=answered(Tokenized))
async def tokenize(body: TokenizeBody, http: Request) -> Response:
    """Token ids of a text, or of texts and token ids that follow each other."""
    service = await _service(body, http)
    ids = await service.in_thread(
        service.mixed_ids,
        body.content if isinstance(body.content, list) else [body.content],
        special=bool(body.add_special),
        parse_special=body.parse_special is not False,
    )
    if not body.with_pieces:
        return JSONResponse({"tokens": ids})
    return JSONResponse({"tokens": [{"id": t, "piece": _shown(service.vocab.piece(t, special=True))} for t in ids]})


def _shown(piece: bytes) -> str | list[int]:
    """A token's text; its bytes where they are a part of a character, as llama-server gives them."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


@router.post("/detokenize", summary="Token ids to text", responses=answered(Detokenized))
async def detokenize(body: DetokenizeBody, http: Request) -> Response:
    """The text of token ids."""
    service = await _service(body, http)
    ids = service.check_ids(body.tokens)
    text = await service.in_thread(service.vocab.text, list(ids), special=True)
    return JSONResponse({"content": text})


@router.post("/apply-template", summary="Messages to a prompt", responses=answered(Prompted))
async def apply_template(body: TemplateBody, http: Request) -> Response:
    """The prompt that the model's template makes of messages, for a body as it is sent to be answered."""
    service = await _service(body, http)
    prompt = await service.in_thread(chat.prompt_of, service, body)
    return JSONResponse({"prompt": prompt})

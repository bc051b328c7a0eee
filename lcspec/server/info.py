"""Models, health, metrics, and the text tools: tokenize, detokenize, apply-template."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from lcspec.server.metrics import CONTENT_TYPE
from lcspec.server.parameters import check_model
from lcspec.server.prompts import chat_prompt, continues, template_messages, tool_use
from lcspec.server.schemas import DetokenizeBody, TokenizeBody
from lcspec.server.schemas_chat import TemplateBody
from lcspec.server.service import Service
from lcspec.server.unknown import model_and_rest

router = APIRouter()


def _service(http: Request) -> Service:
    service: Service = http.app.state.service
    return service


@router.get("/health", summary="Whether it serves")
@router.get("/v1/health", include_in_schema=False)
@router.head("/health", include_in_schema=False)
@router.head("/v1/health", include_in_schema=False)
async def health(http: Request) -> Response:
    """200 while it serves; 503 while it shuts down, or after the engine has failed."""
    service = _service(http)
    alive = service.worker.alive
    status = "ok" if alive and not service.draining else "shutting_down" if alive else "failed"
    capacity = service.capacity
    counts: dict[str, Any] = {"slots": service.slots, "running": capacity.running, "waiting": capacity.waiting}
    if status == "failed":
        counts["error"] = str(service.worker.error or "the engine has stopped")
    return JSONResponse({"status": status, **counts}, 200 if status == "ok" else 503)


@router.get("/metrics", summary="Prometheus metrics")
async def metrics(http: Request) -> Response:
    """Counters, gauges and histograms for Prometheus."""
    service = _service(http)
    if service.worker.alive:
        service.metrics.totals = await service.on_engine(lambda session: session.engine.totals())
    return PlainTextResponse(service.metrics.text(), media_type=CONTENT_TYPE)


def _model(service: Service, name: str) -> dict[str, Any]:
    traits = service.session.model.traits
    meta = {
        "n_ctx": service.n_ctx,
        "n_ctx_train": traits.n_ctx_train,
        "n_vocab": service.vocab.n_tokens,
        "n_embd": traits.n_embd,
        "size": service.session.model.options.path.stat().st_size,
        "aliases": list(service.settings.models[1:]),
        "drafters": service.draft.drafters,
        "slots": service.slots,
    }
    return {"id": name, "object": "model", "created": service.created, "owned_by": "lcspec", "meta": meta}


@router.get("/v1/models", summary="The models")
@router.get("/models", include_in_schema=False)
async def models(http: Request) -> Response:
    """The loaded model; its other names are in `meta.aliases`."""
    service = _service(http)
    return JSONResponse({"object": "list", "data": [_model(service, service.settings.models[0])]})


@router.get("/v1/models/{name:path}", summary="One model")
@router.get("/models/{name:path}", include_in_schema=False)
async def model(name: str, http: Request) -> Response:
    """The loaded model."""
    service = _service(http)
    return JSONResponse(_model(service, check_model(name, service.settings)))


@router.post("/tokenize", summary="Text to token ids")
async def tokenize(body: TokenizeBody, http: Request) -> Response:
    """Token ids of a text."""
    service = _service(http)
    model_and_rest(body, http, body.model)
    ids = await service.in_thread(
        service.vocab.tokenize,
        body.content,
        special=bool(body.add_special),
        parse_special=body.parse_special is not False,
    )
    if not body.with_pieces:
        return JSONResponse({"tokens": ids})
    pieces = [{"id": t, "piece": service.vocab.text([t], special=True)} for t in ids]
    return JSONResponse({"tokens": pieces})


@router.post("/detokenize", summary="Token ids to text")
async def detokenize(body: DetokenizeBody, http: Request) -> Response:
    """The text of token ids."""
    service = _service(http)
    model_and_rest(body, http, body.model)
    ids = service.check_ids(body.tokens)
    text = await service.in_thread(service.vocab.text, list(ids), special=True)
    return JSONResponse({"content": text})


@router.post("/apply-template", summary="Messages to a prompt")
async def apply_template(body: TemplateBody, http: Request) -> Response:
    """The prompt that the model's template makes of messages."""
    service = _service(http)
    model_and_rest(body, http, body.model)
    use = tool_use(body.tools, None)
    prompt = await service.in_thread(
        chat_prompt,
        service,
        template_messages(body.messages),
        use,
        body.chat_template_kwargs,
        body.add_generation_prompt is not False,
        continues(body.messages, body.continue_final_message, body.add_generation_prompt, use),
    )
    return JSONResponse({"prompt": prompt})

"""GET and POST /lora-adapters: llama-server's list of the adapters that were put on a model."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from lcspec.server.errors import ApiError, invalid
from lcspec.server.native import service_for
from lcspec.server.schemas import INT32, Strict
from lcspec.server.schemas_answers import Done, answered
from lcspec.server.schemas_native_answers import LoraAdapter
from lcspec.server.service import Service

router = APIRouter()


class LoraScale(Strict):
    """How much an adapter is to change."""

    id: Annotated[int, Field(ge=0, le=INT32)]
    scale: float


@router.get(
    "/lora-adapters", summary="Adapters of the model (llama-server's API)", responses=answered(list[LoraAdapter])
)
async def adapters(http: Request, model: str | None = None) -> Response:
    """The adapters of `--lora` with their scales; `model` names one of several."""
    return JSONResponse(_adapters(await service_for(http, model)))


@router.post("/lora-adapters", summary="Set their scales (llama-server's API)", responses=answered(Done))
async def scale(
    scales: Annotated[list[LoraScale], Body(max_length=1024)], http: Request, model: str | None = None
) -> Response:
    """Accept the scales that the adapters have; one that is left out is 0. Others need another start."""
    known = _adapters(await service_for(http, model))
    wanted = {item.id: item.scale for item in scales}
    for i in wanted:
        if i >= len(known):
            raise invalid(f"there is no adapter {i}: GET /lora-adapters lists them", "id")
    if any(wanted.get(adapter["id"], 0.0) != adapter["scale"] for adapter in known):
        message = "the scales of adapters cannot change while the server runs: start it with --lora FILE:SCALE"
        raise ApiError(501, message, code="not_supported")
    return JSONResponse({"success": True})


def _adapters(service: Service) -> list[dict[str, Any]]:
    loras = service.facts.options.lora
    return [{"id": i, "path": lora.path.name, "scale": lora.scale} for i, lora in enumerate(loras)]

"""POST /v1/embeddings, and llama-server's own /embedding."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any, Awaitable, Callable, Sequence, TypeVar

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from numpy.typing import NDArray

from lcspec.engine_host import embed
from lcspec.server.completions import split_prompts
from lcspec.server.errors import invalid
from lcspec.server.job import unless_gone
from lcspec.server.models import Models
from lcspec.server.schemas import EmbeddingBody, Strict
from lcspec.server.schemas_answers import Embeddings, answered
from lcspec.server.schemas_native import NativeEmbeddingBody
from lcspec.server.schemas_native_answers import NativeEmbedded
from lcspec.server.service import Service
from lcspec.server.unknown import chosen

Body = TypeVar("Body", bound=Strict)

router = APIRouter()
# Where llama.cpp scales a vector to when it is to fit numbers of 16 bits.
INT16 = 32760


@router.post("/v1/embeddings", summary="Embed texts", responses=answered(Embeddings))
@router.post("/embeddings", include_in_schema=False)
async def embeddings(body: EmbeddingBody, http: Request) -> Response:
    """A vector of unit length for every text."""
    return await answer(body, body.model, http, embedded)


async def answer(
    body: Body, name: str | None, http: Request, make: Callable[[Service, Body, str], Awaitable[Response]]
) -> Response:
    """What `make` answers with the model of that name, within the server's capacity.

    Raises:
        ApiError: there is no such model, or no room.
    """
    models: Models = http.app.state.models
    entry, model = chosen(body, http, name)
    models.check_open()
    service = await unless_gone(http, models.use(entry, http))
    service.check_open()
    service.capacity.take(1)
    try:
        return await unless_gone(http, make(service, body, model))
    finally:
        service.capacity.give_back()


async def embedded(service: Service, body: EmbeddingBody, model: str) -> Response:
    """The answer to a body."""
    texts = await service.in_thread(_ids, service, body.input)
    async with service.embedding:  # its context holds one text at a time
        rows = await vectors(service, texts)
    data = [
        {"object": "embedding", "index": i, "embedding": _encoded(_shortened(row, body.dimensions), body)}
        for i, row in enumerate(rows)
    ]
    n = sum(map(len, texts))
    return JSONResponse(
        {"object": "list", "data": data, "model": model, "usage": {"prompt_tokens": n, "total_tokens": n}}
    )


@router.post("/embedding", summary="Embed texts (llama-server's API)", responses=answered(list[NativeEmbedded]))
async def native_embeddings(body: NativeEmbeddingBody, http: Request) -> Response:
    """A vector for every text, of the length that `embd_normalize` says."""
    return await answer(body, body.model, http, _native)


async def _native(service: Service, body: NativeEmbeddingBody, model: str) -> Response:
    given = body.content if body.content is not None else body.input
    if given is None or (body.content is not None and body.input is not None):
        raise invalid("give content or input: a text, token ids, or a list of them", "content")
    texts = await service.in_thread(_ids, service, given)
    power = 2 if body.embd_normalize is None else body.embd_normalize
    async with service.embedding:
        rows = await vectors(service, texts, unit=power >= 0)
    return JSONResponse([{"index": i, "embedding": [scaled(row, power).tolist()]} for i, row in enumerate(rows)])


def scaled(row: NDArray[np.float32], power: int) -> NDArray[np.float32]:
    """A vector of length 1 in the norm of that power; 0: its largest number is INT16, below: as it is."""
    exact = np.abs(row.astype(np.float64))
    largest = float(exact.max(initial=0.0))
    if power < 0 or not largest:
        return row
    length = largest / INT16
    if power:
        length = largest * float(((exact / largest) ** power).sum()) ** (1 / power)
    return (row / length).astype(np.float32)


async def vectors(service: Service, texts: list[Sequence[int]], unit: bool = True) -> NDArray[np.float32]:
    """Vectors float32 [n, n_embd], a decode at a time: running streams get their steps in between."""
    return await service.in_pieces(partial(embed, texts, unit=unit))


def _ids(service: Service, given: str | list[Any]) -> list[Sequence[int]]:
    texts: list[Sequence[int]] = []
    if given == []:
        raise invalid("there is no text to embed: the list is empty", "input")
    for text in split_prompts(given):
        if isinstance(text, str):
            service.check_length(text)
            texts.append(service.vocab.tokenize(text))
        else:
            texts.append(service.check_ids(text))
        if not texts[-1]:
            raise invalid("an empty text cannot be embedded", "input")
    return texts


def _shortened(row: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
    """The first dimensions, of unit length again, as the API does it (useful for models trained for that)."""
    if dimensions is None:
        return row
    if dimensions > row.size:
        raise invalid(f"this model's embeddings have {row.size} dimensions, not {dimensions}", "dimensions")
    part = row[:dimensions]
    norm = float(np.linalg.norm(part))
    return (part / norm if norm else part).astype(np.float32)


def _encoded(row: NDArray[np.float32], body: EmbeddingBody) -> Any:
    if body.encoding_format == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return row.tolist()

"""POST /v1/rerank: documents by how close their embeddings are to a query's."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from lcspec.server.embeddings import answer, vectors
from lcspec.server.errors import invalid
from lcspec.server.schemas import INT32, Echoed, Strict
from lcspec.server.schemas_answers import Ranking, answered
from lcspec.server.service import Service

router = APIRouter()


class Document(Echoed):
    """A text."""

    text: str


class RerankBody(Strict):
    """POST /v1/rerank."""

    model: str | None = None
    query: str
    documents: Annotated[list[str | Document], Field(min_length=1, max_length=2048)]
    top_n: Annotated[int, Field(ge=1, le=INT32)] | None = None
    return_documents: bool | None = None


@router.post("/v1/rerank", summary="Order documents by a query", responses=answered(Ranking))
@router.post("/rerank", include_in_schema=False)
@router.post("/v1/reranking", include_in_schema=False)
@router.post("/reranking", include_in_schema=False)
async def rerank(body: RerankBody, http: Request) -> Response:
    """Documents with their similarity to the query (-1 to 1), the most similar first."""
    return await answer(body, body.model, http, _ranked)


async def _ranked(service: Service, body: RerankBody, model: str) -> Response:
    texts = [d if isinstance(d, str) else d.text for d in body.documents]
    ids = await service.in_thread(_tokens, service, [body.query, *texts])
    async with service.embedding:  # its context holds one text at a time
        rows = await vectors(service, ids)
    scores = rows[1:] @ rows[0]
    order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))[: body.top_n]
    results: list[dict[str, Any]] = []
    for i in order:
        entry: dict[str, Any] = {"index": i, "relevance_score": float(scores[i])}
        if body.return_documents:
            entry["document"] = {"text": texts[i]}
        results.append(entry)
    n = sum(map(len, ids))
    usage = {"prompt_tokens": n, "total_tokens": n}
    return JSONResponse({"object": "list", "model": model, "results": results, "usage": usage})


def _tokens(service: Service, texts: list[str]) -> list[Any]:
    out = []
    for i, text in enumerate(texts):
        service.check_length(text)
        out.append(service.vocab.tokenize(text))
        if not out[-1]:
            name = f"documents[{i - 1}]" if i else "query"
            raise invalid(f"{name}: an empty text cannot be compared", name)
    return out

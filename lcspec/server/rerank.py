"""POST /v1/rerank: documents by a reranker's scores, or by how close their embeddings are to a query's."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from lcspec.engine_host import rank
from lcspec.modelfiles.pairing import ranks
from lcspec.server.embeddings import answer, vectors
from lcspec.server.errors import invalid
from lcspec.server.schemas import INT32, Echoed, Strict
from lcspec.server.schemas_answers import Ranking, answered
from lcspec.server.schemas_native_answers import TeiRanked
from lcspec.server.service import Service

router = APIRouter()


class Document(Echoed):
    """A text."""

    text: str


class RerankBody(Strict):
    """POST /v1/rerank."""

    model: str | None = None
    query: str
    documents: Annotated[list[str | Document], Field(min_length=1, max_length=2048)] | None = None
    texts: Annotated[list[str], Field(min_length=1, max_length=2048)] | None = Field(
        default=None, description="The documents as Text Embeddings Inference names them; the answer is a list then."
    )
    top_n: Annotated[int, Field(ge=1, le=INT32)] | None = None
    return_documents: bool | None = None
    return_text: bool | None = Field(default=None, description="Beside `texts`: give each with its score.")


@router.post("/v1/rerank", summary="Order documents by a query", responses=answered(Ranking | list[TeiRanked]))
@router.post("/rerank", include_in_schema=False)
@router.post("/v1/reranking", include_in_schema=False)
@router.post("/reranking", include_in_schema=False)
async def rerank(body: RerankBody, http: Request) -> Response:
    """Documents with their score, the best first: a reranker's own, else the similarity to the query (-1 to 1)."""
    if (body.documents is None) == (body.texts is None):
        raise invalid("give documents, or texts for the answer of Text Embeddings Inference", "documents")
    return await answer(body, body.model, http, _ranked)


async def _ranked(service: Service, body: RerankBody, model: str) -> Response:
    texts = body.texts or [d if isinstance(d, str) else d.text for d in body.documents or ()]
    scores, n = await (_by_head if ranks(service.header.metadata) else _by_embedding)(service, body.query, texts)
    order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))[: body.top_n]
    if body.texts is not None:
        shown = [{"text": texts[i]} if body.return_text else {} for i in order]
        return JSONResponse([{"index": i, "score": scores[i]} | more for i, more in zip(order, shown)])
    results: list[dict[str, Any]] = []
    for i in order:
        entry: dict[str, Any] = {"index": i, "relevance_score": scores[i]}
        if body.return_documents:
            entry["document"] = {"text": texts[i]}
        results.append(entry)
    usage = {"prompt_tokens": n, "total_tokens": n}
    return JSONResponse({"object": "list", "model": model, "results": results, "usage": usage})


async def _by_head(service: Service, query: str, texts: list[str]) -> tuple[list[float], int]:
    """A reranker's scores, and how many tokens it read."""
    for text in (query, *texts):
        service.check_length(text)
    async with service.embedding:  # its context holds one pair at a time
        scores, counts = await service.in_pieces(partial(rank, query, texts))
    return scores, sum(counts)


async def _by_embedding(service: Service, query: str, texts: list[str]) -> tuple[list[float], int]:
    """Similarities, and the tokens of all texts."""
    ids = await service.in_thread(_tokens, service, [query, *texts])
    async with service.embedding:  # its context holds one text at a time
        rows = await vectors(service, ids)
    return (rows[1:] @ rows[0]).tolist(), sum(map(len, ids))


def _tokens(service: Service, texts: list[str]) -> list[Any]:
    out = []
    for i, text in enumerate(texts):
        service.check_length(text)
        out.append(service.vocab.tokenize(text))
        if not out[-1]:
            name = f"documents[{i - 1}]" if i else "query"
            raise invalid(f"{name}: an empty text cannot be compared", name)
    return out

"""Log-probabilities of the tokens of a given text, from another context over the loaded weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Generator, Sequence

from lcspec.engine.events import TokenInfo
from lcspec.errors import ContextOverflow, UnsupportedModel
from lcspec.llama.context import Context
from lcspec.llama.model import Model
from lcspec.sampling.parameters import log_sum_exp
from lcspec.sampling.top_k import largest

# Tokens in a decode: each has a row as long as the vocabulary.
CHUNK = 64


def score(
    model: Model, tokens: Sequence[int], limit: int, top: int, threads: int = 0
) -> Generator[list[TokenInfo] | None, None, None]:
    """Evaluate `tokens`: yields None after every decode but the last, then every token's log-probability.

    Args:
        model: the loaded model.
        tokens: token ids; the first follows nothing, so it has no log-probability.
        limit: the most tokens of a text.
        top: how many of the most probable tokens to return with each.
        threads: CPU threads; 0 = the physical cores this process may use.

    Raises:
        ContextOverflow: there are too many tokens.
        UnsupportedModel: the model generates no text.
        DecodeError: the library failed.
    """
    if len(tokens) > limit:
        raise ContextOverflow(f"the prompt has {len(tokens)} tokens and the context holds {limit}: shorten it")
    options = replace(
        model.options, ctx=len(tokens), slots=1, threads=threads, batch=CHUNK, max_width=CHUNK, embeddings=False
    )
    infos = [TokenInfo(tokens[0])]
    with Context(model, options) as context:
        if not context.memory.exists:
            raise UnsupportedModel(f"{model.options.path.name} makes embeddings and gives no log-probabilities")
        for start in range(0, len(tokens), CHUNK):
            if start:
                yield None
            context.batch.clear()
            piece = tokens[start : start + CHUNK]
            for i, token in enumerate(piece, start):
                context.batch.add(token, i, (0,), logits=True)
            context.decode()
            rows = context.logits()
            for row, following in zip(rows, tokens[start + 1 : start + 1 + len(piece)]):
                total = log_sum_exp(row)
                ranked = tuple((t, float(row[t]) - total) for t in largest(row, top).tolist()) if top else ()
                infos.append(TokenInfo(following, None, float(row[following]) - total, ranked))
    yield infos

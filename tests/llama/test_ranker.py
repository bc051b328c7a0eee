"""Cross-encoders: the scores are the library's own, for pairs as llama.cpp makes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp as ll
import numpy as np
import pytest

from lcspec.errors import ContextOverflow, UnsupportedModel
from lcspec.llama.embedder import CHUNK
from lcspec.session import Session, open_session
from tests import tiny_gguf as tiny
from tests.llama.pooled import pooled
from tests.running import options
from tests.tiny_families import write_family
from tests.tiny_layers import Net

pytestmark = pytest.mark.model

QUERY = "who walks"
DOCUMENTS = ["the cat", "a dog and a bird", "x", "who walks?"]
PAIRED = {
    "tokenizer.ggml.seperator_token_id": 5,  # the key is spelled so
    "tokenizer.ggml.add_sep_token": True,
    "tokenizer.ggml.add_eos_token": True,
}


def ranked(session: Session, query: str, documents: Sequence[str]) -> tuple[list[float], list[int]]:
    found = [found for found in session.rank_in_pieces(query, documents) if found is not None]
    assert len(found) == 1
    return found[0]


def of_the_library(session: Session, ids: Sequence[int]) -> float:
    """What llama.cpp gives for a pair that it sees at once."""
    return float(pooled(session, ids, ll.LLAMA_POOLING_TYPE_RANK, 1)[0])


@pytest.mark.parametrize("keys", [{}, PAIRED], ids=["nothing between", "with separators"])
def test_an_encoder_scores_as_the_library_does(tmp_path: Path, keys: dict[str, Any]) -> None:
    with open_session(options(tiny.write_bert(tmp_path / "rank.gguf", pooling=4, **keys))) as session:
        vocab = session.model.vocab
        begin = [vocab.bos] if vocab.add_bos else []
        end, between = ([vocab.eos], [vocab.eos, 5]) if keys else ([], [])
        pairs = [
            [*begin, *vocab.tokenize(QUERY, special=False), *between, *vocab.tokenize(text, special=False), *end]
            for text in DOCUMENTS
        ]
        scores, counts = ranked(session, QUERY, DOCUMENTS)
        assert counts == [len(pair) for pair in pairs]
        assert scores == pytest.approx([of_the_library(session, pair) for pair in pairs], abs=1e-5)
        assert len(set(scores)) == len(scores) and np.std(scores) > 1e-3
        assert ranked(session, QUERY, DOCUMENTS[::-1])[0] == scores[::-1]  # one leaves nothing behind for the next
        with pytest.raises(ContextOverflow, match="split the document"):
            ranked(session, QUERY, ["x" * 200])
        with pytest.raises(UnsupportedModel, match="ranks texts"):
            session.embed(["a"])


def with_head(net: Net) -> None:
    net.matrix("cls.output", 2, 64, gain=3.0)


def test_one_that_reads_on_and_has_a_template(tmp_path: Path) -> None:
    template = "Judge: {query} <|im_end|>{document}{query}: yes or no?"
    keys = {
        "pooling_type": 4,
        "classifier.output_labels": ["yes", "no"],
        "tokenizer.chat_template.rerank": template,
    }
    path = write_family("qwen3", tmp_path / "rank.gguf", change=with_head, **keys)
    with open_session(options(path)) as session:
        documents = ["the {query} cat", "a dog and a bird walk along the road. " * 4]
        texts = [template.replace("{document}", "\0").replace("{query}", QUERY).replace("\0", d) for d in documents]
        pairs = [session.model.vocab.tokenize(text, special=False) for text in texts]
        assert len(pairs[1]) > 2 * CHUNK  # so it came in pieces
        scores, counts = ranked(session, QUERY, documents)
        assert counts == [len(pair) for pair in pairs]
        assert scores == pytest.approx([of_the_library(session, pair) for pair in pairs], abs=1e-4)
        assert all(0 < score < 1 for score in scores)


def test_an_ordinary_model_does_not_rank(tiny_session: Session) -> None:
    with pytest.raises(UnsupportedModel, match="use a reranker"):
        ranked(tiny_session, QUERY, DOCUMENTS)

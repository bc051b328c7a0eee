"""Embeddings: the pooled vectors are the library's own, long texts come in pieces, encoders embed and do not write."""

from __future__ import annotations

from pathlib import Path

import llama_cpp as ll
import numpy as np
import pytest

from lcspec.errors import ContextOverflow, UnsupportedModel, UsageError
from lcspec.llama.embedder import CHUNK
from lcspec.session import Session, open_session
from tests import tiny_gguf as tiny
from tests.llama.pooled import pooled
from tests.running import answer, options, request
from tests.tiny_families import FAMILIES, write_family
from tests.tiny_layers import SHAPE, Net

pytestmark = pytest.mark.model

TEXTS = ["the cat", "a dog and a bird walk along the road", "x", "once upon a time there was a house. " * 8]


def of_the_library(session: Session, text: str, pooling: int) -> np.ndarray:
    """What llama.cpp's own pooling gives for a text that it sees at once."""
    vector = pooled(session, session.model.vocab.tokenize(text), pooling, session.model.traits.n_embd)
    return vector / np.linalg.norm(vector)


def test_an_ordinary_model_gives_the_mean_of_its_tokens(tiny_session: Session) -> None:
    vectors, counts = tiny_session.embed(TEXTS)
    assert vectors.dtype == np.float32 and vectors.shape == (len(TEXTS), tiny_session.model.traits.n_embd)
    assert counts == [len(tiny_session.model.vocab.tokenize(text)) for text in TEXTS]
    assert max(counts) > 3 * CHUNK  # so one of them came in pieces
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    for text, vector in zip(TEXTS, vectors):
        assert vector @ of_the_library(tiny_session, text, ll.LLAMA_POOLING_TYPE_MEAN) > 1 - 1e-4


def test_generation_and_embeddings_leave_each_other_alone(tiny_session: Session) -> None:
    prompt = tiny_session.prompt_ids("the cat and the ")
    plain = answer(tiny_session.engine, request(prompt, "off", 20)).ids
    events = tiny_session.engine.run(request(prompt, "off", 20))
    first = [next(events) for _ in range(4)]
    a, _ = tiny_session.embed(TEXTS[:2])
    rest = [*first, *events]
    assert [t.id for e in rest for t in getattr(e, "tokens", ())] == plain
    b, _ = tiny_session.embed(TEXTS[:2])
    assert np.array_equal(a, b)


def test_what_cannot_be_embedded_is_refused(tiny_session: Session) -> None:
    with pytest.raises(ContextOverflow, match="512"):
        tiny_session.embed(["fine", "too long " * 300])
    vectors, counts = tiny_session.embed([])
    assert vectors.shape == (0, tiny_session.model.traits.n_embd) and counts == []
    if not tiny_session.model.vocab.tokenize(""):
        with pytest.raises(UsageError, match="text 1 is empty"):
            tiny_session.embed(["a", ""])


@pytest.mark.parametrize(("pooling", "name"), [(1, "mean"), (2, "first"), (3, "last")])
def test_encoders_pool_as_their_file_says(folder: Path, pooling: int, name: str) -> None:
    path = tiny.write_bert(folder / f"bert-{name}.gguf", pooling=pooling)
    with open_session(options(path)) as session:
        texts = TEXTS[:3]
        vectors, _ = session.embed(texts)
        for text, vector in zip(texts, vectors):
            assert vector @ of_the_library(session, text, pooling) > 1 - 1e-4
        with pytest.raises(ContextOverflow, match="64"):
            session.embed(["long " * 50])
        with pytest.raises(UnsupportedModel, match="embeddings"):
            session.engine.submit(request((5, 6), "off", 4))


@pytest.mark.parametrize("architecture", ["llama-embed", "qwen2"])
def test_encoders_that_the_library_gives_a_cache(folder: Path, architecture: str) -> None:
    """Every token of theirs sees the whole text, so they read it at once, and write none."""
    path = folder / f"{architecture}.gguf"
    if architecture == "qwen2":
        write_family("qwen2", path, **{"attention.causal": False, "pooling_type": 1})
    else:
        weights, family = Net(0), FAMILIES["llama"]
        metadata = {**SHAPE, "pooling_type": 1, **family.build(weights)}
        tiny._write(path, architecture, metadata, weights.tensors, vocab=family.vocab)
    with open_session(options(path)) as session:
        vectors, counts = session.embed(TEXTS)
        assert max(counts) > 3 * CHUNK
        for text, vector in zip(TEXTS, vectors):
            assert vector @ of_the_library(session, text, ll.LLAMA_POOLING_TYPE_MEAN) > 1 - 1e-4
        again, _ = session.embed(TEXTS[::-1])
        assert np.allclose(again[::-1], vectors, atol=1e-5), "nothing of another text is left"
        with pytest.raises(UnsupportedModel, match="generates no text"):
            session.engine.submit(request((5, 6), "off", 4))


def test_models_that_cannot(folder: Path, recurrent: Path) -> None:
    with (
        open_session(options(tiny.write_bert(folder / "rank.gguf", pooling=4))) as session,
        pytest.raises(UnsupportedModel, match="ranks"),
    ):
        session.embed(["a"])
    with open_session(options(recurrent)) as session, pytest.raises(UnsupportedModel, match="recurrent"):
        session.embed(["a"])


def test_texts_are_embedded_between_the_steps_of_a_stream(tiny_session: Session) -> None:
    engine = tiny_session.engine
    prompt = tiny_session.prompt_ids("the cat and the ")
    plain = answer(engine, request(prompt, "off", 30)).ids
    events = engine.run(request(prompt, "off", 30))
    ids, pieces = [], []
    for piece in tiny_session.embed_in_pieces(TEXTS):
        ids += [t.id for e in (next(events), next(events)) for t in getattr(e, "tokens", ())]
        pieces.append(piece)
    assert pieces[:-1] == [None] * (len(pieces) - 1) and pieces[-1] is not None
    vectors, counts = pieces[-1]
    assert len(pieces) == sum(-(-n // CHUNK) for n in counts)  # one decode each
    assert 0 < len(ids) < 30
    assert ids + [t.id for e in events for t in getattr(e, "tokens", ())] == plain
    assert np.array_equal(tiny_session.embed(TEXTS)[0], vectors)
    half = tiny_session.embed_in_pieces(TEXTS[3:])  # somebody goes away in the middle of a long text
    next(half)
    half.close()
    assert np.array_equal(tiny_session.embed(TEXTS)[0], vectors)

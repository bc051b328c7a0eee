"""A model that says what it is told to: which of its texts it recites follows from the latest marker in the prompt.

A text that a random model writes is never a tool call. This one is a `llama` of one layer whose weights are written by
hand, so that answers of any family come out of a real model, control tokens included, through any API:

- every piece of a text is a token of its own, and has a direction of its own in the embedding;
- attention looks at the marker with the highest number, wherever it stands, and adds the direction of its text;
- the head knows each piece by the piece before it and by the texts that it stands in; the first one by its text alone.

Greedy sampling then recites. A text ends with the end-of-text token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from tests import tiny_gguf as tiny

USER_DEFINED = int(gguf.TokenType.USER_DEFINED)
# What a piece earns for the piece before it, for its text, and the first one of a text in addition.
BEFORE, TEXT, FIRST = 1.2, 1.0, 0.5
END = 0.5  # the end-of-text token for its text
LOOK = 2.0  # how much more a marker draws attention than the one before it
SURE = 10.0


def marker(n: int) -> str:
    """What a prompt says to have text `n` recited."""
    return f"(text {n:02d})"


def pieces(text: str, controls: Sequence[str], own: str) -> list[tuple[str, bool]]:
    """A text cut at its control tokens: pieces, and whether each is such a token.

    Between two of them must be something that no other text has (`own` is in it), so that each piece says what follows;
    a control token that comes too early, or again, is part of the piece around it.
    """
    out: list[tuple[str, bool]] = []
    said, at = "", 0
    seen = set()
    while at < len(text):
        found = next((c for c in sorted(controls, key=len, reverse=True) if text.startswith(c, at)), None)
        if found is not None and found not in seen and (own in said or (not said and not out)):
            out += [(said, False)] if said else []
            out.append((found, True))
            seen.add(found)
            said = ""
        else:
            said += found or text[at]
        at += len(found or text[at])
    if own in said or (said and not out):
        return [*out, (said, False)]
    # The end is not its own: the last control tokens are no tokens then.
    while said and out and own not in said:
        said = out.pop()[0] + said
    return [*out, (said, False)] if said else out


def write_reciter(
    path: Path,
    texts: Sequence[Sequence[tuple[str, bool]]],
    *,
    chat_template: str,
    controls: Sequence[str] = (),
    n_ctx: int = 16384,
) -> Path:
    """A model of these texts, each in pieces (see `pieces`). Its vocabulary has all of `controls`, used or not: which
    tokens end an answer follows from which there are."""
    base = tiny.byte_bpe_vocab()
    known = dict.fromkeys(controls, True) | {text: control for parts in texts for text, control in parts}
    names = [*known, *(marker(n) for n in range(len(texts)))]
    types = [tiny.CONTROL if known.get(name) else USER_DEFINED for name in names]
    vocab = replace(base, tokens=(*base.tokens, *names), types=(*base.types, *types))
    place = {name: len(base) + i for i, name in enumerate(names)}
    n, m = len(texts), len(known)
    # Directions: what all tokens share, markers, texts, pieces.
    look, first_marker, first_text, first_piece = 0, 1, 1 + n, 1 + 2 * n
    width = -(-(first_piece + m) // 64) * 64
    shape = (width, width)
    embedding, head = np.zeros((len(vocab), width)), np.zeros((len(vocab), width))
    q, k, v, out = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape)
    embedding[:, look] = 1
    slow = width - 2  # the pair of directions that rotates least
    q[slow, look] = 1
    for i in range(n):
        embedding[place[marker(i)], first_marker + i] = 1
        k[slow, first_marker + i] = LOOK * (i + 1)
        v[i, first_marker + i] = (2 / width) ** 0.5
        out[first_text + i, i] = 1
    direction = {name: first_piece + i for i, name in enumerate(known)}
    for name, i in direction.items():
        embedding[place[name], i] = 1
    assert base.eos is not None
    for i, parts in enumerate(texts):
        ids = [place[name] for name, _ in parts]
        assert len(set(ids)) == len(ids), f"a piece comes twice in text {i}"
        head[ids[0], first_text + i] += FIRST
        for token in ids:
            head[token, first_text + i] += TEXT
        head[base.eos, first_text + i] += END
        for (name, _), token in zip(parts, [*ids[1:], base.eos]):
            head[token, direction[name]] = BEFORE
    tensors = {
        "token_embd.weight": embedding,
        "blk.0.attn_norm.weight": np.ones(width),
        "blk.0.attn_q.weight": q,
        "blk.0.attn_k.weight": k,
        "blk.0.attn_v.weight": v,
        "blk.0.attn_output.weight": out,
        "blk.0.ffn_norm.weight": np.ones(width),
        "blk.0.ffn_gate.weight": np.zeros((32, width)),
        "blk.0.ffn_up.weight": np.zeros((32, width)),
        "blk.0.ffn_down.weight": np.zeros((width, 32)),
        "output_norm.weight": np.ones(width),
        "output.weight": SURE * head,
    }
    metadata = {
        "vocab_size": len(vocab),
        "context_length": n_ctx,
        "embedding_length": width,
        "block_count": 1,
        "feed_forward_length": 32,
        "attention.head_count": 1,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": width,
        "rope.freq_base": 1e30,
    }
    weights = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in tensors.items()}
    return tiny._write(path, "llama", metadata, weights, vocab=vocab, chat_template=chat_template)

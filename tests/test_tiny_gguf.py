"""The tiny models are what they say they are, in the real library.

Each model is examined in a process of its own, because some of these files make llama.cpp abort.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lcspec.errors import TokenizeError
from lcspec.modelfiles.modelfile import byte_coverage
from tests import tiny_gguf as tiny

pytestmark = pytest.mark.model

# Arguments: the model and a text. Prints one JSON object. Exit status 3: the library refused the model.
_EXAMINE = """
import ctypes, json, sys
import llama_cpp as ll
import numpy as np

silent = ll.llama_log_callback(lambda *args: None)
ll.llama_log_set(silent, ctypes.c_void_p(0))
ll.llama_backend_init()
path, text = sys.argv[1].encode(), sys.argv[2].encode()
model = ll.llama_model_load_from_file(path, ll.llama_model_default_params())
if not model:
    sys.exit(3)
vocab = ll.llama_model_get_vocab(model)
n_vocab = ll.llama_vocab_n_tokens(vocab)
facts = {
    "n_vocab": n_vocab,
    "n_swa": ll.llama_model_n_swa(model),
    "recurrent": ll.llama_model_is_recurrent(model),
    "hybrid": ll.llama_model_is_hybrid(model),
    "n_ctx_train": ll.llama_model_n_ctx_train(model),
    "template": (ll.llama_model_chat_template(model, None) or b"").decode(),
}
if text:
    ids = (ll.llama_token * 1000)()
    n = ll.llama_tokenize(vocab, text, len(text), ids, 1000, False, True)
    tokens = list(ids[:n])
else:
    tokens = [5, 9, 70, 33]
piece = ctypes.create_string_buffer(1000)
if text:
    n = ll.llama_detokenize(vocab, (ll.llama_token * len(tokens))(*tokens), len(tokens), piece, 1000, False, True)
    facts["text"] = piece.raw[:n].decode()

params = ll.llama_context_default_params()
params.n_ctx, params.n_batch, params.n_threads, params.n_threads_batch = 128, 128, 1, 1
context = ll.llama_init_from_model(model, params)
rows = []
for token in tokens[:6] + [7, 7]:
    batch = ll.llama_batch_get_one((ll.llama_token * 1)(token), 1)
    assert ll.llama_decode(context, batch) == 0
    rows.append(np.ctypeslib.as_array(ll.llama_get_logits_ith(context, -1), (n_vocab,)).copy())
logits = np.stack(rows)
facts["tokens"] = tokens
facts["finite"] = bool(np.isfinite(logits).all())
facts["std"] = logits.std(axis=1).tolist()
facts["argmax"] = logits.argmax(axis=1).tolist()
facts["last_two_differ"] = float(np.abs(logits[-1] - logits[-2]).max())
print(json.dumps(facts))
"""

TEXT = "Hello, world: é 漢字 🙂\n\ttab"


def run(path: Path, text: str = TEXT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _EXAMINE, str(path), text]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def examine(path: Path, text: str = TEXT) -> dict[str, Any]:
    result = run(path, text)
    assert result.returncode == 0, result.stderr
    facts: dict[str, Any] = json.loads(result.stdout)
    return facts


GOOD: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "llama": (tiny.write_llama, {}),
    "llama-spm": (tiny.write_llama, {"vocab": tiny.spm_vocab()}),
    "llama-q8_0": (tiny.write_llama, {"quant": "Q8_0"}),
    "llama-q4_0": (tiny.write_llama, {"quant": "Q4_0"}),
    "llama-f16-wide": (tiny.write_llama, {"quant": "F16", "width": 256, "n_ff": 512, "n_vocab": 300}),
    "sliding_window": (tiny.write_sliding_window, {}),
    "recurrent": (tiny.write_recurrent, {}),
    "hybrid": (tiny.write_hybrid, {}),
}


@pytest.mark.parametrize("kind", GOOD)
def test_model_loads_and_has_plausible_logits(kind: str, tmp_path: Path) -> None:
    write, options = GOOD[kind]
    facts = examine(write(tmp_path / "m.gguf", **options))
    assert facts["n_vocab"] == (300 if kind == "llama-f16-wide" else 288)
    assert facts["n_ctx_train"] == 512
    assert facts["finite"]
    assert all(1.5 < std < 4.0 for std in facts["std"]), facts["std"]
    assert len(set(facts["argmax"])) > 2, "the same token whatever the input"
    # The last two inputs are the same token: what differs comes from the context.
    assert facts["last_two_differ"] > 0.1
    assert facts["text"].lstrip(" ") == TEXT
    assert facts["n_swa"] == (16 if kind == "sliding_window" else 0)
    assert facts["recurrent"] is (kind == "recurrent")
    assert facts["hybrid"] is (kind == "hybrid")


def test_writers_are_deterministic(tmp_path: Path) -> None:
    for kind, (write, options) in GOOD.items():
        first = write(tmp_path / "a.gguf", **options).read_bytes()
        again = write(tmp_path / "b.gguf", **options).read_bytes()
        other = write(tmp_path / "c.gguf", seed=1, **options).read_bytes()
        assert first == again, kind
        assert first != other, kind


def test_chat_template_is_stored(tmp_path: Path) -> None:
    facts = examine(tiny.write_llama(tmp_path / "m.gguf", chat_template=tiny.CHATML_TEMPLATE))
    assert facts["template"] == tiny.CHATML_TEMPLATE


def test_noise_makes_a_draft_that_often_agrees(tmp_path: Path) -> None:
    def argmax(noise: float) -> list[int]:
        tokens: list[int] = examine(tiny.write_llama(tmp_path / "m.gguf", noise=noise))["argmax"]
        return tokens

    target = argmax(0.0)
    close = sum(a == b for a, b in zip(target, argmax(0.02), strict=True))
    far = sum(a == b for a, b in zip(target, argmax(1.0), strict=True))
    assert far < len(target) / 2 <= close


@pytest.mark.parametrize("make_vocab", [tiny.byte_bpe_vocab, tiny.spm_vocab])
def test_permuted_vocabulary_has_the_same_size_and_other_tokens(make_vocab: Callable[..., tiny.Vocab]) -> None:
    plain, permuted = make_vocab(), make_vocab(permutation=1)
    assert len(plain) == len(permuted) == 288
    assert plain.tokens != permuted.tokens
    assert sorted(plain.tokens) == sorted(permuted.tokens)
    assert len(set(plain.tokens)) == len(plain.tokens)


def test_permuted_vocabulary_tokenizes_differently(tmp_path: Path) -> None:
    plain = examine(tiny.write_llama(tmp_path / "a.gguf"))
    permuted = examine(tiny.write_llama(tmp_path / "b.gguf", vocab=tiny.byte_bpe_vocab(permutation=1)))
    assert plain["tokens"] != permuted["tokens"]
    assert plain["text"] == permuted["text"]


@pytest.mark.parametrize(
    "write",
    [tiny.write_without_tokenizer, tiny.write_truncated_data, tiny.write_truncated_header, tiny.write_not_gguf],
)
def test_the_library_refuses_bad_files(write: Callable[..., Path], tmp_path: Path) -> None:
    assert run(write(tmp_path / "m.gguf")).returncode == 3


def test_no_vocab_decodes_and_aborts_on_text(tmp_path: Path) -> None:
    path = tiny.write_no_vocab(tmp_path / "m.gguf")
    assert examine(path, "")["finite"]
    assert run(path, "a").returncode < 0  # killed by its own SIGABRT


def test_spm_without_bytes_aborts_only_on_text_that_needs_them(tmp_path: Path) -> None:
    path = tiny.write_spm_missing_bytes(tmp_path / "m.gguf")
    assert examine(path, "plain ASCII")["text"].lstrip(" ") == "plain ASCII"
    result = run(path, "caf\u00e9")
    assert result.returncode < 0
    assert "out_of_range" in result.stderr


def test_bpe_without_bytes_drops_text(tmp_path: Path) -> None:
    path = tiny.write_bpe_missing_bytes(tmp_path / "m.gguf")
    assert examine(path, "caf\u00e9!")["text"] == "caf!"


def test_duplicate_token_aborts_on_loading(tmp_path: Path) -> None:
    assert run(tiny.write_duplicate_token(tmp_path / "m.gguf")).returncode < 0


@pytest.mark.parametrize("write", [tiny.write_spm_missing_bytes, tiny.write_bpe_missing_bytes])
@pytest.mark.parametrize("text", ["plain", "two\nlines", "caf\u00e9", "\u6f22", "a\tb", "x y"])
def test_byte_coverage_refuses_exactly_what_the_library_cannot_take(
    write: Callable[..., Path], text: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "m.gguf", missing_bytes=(0x09, *range(0xC0, 0xE0)))
    result = run(path, text)
    survives = result.returncode == 0 and json.loads(result.stdout)["text"].lstrip(" ") == text
    try:
        byte_coverage(path).check(text)
        accepted = True
    except TokenizeError:
        accepted = False
    assert accepted == survives

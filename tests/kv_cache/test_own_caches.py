"""Texts with a cache of their own: models that need it, and what is copied from one to another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from lcspec.cli import cli
from lcspec.errors import DecodeError, ExactnessError
from lcspec.llama import Context, Model
from lcspec.llama.lib import log_lines
from lcspec.modelfiles.memory import fit_positions
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.own_caches import check_exact
from lcspec.session import open_session
from tests.running import answer, options, request, side_by_side
from tests.tiny_families import write_family
from tests.tiny_windows import write_gemma3

pytestmark = pytest.mark.model

TEXT = "the cat and the dog and the cat and the rat and the "


def read(context: Context, tokens: list[int], seq: int = 0, start: int = 0) -> NDArray[np.float32]:
    """Logits behind the last token, the first one being at position `start`."""
    context.batch.clear()
    for i, token in enumerate(tokens):
        context.batch.add(token, start + i, (seq,), logits=i == len(tokens) - 1)
    context.decode()
    return context.logits()[-1].copy()


@pytest.mark.parametrize("family", ["deepseek4", "minimax-m3", "qwen4exp"])
def test_slots_share_whole_texts_or_nothing(family: str, tmp_path: Path) -> None:
    """The library ends the process over a part of DeepSeek V4's, and of any text between two caches."""
    path = write_family(family, tmp_path / "m.gguf")
    with open_session(options(path, slots=2)) as session:
        engine, prompt = session.engine, session.prompt_ids(TEXT * 3)
        memory = engine.context.memory
        with pytest.raises(DecodeError, match="share a part"):
            memory.copy(0, 1, 0, 5)
        others = [*prompt[:100], 70, 71, 72]
        for turn in range(3):
            one, two = side_by_side(engine, [request(prompt, "off", 20), request(others, "off", 20)])
            assert one.error is two.error is None and (one.started.reused > 70) == (turn > 0)
        with open_session(options(path)) as alone:
            assert answer(alone.engine, request(others, "off", 20)).ids == two.ids


def test_a_model_that_chooses_blocks_of_cells_does_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_family("minimax-m3", tmp_path / "m.gguf")
    tokens = [60 + i * i % 37 for i in range(150)]
    for attention in ("library", "products"):
        made = options(path, kv_type="f16", attention=attention)
        with Model.load(made) as model, log_lines() as lines, Context(model, made) as context:
            found = read(context, tokens)
        assert not any("DENSE" in line for line in lines)
        with Model.load(made) as model, Context(model, replace(made, slots=3)) as context:
            np.testing.assert_allclose(read(context, tokens, seq=2), found, atol=0.01, rtol=0)
    wanted, note = fit_positions(made)
    assert wanted.streams and "m.gguf attends to blocks" in note and "\n" not in note
    with open_session(options(path, slots=2)) as session:
        assert session.notes == (note,) and f"lcspec: {note}" in capsys.readouterr().err
        engine, prompt = session.engine, session.prompt_ids(TEXT * 3)
        plain = answer(engine, request(prompt, "off", 20))
        trees = answer(engine, request(prompt, "ngram:branch=3:min_n=1:nodes=12", 20))
        told = answer(engine, request(prompt, "prediction", 20, prediction=tuple(plain.ids)))
        assert trees.ids == told.ids == plain.ids and told.finished.stats.accepted > 5
    info = json.loads(CliRunner().invoke(cli, ["inspect", str(path), "--json"]).output)
    assert (info["speculation"], info["trees"], info["rollback"], info["max_rollback"]) == ("chain", False, True, None)
    assert "chains (every text has a cache" in CliRunner().invoke(cli, ["inspect", str(path)]).output


def test_without_branches_only_rows_can_be_exact(tmp_path: Path) -> None:
    path = write_family("minimax-m3", tmp_path / "m.gguf")
    header, exact = read_header(path), options(path, exact=True, attention="library")
    check_exact(header, replace(exact, exact=False))
    check_exact(header, replace(exact, attention="fused_rows"))
    with pytest.raises(ExactnessError, match="m.gguf here: it needs --kv-type f16 and --gpu-layers 0"):
        check_exact(header, exact)


def test_a_request_that_insists_is_refused_where_nothing_can_be_certified(tmp_path: Path) -> None:
    with open_session(options(write_family("minimax-m3", tmp_path / "m.gguf"), kv_type="f32")) as session:
        prompt = session.prompt_ids(TEXT)
        with pytest.raises(ExactnessError, match="m.gguf with these cache types: it needs --kv-type f16"):
            answer(session.engine, request(prompt, "ngram", 4, exact=True))


def test_what_is_copied_is_copied_at_once(tmp_path: Path) -> None:
    """The library waits for the next decode, and until then states may be loaded over what it copies, or over it."""
    made = options(write_gemma3(tmp_path / "m.gguf"), slots=2, streams=True, kv_type="f32")
    tokens = [70 + i * i % 23 for i in range(60)]
    with Model.load(made) as model, Context(model, made) as context:
        memory = context.memory
        expected = read(context, [*tokens, 80])
        memory.clear()
        read(context, [90 + i % 5 for i in range(60)], seq=2)
        other = memory.state(2)
        read(context, tokens, seq=0)
        memory.copy_stream(0, 1)
        assert memory.set_state(0, other) and memory.end(1) == 60
        np.testing.assert_allclose(read(context, [80], seq=1, start=60), expected, atol=0.01, rtol=0)

"""Planes to roll a recurrent state back to: as many as may be drafted and as memory allows, and counted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from lcspec import session as sessions
from lcspec.cli import cli
from lcspec.config import ModelOptions, rollback_for
from lcspec.errors import ModelLoadError, UnsupportedModel
from lcspec.llama import Branching
from lcspec.llama.lib import C, log_lines
from lcspec.loading import model_options
from lcspec.modelfiles.kv_shape import state_shape
from lcspec.modelfiles.memory import Memory, check_memory, fit_rollback, needed
from lcspec.modelfiles.modelfile import read_header
from lcspec.profiles.step_cost import _key
from lcspec.session import open_session
from tests import tiny_gguf as tiny
from tests.running import answer, options, request, side_by_side
from tests.tiny_families import write_family
from tests.tiny_windows import write_qwen35

pytestmark = pytest.mark.model

STATEFUL: dict[str, Callable[[Path], Path]] = {
    "qwen35": write_qwen35,
    "lfm2": tiny.write_hybrid,
    "mamba": tiny.write_recurrent,
}
PLENTY = Memory(10**12, 10**12)


@pytest.mark.parametrize("family", STATEFUL)
def test_the_state_counted_is_the_state_kept(family: str, tmp_path: Path) -> None:
    path = STATEFUL[family](tmp_path / "m.gguf")
    shape = state_shape(read_header(path))
    assert shape is not None and (shape.token > 0) == (family != "mamba")
    with open_session(options(path)) as session:
        answer(session.engine, request(session.prompt_ids("abc"), "off", 4))
        cache = session.engine.prefix_cache.caches[0]
        told = C.llama_state_seq_get_size_ext(
            session.engine.context.handle, cache.main, C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        )
        assert 4 * shape.state <= told <= 4 * shape.state + 512  # the rest says what it is
    for slots, rollback, states in ((1, 0, 1), (3, 0, 3), (1, 16, 2)):
        made = options(path, slots=slots, rollback=rollback, planes=False)
        assert needed(read_header(path), made).states == states * 4 * shape.state


@pytest.mark.parametrize("family", ["qwen35", "lfm2", "mamba", "falcon-h1"])
def test_without_drafts_there_is_a_state_for_every_slot_and_no_more(family: str, tmp_path: Path) -> None:
    """What the library allocates, to the last cell; and the slots do not get into each other's way."""
    path = write_family(family, tmp_path / "m.gguf")
    made = options(path, ctx=256, slots=8, rollback=0, kv_type="f32")
    with log_lines() as lines, open_session(made) as session:
        context = session.engine.context
        assert (context.n_seq, context.memory.branching) == (8, Branching.NONE)
        prompts = [session.prompt_ids("the cat and the dog " * n) for n in range(1, 10)]
        together = side_by_side(session.engine, [request(prompt, "auto", 12, logprobs=0) for prompt in prompts])
    sizes = {
        kind: sum(float(n) for line in lines for n in re.findall(rf"{kind} buffer size =\s+([0-9.]+) MiB", line))
        * 2**20
        for kind in ("KV", "RS")
    }
    need = needed(read_header(path), made)
    assert sizes["RS"] == pytest.approx(need.states, abs=0.01 * 2**20) and need.states > 0
    assert sizes["KV"] == pytest.approx(need.kv_cache, abs=0.01 * 2**20)
    with open_session(options(path, ctx=256, kv_type="f32")) as session:
        for prompt, found in zip(prompts, together):
            alone = answer(session.engine, request(prompt, "off", 12, logprobs=0))
            assert found.error is None and len(found.bits) == 12
            for (a, said), (b, wanted) in zip(found.bits, alone.bits):
                assert said == pytest.approx(wanted, abs=0.01)
                if a != b:
                    break  # a near tie: from here on it is another text


def test_attention_alone_has_no_state(llama: Path) -> None:
    assert state_shape(read_header(llama)) is None
    assert needed(read_header(llama), options(llama)).states == 0


@pytest.mark.parametrize(
    "speculate, max_draft, planes",
    [("off", None, 0), ("none", None, 0), ("auto", None, 16), ("ngram", 4, 5), ("auto", 0, 0), ("ngram", 40, 16)],
)
def test_planes_follow_from_what_may_be_drafted(
    tmp_path: Path, speculate: str, max_draft: int | None, planes: int
) -> None:
    assert rollback_for(speculate, max_draft) == planes
    o = {"ctx": 256, "threads": 1, "gpu_layers": 0, "kv_type": "f16", "speculate": speculate, "max_draft": max_draft}
    path = write_qwen35(tmp_path / "m.gguf")
    with open_session(model_options(path, o, exact=False)) as session:
        context = session.engine.context
        assert context.memory.max_rollback == planes
        assert context.memory.branching is (Branching.CHAIN if planes else Branching.NONE)
        prompt = session.prompt_ids("abcabcabc")
        plain = answer(session.engine, request(prompt, "off", 12)).ids
        if planes:
            assert answer(session.engine, request(prompt, "ngram:min_n=1", 12)).ids == plain
        else:
            with pytest.raises(UnsupportedModel, match="--speculate auto"):
                answer(session.engine, request(prompt, "ngram", 4))


def test_the_cost_of_a_step_is_kept_for_each_number_of_planes(tmp_path: Path, llama: Path) -> None:
    keys = {}
    for path in (write_qwen35(tmp_path / "m.gguf"), llama):
        for planes in (4, 8):
            with open_session(options(path, rollback=planes)) as session:
                keys[path, planes] = _key(session.engine.context)
        assert (keys[path, 4] == keys[path, 8]) == (path == llama)


def test_planes_give_way_to_memory_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_qwen35(tmp_path / "m.gguf")
    wanted = options(path, rollback=16)
    bare = needed(read_header(path), replace(wanted, planes=False))
    assert needed(read_header(path), wanted).states == 17 * bare.states
    assert fit_rollback(wanted, memory=PLENTY) == (wanted, "")
    base = bare.kv_cache + bare.weights + bare.states
    some, none = (Memory(base + n * bare.states, base + n * bare.states) for n in (25, 3))
    found, note = fit_rollback(wanted, memory=some)
    assert found.rollback == 6 and "6 of 16" in note and "\n" not in note
    found, note = fit_rollback(wanted, memory=none)
    assert (found.rollback, found.planes) == (16, False) and "0 of 16" in note and "saved state" in note
    check_memory(found, memory=none)
    with pytest.raises(ModelLoadError, match="cannot fit"):
        check_memory(wanted, memory=none)

    monkeypatch.setattr("lcspec.modelfiles.memory.machine_memory", lambda: some)
    with sessions.open_session(wanted) as session:
        assert session.engine.context.memory.max_rollback == 6
        prompt = session.prompt_ids("abcabcabc")
        drafted = answer(session.engine, request(prompt, "ngram:min_n=1", 20))
        assert drafted.ids == answer(session.engine, request(prompt, "off", 20)).ids
    assert "keeps 6 of 16" in capsys.readouterr().err

    monkeypatch.setattr("lcspec.modelfiles.memory.machine_memory", lambda: none)
    with sessions.open_session(wanted) as session:
        context = session.engine.context
        assert (context.memory.max_rollback, context.memory.redecodes, context.memory.max_chain) == (0, True, 16)
        found_ids = answer(session.engine, request(prompt, "ngram:min_n=1", 20)).ids
        assert found_ids == drafted.ids


@pytest.mark.parametrize(("family", "chain"), [("qwen35", 15), ("mamba", 15), ("llama", None)])
def test_what_can_be_drafted_is_said(tmp_path: Path, family: str, chain: int | None) -> None:
    path = str(write_family(family, tmp_path / "m.gguf"))
    said = CliRunner().invoke(cli, ["inspect", path]).output
    assert json.loads(CliRunner().invoke(cli, ["inspect", path, "--json"]).output)["longest_chain"] == chain
    assert (f"chains of up to {chain} tokens" in said) == (chain is not None)


def test_a_negative_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="0 or more"):
        ModelOptions(tmp_path, rollback=-1)

"""Models that cannot speculate, be certified, or draft: every command says so, and none of them fails on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lcspec.errors import UnsupportedModel
from lcspec.llama import can_fuse_row_by_row
from lcspec.session import open_session
from tests import tiny_gguf as tiny
from tests.commands.test_command_line import fails, ok, run
from tests.running import ROUNDS_ALIKE, options
from tests.tiny_families import write_family

pytestmark = pytest.mark.model

EXACT = can_fuse_row_by_row() and ROUNDS_ALIKE

SHORT = ("--threads", "1", "--prompts", "2", "-n", "12")


@pytest.fixture(scope="module")
def bert(folder: Path) -> Path:
    """An encoder."""
    return tiny.write_bert(folder / "encoder.gguf")


@pytest.fixture(scope="module")
def qwen35(folder: Path) -> Path:
    """A hybrid whose state can be taken back by a few tokens."""
    return write_family("qwen35", folder / "qwen35.gguf")


def test_verify_a_recurrent_model(recurrent: Path) -> None:
    done = run("verify", recurrent, *SHORT)
    told = json.loads(run("verify", recurrent, *SHORT, "--json").stdout)
    assert "prompts with identical text" in done.stdout
    if EXACT:
        assert (done.returncode, done.stderr) == (0, "")
        assert "row by row every request of the single slot is exact" in done.stdout
        assert told["independent"] and told["widths"] == list(range(1, 33))
    else:
        assert (done.returncode, done.stderr) == (1, "")
        assert "--exact is not available for recurrent.gguf: it has a recurrent state" in done.stdout
        assert "recurrent state" in told["refused"]
        assert (told["classes"], told["widths"]) == ([], [])
    assert {row["strategy"] for row in told["texts"]} == {"ngram"}
    assert all(row["identical_exact"] == row["prompts"] == 2 for row in told["texts"]) or not EXACT


def test_verify_a_hybrid(qwen35: Path) -> None:
    exact = EXACT
    done = run("verify", qwen35, "--draft", qwen35, *SHORT, "--json")
    assert (done.returncode, done.stderr) == (0 if exact else 1, "")
    told = json.loads(done.stdout)
    assert ("refused" in told) is not exact
    assert {row["strategy"] for row in told["texts"]} == {"ngram", "model", "mtp"}
    assert all(row["prompts"] == 2 for row in told["texts"])
    assert all(row.get("identical_exact", 0) == 2 * exact for row in told["texts"])
    shown = run("verify", qwen35, *SHORT).stdout
    assert "prompts with identical text" in shown and ("--exact 2/2" in shown) is exact


def test_calibrate_a_model_whose_state_cannot_be_taken_back(recurrent: Path) -> None:
    """Saving and loading the state, and decoding again what was accepted, are counted."""
    told = json.loads(ok("calibrate", recurrent, "--threads", "1", "--ctx", "256", "--json").stdout)
    assert told["speculation"] == "chain"
    assert min(told["state_seconds"].values()) > 0
    shown = " ".join(told["conclusions"])
    assert "a step with drafts saves it first" in shown
    assert ("Speculation pays" in shown) == (told["break_even_acceptance"]["free_drafts"] is not None)
    assert "after a refusal what was accepted is decoded again" in ok("inspect", recurrent).stdout


def test_calibrate_a_hybrid_counts_no_chain_that_cannot_be_taken_back(qwen35: Path) -> None:
    told = json.loads(ok("calibrate", qwen35, "--threads", "1", "--ctx", "256", "--json").stdout)
    assert told["speculation"] == "chain"
    assert "break_even_acceptance" in told


@pytest.mark.parametrize("command", ["verify", "calibrate"])
def test_an_encoder_is_refused(bert: Path, command: str) -> None:
    assert "generates no text" in fails(1, command, bert, "--threads", "1")


def test_inspect_an_encoder(bert: Path) -> None:
    told = json.loads(ok("inspect", bert, "--json").stdout)
    assert (told["speculation"], told["trees"], told["rollback"], told["max_rollback"]) == ("none", False, False, 0)
    assert told["writes_text"] is False
    shown = ok("inspect", bert).stdout
    assert "generates no text" in shown and "trees and chains" not in shown


def test_inspect_names_the_head_inside_a_model(qwen35: Path, llama: Path) -> None:
    assert json.loads(ok("inspect", qwen35, "--json").stdout)["mtp_layers"] == 1
    assert "1 layer for multi-token prediction" in ok("inspect", qwen35).stdout
    assert json.loads(ok("inspect", llama, "--json").stdout)["mtp_layers"] == 0
    assert "multi-token" not in ok("inspect", llama).stdout


def test_an_encoder_cannot_draft(llama: Path, bert: Path) -> None:
    line = fails(1, "generate", llama, "--draft", bert, "-p", "x", "--threads", "1")
    assert "encoder.gguf cannot draft for llama.gguf: it is an encoder (bert)" in line
    assert "leave --draft out" in line


def test_a_draft_is_refused_before_anything_is_loaded(llama: Path, bert: Path) -> None:
    loaded: list[str] = []
    session = open_session(options(llama), bert, progress=lambda name, _: loaded.append(name))
    with pytest.raises(UnsupportedModel, match="encoder"), session:
        pass
    assert loaded == []


def test_missing_bytes_are_named_where_a_text_may_hold_them(folder: Path) -> None:
    """A vocabulary learned from text has no tokens for bytes that no text holds, which alarms nobody."""
    unused = (0x04, 0x13, 0xC0, 0xF1, 0xF5, 0xFF)
    path = tiny.write_bpe_missing_bytes(folder / "unused.gguf", missing_bytes=unused)
    told = json.loads(ok("inspect", path, "--json").stdout)["vocabulary"]
    assert (told["covers_all_bytes"], told["missing_bytes"]) == (False, [])
    assert "bytes" not in next(line for line in ok("inspect", path).stdout.splitlines() if "vocabulary" in line)
    path = tiny.write_bpe_missing_bytes(folder / "lacking.gguf", missing_bytes=(0x04, 0x7B, 0x80, 0x81, 0x82))
    told = json.loads(ok("inspect", path, "--json").stdout)["vocabulary"]
    assert told["missing_bytes"] == [0x7B, 0x80, 0x81, 0x82]
    assert "the bytes 0x7B, 0x80-0x82 are refused" in ok("inspect", path).stdout

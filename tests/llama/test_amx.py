"""AMX code that was compiled wrong is left alone, and the answers are right either way."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lcspec.llama import amx

pytestmark = pytest.mark.model

ASK = """
from pathlib import Path
import sys
from lcspec.config import ModelOptions
from lcspec.llama import Context, Model, amx
with Model.load(ModelOptions(path=Path(sys.argv[1]))) as model:
    context = Context(model, model.options)
    text = model.vocab.tokenize("The cat sat on the mat and looked at the other cats. " * 3)
    context.batch.add_run(text[:-1], 0, 0)
    context.batch.add(text[-1], len(text) - 1, (0,), logits=True)
    context.decode()
    print(int(context.logits()[-1].argmax()), amx.permitted())
"""


def ask(model: Path, wish: str) -> list[str]:
    """What a process of its own finds: the likeliest next token, and whether it may use tiles."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(model)],
        env={**os.environ, "LCSPEC_AMX": wish}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "AMX" not in done.stderr
    return done.stdout.split()


def test_forbidden_tiles_are_not_used_and_change_nothing(demo: tuple[Path, Path]) -> None:
    token, permitted = ask(demo[0], "0")
    assert permitted == "False"
    import lcspec.llama

    if not amx.cpu_has_amx() or amx.sound(lcspec.llama.lib.C.llama_cpp._lib):
        assert ask(demo[0], "1")[0] == token


def test_a_library_is_sound_if_it_says_so_or_the_user_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LCSPEC_AMX", raising=False)
    assert not amx.sound(ctypes.CDLL(None))
    monkeypatch.setenv("LCSPEC_AMX", "1")
    assert amx.sound(ctypes.CDLL(None))


def test_a_library_without_these_functions_cannot_be_forbidden() -> None:
    assert not amx.forbid(ctypes.CDLL(None))


@pytest.mark.skipif(sys.platform != "linux", reason="signal stacks of Linux")
def test_the_signal_stack_is_as_it_was_afterwards() -> None:
    libc = ctypes.CDLL(None)
    before, inside, after = amx._Stack(), amx._Stack(), amx._Stack()
    libc.sigaltstack(None, ctypes.byref(before))
    with amx._small_signal_stack() as small:
        libc.sigaltstack(None, ctypes.byref(inside))
    libc.sigaltstack(None, ctypes.byref(after))
    assert small != amx.permitted()  # the kernel refuses a small one to whoever may use tiles
    assert not small or inside.size == amx.SMALL_STACK
    assert (after.address, after.flags, after.size) == (before.address, before.flags, before.size)

"""`lcspec doctor`: what a better build would bring, and the line that makes it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lcspec.commands.doctor import advise, describe, text
from lcspec.commands.rebuild import Advice, Hardware, build_line
from lcspec.llama.capabilities import Capabilities, Device, _instructions

CPU = Device("CPU", "Some processor", "CPU", 8_000_000_000, 4_000_000_000)
GOOD = Capabilities("used", False, False, True, True, frozenset({"AVX2", "FMA", "AMX_INT8"}), (CPU,))
PLAIN = Hardware(frozenset({"avx2", "fma"}), "", False)


def test_a_good_build_needs_nothing() -> None:
    assert advise(GOOD, PLAIN).gains == ()
    info = describe(GOOD, PLAIN)
    assert info["better_build"] is None and "as good as it gets" in text(info)[-1]


@pytest.mark.parametrize("state", ["unsound", "absent"])
def test_amx_that_is_not_used(state: str) -> None:
    info = describe(replace(GOOD, amx=state), PLAIN)
    words = shlex.split(info["better_build"]["command"])
    flags = next(w for w in words if w.startswith("CXXFLAGS=")).removeprefix("CXXFLAGS=")
    include, header = shlex.split(flags)
    assert include == "-include" and "lcspec_tile_config" in Path(header).read_text()
    assert "AMX" in "\n".join(text(info))


def test_a_gpu_that_is_not_used() -> None:
    advice = advise(GOOD, Hardware(frozenset(), "nvidia", False))
    assert advice.cmake == ("-DGGML_CUDA=on",) and "install the CUDA toolkit" in advice.gains[0]
    assert not advice.header
    assert "install" not in advise(GOOD, Hardware(frozenset(), "nvidia", True)).gains[0]
    assert advise(GOOD, Hardware(frozenset(), "amd", True)).cmake == ("-DGGML_HIP=on",)
    assert advise(replace(GOOD, gpu=True), Hardware(frozenset(), "nvidia", True)).gains == ()


def test_a_build_for_an_older_processor() -> None:
    advice = advise(GOOD, Hardware(frozenset({"avx2", "avx512f", "avx512_vnni"}), "", False))
    assert advice.gains[0].startswith("AVX512, AVX512_VNNI:")


def test_own_kernels() -> None:
    with_them = text(describe(replace(GOOD, few_rows=("Q4_K", "Q8_0")), PLAIN))
    assert any(line.split() == ["own", "kernels:", "Q4_K", "Q8_0"] for line in with_them)
    without = text(describe(replace(GOOD, why_none="no C++ compiler was found"), PLAIN))
    assert any(line.endswith("none; no C++ compiler was found") for line in without)


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_the_line_is_one_a_shell_reads(installer: str) -> None:
    advice = Advice(("x",), ("-DGGML_CUDA=on", "-DGGML_RPC=on"), True)
    python, header = Path("/a folder/bin/python"), Path("/a folder/tile_config.h")
    words = shlex.split(build_line(advice, "1.2.3", header, python, installer))
    assert words[0] == "CMAKE_ARGS=-DGGML_CUDA=on -DGGML_RPC=on"
    assert shlex.split(words[1].removeprefix("CXXFLAGS=")) == ["-include", str(header)]
    assert str(python) in words and words[-1] == "llama-cpp-python==1.2.3"
    assert "--no-binary=llama-cpp-python" in words and "--no-deps" in words
    assert words[2] == (str(python) if installer == "pip" else "uv")


def test_what_the_library_says_of_itself() -> None:
    info = "CPU : SSE3 = 1 | AVX = 1 | AVX512 = 0 | SVE_CNT = 16 | REPACK = 1 | "
    assert _instructions(info) == {"SSE3", "AVX", "SVE_CNT", "REPACK"}
    assert _instructions("") == frozenset()


def test_the_command_on_this_machine() -> None:
    command = [sys.executable, "-c", "from lcspec.cli import main; main()", "doctor"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    info = json.loads(done.stdout)
    assert info["devices"] and info["devices"][-1]["kind"] == "CPU" and info["threads"] >= 1
    assert info["amx"] in ("used", "unsound", "absent", "none") and isinstance(info["eagle3"], bool)
    assert info["kv_types"][0] == "f16"
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "devices:" in done.stdout


def test_a_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    package = tmp_path / "llama_cpp"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('libcuda.so.1: cannot open shared object file')")
    command = [sys.executable, "-c", "from lcspec.cli import main; main()", "doctor"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 1 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert "libcuda.so.1" in done.stderr and "--no-binary=llama-cpp-python" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["generate", "-p", "x"], ["verify"], ["doctor"]])
def test_every_command_says_that_the_library_cannot_be_loaded(tmp_path: Path, arguments: list[str]) -> None:
    """Built for another machine, say: one line, and the one that makes it again."""
    (tmp_path / "libllama.so").write_bytes(b"not a library")
    (tmp_path / "libllama.dylib").write_bytes(b"not a library")
    done = subprocess.run(
        [sys.executable, "-m", "lcspec", *arguments],
        env={**os.environ, "LLAMA_CPP_LIB_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and not done.stdout
    [line] = done.stderr.splitlines()
    assert line.startswith("lcspec: llama-cpp-python cannot be loaded (")
    assert ("--force-reinstall" if arguments == ["doctor"] else "`lcspec doctor` says what to do") in line

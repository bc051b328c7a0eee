"""The wheel, installed into an empty environment away from the checkout: chat, generate and serve from it.

llama-cpp-python takes minutes to compile, so the new environment borrows what this one has installed; lcspec itself
comes from the wheel, which the test checks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import venv
import zipfile
from pathlib import Path

import httpx
import pytest

from tests.running import own_cache

pytestmark = [pytest.mark.model, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[1]
WAIT = 600.0
HEADLESS_CHAT = """
import asyncio, sys, time
from pathlib import Path
from lcspec.tui.app import ChatApp, ChatOptions

async def main():
    app = ChatApp(ChatOptions(overrides={"threads": 1, "max_tokens": 12, "seed": 1}, model=Path(sys.argv[1])))
    async with app.run_test(size=(100, 30)) as pilot:
        async def until(condition):
            end = time.monotonic() + 500
            while not condition():
                assert time.monotonic() < end, "never happened"
                await pilot.pause(0.05)
        await until(lambda: app.chat_screen is not None and app.screen is app.chat_screen)
        await until(lambda: app.screen.is_mounted and app.screen.prompt.has_focus)
        await pilot.press(*"hello", "enter")
        await until(lambda: len(app.screen.chat.branch) >= 2 and not app.screen.answering.busy)
        print(app.screen.chat.branch[-1].text)
    assert app.shut_down()

asyncio.run(main())
"""


def run(command: list[str], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run in `folder`, without what would lead back to the checkout."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, env={**kept, **env}, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` writes."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)], folder)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the user; what is measured of the machine is known there."""
    home = tmp_path_factory.mktemp("away")
    own_cache(home)
    return home


@pytest.fixture(scope="module")
def python(dist: Path, home: Path) -> Path:
    """The interpreter of an environment with the wheel."""
    pytest.importorskip("pip")
    environment = home / "env"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    (wheel,) = dist.glob("*.whl")
    install = ["install", "--no-deps", "--no-index", "--quiet", str(wheel)]
    run([sys.executable, "-m", "pip", "--python", str(python), *install], home)
    (site,) = environment.glob("lib/python*/site-packages")
    borrowed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    # only directories: the .pth files in them, one of which leads to the checkout, are not read this way
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    where = run([str(python), "-c", "import lcspec; print(lcspec.__file__)"], home).stdout
    assert Path(where.strip()).is_relative_to(environment)
    return python


def lcspec(python: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {"HOME": str(home), "LCSPEC_DATA_DIR": str(home / "data"), "LCSPEC_CACHE_DIR": str(home / "cache")}
    return run([str(python.with_name("lcspec")), *arguments], home, **own)


def test_what_is_in_them(dist: Path) -> None:
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "lcspec/cli.py",
        "lcspec/tui/app.py",
        "lcspec/tui/styles/chat.tcss",
        "lcspec/demo_models/demo-target-q8_0.gguf",
        "lcspec/demo_models/demo-draft-q8_0.gguf",
        "lcspec/llama/kernels/few_rows.cpp",
        "lcspec/llama/kernels/formats.h",
        "lcspec/native/tile_config.h",
    } <= packed
    ours = {
        *(f"lcspec/{path.relative_to(ROOT / 'lcspec')}" for path in (ROOT / "lcspec").rglob("*.py")),
        *(f"lcspec/tui/{path.relative_to(ROOT / 'tui')}" for path in (ROOT / "tui").rglob("*.py")),
    }
    assert ours <= packed, "a package is missing from pyproject.toml"
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "native/tile_config.h", "lcspec/llama/kernels/few_rows.cpp"} <= names
    assert "models/demo-target-q8_0.gguf" in names


def test_generate(python: Path, home: Path) -> None:
    done = lcspec(python, home, "generate", "-p", "Hello", "-n", "8", "--threads", "1", "--json", "--ignore-eos")
    assert json.loads(done.stdout)["completion_tokens"] == 8


def test_chat(python: Path, home: Path) -> None:
    model = run([str(python), "-c", "from lcspec.session import *; print(demo_path(DEMO_TARGET))"], home).stdout.strip()
    assert model.startswith(str(home))
    own = {"HOME": str(home), "LCSPEC_DATA_DIR": str(home / "data"), "LCSPEC_CACHE_DIR": str(home / "cache")}
    done = run([str(python), "-c", HEADLESS_CHAT, model], home, **own, XDG_CONFIG_HOME=str(home / "config"))
    assert done.stdout.strip()


def test_serve(python: Path, home: Path) -> None:
    command = [str(python.with_name("lcspec")), "serve", "--port", "0", "--threads", "1", "--slots", "1"]
    own = {"HOME": str(home), "LCSPEC_CACHE_DIR": str(home / "cache")}
    process = subprocess.Popen(command, cwd=home, env={**os.environ, **own}, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        told = []
        for line in process.stderr:
            told.append(line)
            if "at http://" in line:
                break
        address = re.search(r"at (http://\S+)", "".join(told))
        assert address is not None, told
        threading.Thread(target=process.stderr.read, daemon=True).start()
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
        answer = httpx.post(f"{address[1]}/chat/completions", json=body, timeout=WAIT).json()
        assert answer["usage"]["completion_tokens"] >= 1 and "content" in answer["choices"][0]["message"]
    finally:
        process.terminate()
        process.wait(WAIT)
    assert process.returncode == 0


def test_doctor_and_models(python: Path, home: Path) -> None:
    told = json.loads(lcspec(python, home, "doctor", "--json").stdout)
    assert told["devices"]
    better = told["better_build"]
    if better is not None and "-include" in better["command"]:
        header = re.search(r"-include (\S+tile_config\.h)", better["command"])
        assert header is not None and Path(header[1]).is_relative_to(home)
    listed = json.loads(lcspec(python, home, "models", "--json").stdout)
    target = next(m for m in listed if m["name"].startswith("demo-target"))
    assert target["fits"] and target["draft"].startswith(str(home))

"""Coding agents at work through `lcspec serve`: a conversation with tools, gone on with in a second run.

    npm install @openai/codex @anthropic-ai/claude-code opencode-ai @qwen-code/qwen-code @continuedev/cli
    npm install cline @mariozechner/pi-coding-agent
    python scripts/run_agents.py node_modules/.bin [--only codex] [--family gpt-oss] [--template FILE] [--keep FOLDER]

Every agent that is installed writes a file with its own tools, runs a command, makes two calls at once where the family
does, and answers; then its conversation goes on in a new process. The model recites (tests/reciter.py), so what must
come out is known. Each agent has a home folder of its own and asks no other host for anything. Prints what went wrong,
and ends with code 1 if something did.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx

from lcspec.answers.formats import format_of
from scripts.agents import AGENTS, CONTEXT, Agent, Place
from tests.reciter import marker, pieces, write_reciter
from tests.server.process import Process
from tests.server.test_tool_conversations import strict
from tests.tool_answers import FORMS, ONE, Call, Turn, controls, written

PATIENCE = 200.0
# What goes wrong where text is quoted once too often.
TEXT = 'Łódź "nr03." \\n \\\\ \'x\'\n\n\tif a < b && c > d: print(f"{é} ✓ 😀")\n</tag> $HOME `id` %s\n'
FAMILIES = ("hermes", "gpt-oss", "mistral")


def says(number: int) -> str:
    """A shell's way to print a marker which is not in the command itself."""
    return f"echo '(text' '{number:02d})'"


def texts(agent: Agent, work: Path, one: bool) -> list[Turn]:
    """What the model says; the first two are never asked for, since a marker among so much text must weigh more."""
    # Not every agent says which file it has written; where it cannot run a command beside it, the call has the marker.
    first: tuple[Call, ...] = (agent.write(work / f"nr02. {marker(3)}.txt", TEXT),)
    second: tuple[Call, ...] = (agent.run(f"wc -c *.txt; {says(4)} # nr03."),)
    third: tuple[Call, ...] = (agent.run(f"echo '<b> é' > 'a b'; {says(5)} # nr04."),)
    if not one:
        first = (*first, agent.run(f"{says(3)} # nr02."))
        third = (agent.run("printf '%s\\n' \"é\" > c # nr04."), *third)
    return [
        Turn(0, content="nr00."),
        Turn(1, content="nr01."),
        Turn(2, "First nr02. the file", "", first),
        Turn(3, "", "" if one else "Then nr03. the command", second),
        Turn(4, "Two nr04. more", "", third),
        Turn(5, "Done nr05.?", 'All nr05. done: "é ✓" & `x < y`'),
        Turn(6, "", "And nr06. again ✓"),
    ]


@dataclass
class Result:
    """What became of a conversation."""

    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    reused: float = 0.0


def count(url: str, name: str) -> float:
    """A number of the server's."""
    page = httpx.get(f"{url}/metrics").text
    return sum(float(found) for found in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.M))


def converse(agent: Agent, command: Path, folder: Path, template: str) -> Result:
    """One conversation, in two runs of the agent."""
    result, form = Result(), format_of(template)
    home, work = folder / "home", folder / "work"
    home.mkdir(parents=True)
    work.mkdir()
    spoken = texts(agent, work, form.name in ONE)
    parts = [pieces(written(form, turn), controls(form), turn.own) for turn in spoken]
    model = write_reciter(folder / "agent.gguf", parts, chat_template=template, controls=controls(form), n_ctx=CONTEXT)
    server = Process(str(model), "--ctx", str(CONTEXT), "--slots", "2", "--alias", "agent")
    place = Place(home, work, server.url)
    try:
        for path, text in agent.files(place).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
        variables = kept | {"HOME": str(home)} | agent.variables(place)
        subprocess.run(["git", "init", "-q"], cwd=work, env=variables, check=True)
        begin = time.perf_counter()
        for words, ask, turn in ((agent.first, marker(2), spoken[5]), (agent.again, marker(6), spoken[6])):
            if not words:
                continue
            before = [count(server.url, f"lcspec_prompt_tokens{kind}_total") for kind in ("", "_reused")]
            try:
                done = subprocess.run(
                    [command, *words, f"Do it {ask}"],
                    cwd=work, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
                )  # fmt: skip
            except subprocess.TimeoutExpired as late:
                result.wrong.append(f"no end: {late.stdout!r} {late.stderr!r}")
                break
            (folder / f"{turn.own}out").write_text(f"{done.stdout}\n---\n{done.stderr}")
            if done.returncode or turn.content not in done.stdout:
                result.wrong.append(
                    f"code {done.returncode}, not {turn.content!r}: {done.stdout[-600:]} {done.stderr[-600:]}"
                )
            after = [count(server.url, f"lcspec_prompt_tokens{kind}_total") for kind in ("", "_reused")]
            read, reused = (b - a for a, b in zip(before, after))
            result.reused = reused / max(1.0, read + reused)
        result.seconds = time.perf_counter() - begin
        for name, wanted in {f"nr02. {marker(3)}.txt": TEXT, "a b": "<b> é\n"}.items():
            found = (work / name).read_text(encoding="utf-8") if (work / name).exists() else None
            if found != wanted:
                result.wrong.append(f"{name}: {found!r}, not {wanted!r}")
    finally:
        server.kill()
        (folder / "server.log").write_text("".join(server.lines))
    result.wrong += [line.strip() for line in server.lines if re.search(r" [45]\d\d |Traceback|ERROR", line)]
    return result


def version(command: Path, home: Path) -> str:
    """What the agent says of itself."""
    done = subprocess.run([command, "--version"], env=os.environ | {"HOME": str(home)}, capture_output=True, text=True)
    found = re.search(r"\d+\.\d+\.\d+\S*", done.stdout + done.stderr)
    return found[0] if found else "?"


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", multiple=True, help="One of the agents.")
@click.option(
    "--family", multiple=True, type=click.Choice(sorted(FORMS)), help="With a strict template of the family's."
)
@click.option("--template", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Where to leave what they did.")
def main(folder: Path, only: Sequence[str], family: Sequence[str], template: Sequence[Path], keep: Path | None) -> None:
    """Hold the conversations."""
    wanted: dict[str, str] = {path.stem: path.read_text(encoding="utf-8") for path in template}
    wanted |= {name: strict(FORMS[name]) for name in family or (() if template else FAMILIES)}
    bad = 0
    with tempfile.TemporaryDirectory() as temporary:
        for agent in AGENTS:
            command = folder.resolve() / (agent.program or agent.name)
            if not command.exists() or (only and agent.name not in only):
                continue
            said: Any = version(command, Path(temporary))
            for name, text in wanted.items():
                place = (keep or Path(temporary)).resolve() / f"{agent.name}-{name}"
                result = converse(agent, command, place, text)
                bad += bool(result.wrong)
                end = f"{result.seconds:.0f} s, {result.reused:.0%} of the second run's prompts reused"
                click.echo(f"{agent.name} {said}, {name}: {'WRONG' if result.wrong else 'right'}, {end}")
                for line in result.wrong:
                    click.echo(f"    {line}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()

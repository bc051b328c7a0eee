"""Drive `lcspec chat` in a real terminal (tmux) through what it can do, and save a picture of every stop.

python scripts/chat_tour.py --out work/tour                      # the bundled pair
python scripts/chat_tour.py --model smollm2.gguf --out work/tour  # any other model

Needs tmux. Pictures are SVG, and PNG where rsvg-convert is installed. Ends with code 1 if a stop was not reached.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

WAIT = 90.0
COLUMNS, LINES = 110, 34
NOTES = "Buy milk, tea and bread.\n"


class Terminal:
    """A chat in a tmux session of its own server, so that nobody's configuration or sessions matter."""

    def __init__(self, command: str, environ: dict[str, str], folder: Path) -> None:
        name = f"lcspec-tour-{os.getpid()}-{id(self)}"  # the server before may still be going
        self.base = ["tmux", "-L", name, "-f", "/dev/null"]
        sets = [part for name, value in environ.items() for part in ("-e", f"{name}={value}")]
        size = ["-x", str(COLUMNS), "-y", str(LINES)]
        # the shell stays, so that what the chat leaves behind can be seen
        line = f"cd {shlex.quote(str(folder))}; {command}; echo ended with $?; cat"
        self._run("new-session", "-d", *size, *sets, "sh", "-c", line)

    def _run(self, *arguments: str) -> str:
        return subprocess.run([*self.base, *arguments], check=True, capture_output=True, text=True).stdout

    def press(self, *keys: str) -> None:
        """Keys as tmux names them: Enter, C-r, F2, Escape, Tab."""
        for key in keys:
            self._run("send-keys", key)
            time.sleep(0.15)

    def type(self, text: str) -> None:
        """Letters."""
        self._run("send-keys", "-l", text)
        time.sleep(0.3)

    def paste(self, text: str) -> None:
        """Many letters at once, as a terminal hands on what is pasted."""
        self._run("set-buffer", text)
        self._run("paste-buffer", "-p")
        time.sleep(0.3)

    def screen(self, colours: bool = False) -> str:
        """What stands on it."""
        return self._run("capture-pane", "-p", *(["-e", "-N"] if colours else []))

    def until(self, *texts: str, gone: bool = False) -> None:
        """Wait until all of `texts` are on the screen (or `gone` from it)."""
        end = time.monotonic() + WAIT
        while True:
            shown = self.screen()
            if all((text in shown) != gone for text in texts):
                return
            if time.monotonic() > end:
                raise TimeoutError(f"{'still' if gone else 'not'} on the screen: {texts}\n{shown}")
            time.sleep(0.2)

    def close(self) -> None:
        """End the server."""
        subprocess.run([*self.base, "kill-server"], capture_output=True, check=False)


class Tour:
    """Takes pictures, and counts what went wrong."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.failed: list[str] = []
        out.mkdir(parents=True, exist_ok=True)

    def picture(self, terminal: Terminal, name: str) -> None:
        """Save what the terminal shows."""
        time.sleep(0.5)
        console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        console.print(Text.from_ansi(terminal.screen(colours=True)), end="")
        path = self.out / f"{name}.svg"
        console.save_svg(str(path), title="lcspec chat")
        convert = shutil.which("rsvg-convert")
        if convert is not None:
            subprocess.run([convert, str(path), "-o", str(path.with_suffix(".png"))], check=False, capture_output=True)
        click.echo(f"  {path}")

    @contextmanager
    def stop(self, name: str) -> Iterator[None]:
        """One stop: what goes wrong is said, and the tour goes on."""
        click.echo(name)
        try:
            yield
        except (TimeoutError, subprocess.CalledProcessError) as error:
            self.failed.append(name)
            click.echo(f"  FAILED: {error}", err=True)


def idle(terminal: Terminal) -> None:
    """Wait until nothing is being answered."""
    time.sleep(1.5)  # until it has begun
    terminal.until("answering", "preparing ...", "reading the prompt", "waiting ...", gone=True)


def answered(terminal: Terminal, text: str) -> None:
    """Send a message, wait for the line below its answer."""
    terminal.type(text)
    terminal.press("Enter")
    idle(terminal)
    terminal.until("seed")


def conversation(tour: Tour, terminal: Terminal) -> None:
    """Through the list, in one conversation."""
    with tour.stop("welcome"):
        terminal.until("is ready")
        tour.picture(terminal, "01-welcome")
    with tour.stop("commands are listed while they are typed"):
        terminal.type("/")
        terminal.until("/help", "/continue")
        tour.picture(terminal, "02-commands")
        terminal.press("Escape", "BSpace")
    with tour.stop("an unknown command stays here"):
        terminal.type("/frobnicate")
        terminal.press("Enter")
        terminal.until("there is no command /frobnicate")
        tour.picture(terminal, "03-unknown-command")
        terminal.press("C-a", "C-k")
    with tour.stop("a cut answer, continued"):
        terminal.type("/set max_tokens 12")
        terminal.press("Enter")
        terminal.until("max_tokens is 12")
        answered(terminal, "Write a python function to find the maximum of a list of numbers.")
        terminal.until("cut at the token limit")
        tour.picture(terminal, "04-cut")
        terminal.type("/set max_tokens 80")
        terminal.press("Enter")
        terminal.until("max_tokens is 80")
        terminal.type("/continue")
        terminal.press("Enter")
        terminal.until(" 12 tokens", gone=True)
        idle(terminal)
        tour.picture(terminal, "05-continued")
    with tour.stop("lens and inspector"):
        terminal.press("F2", "F3")
        terminal.until("Inspector")
        tour.picture(terminal, "06-lens-inspector")
        terminal.press("F2", "F3")
    with tour.stop("a file is named with @ and completed"):
        terminal.type("What is in @no")
        terminal.until("notes.txt")
        tour.picture(terminal, "07-file")
        terminal.press("Tab", "Enter")
        terminal.until("attached: notes.txt")
        idle(terminal)
    with tour.stop("regenerated, and walked back"):
        terminal.press("C-r")
        terminal.until("2/2")
        idle(terminal)
        tour.picture(terminal, "08-regenerated")
    with tour.stop("drafters, settings, help, chats, models"):
        for key, text, name in (
            ("F4", "the planner decides", "09-drafters"),
            ("C-s", "Temperature", "10-settings"),
            ("F1", "In the input", "11-help"),
            ("C-o", "type to search", "12-chats"),
        ):
            terminal.press(key)
            terminal.until(text)
            tour.picture(terminal, name)
            terminal.press("Escape")
            terminal.until(text, gone=True)
        terminal.press("F5")
        terminal.until("Choose a model")
        tour.picture(terminal, "13-models")
        terminal.press("F1")
        terminal.until("Show only the models")
        tour.picture(terminal, "14-models-help")
        terminal.press("Escape", "Escape")
    with tour.stop("a message that is too long"):
        terminal.until("Choose a model", gone=True)
        terminal.type("/clear")
        terminal.press("Enter")
        terminal.until("is ready")
        terminal.paste("word " * 2500)
        terminal.press("Enter")
        terminal.until("Your message is back in the input")
        tour.picture(terminal, "15-too-long")
        terminal.press("C-a")
    with tour.stop("Ctrl+C twice, and the line that is left"):
        terminal.press("C-c")
        terminal.until("Ctrl+C again quits")
        tour.picture(terminal, "16-ctrl-c")
        terminal.press("C-c")
        terminal.until("ended with 0")
        tour.picture(terminal, "17-parting")


def elsewhere(tour: Tour, command: str, environ: dict[str, str], folder: Path) -> None:
    """What needs a start of its own: resuming in ASCII, text from a pipe."""
    with tour.stop("resumed, in ASCII"):
        terminal = Terminal(f"{command} --resume", {**environ, "LC_ALL": "C"}, folder)
        try:
            terminal.until("context")
            assert terminal.screen().isascii(), "something is not ASCII"
            tour.picture(terminal, "18-ascii")
        except AssertionError as error:
            raise TimeoutError(str(error)) from None
        finally:
            terminal.close()
    with tour.stop("text from a pipe"):
        done = subprocess.run(
            f"echo 'Say hello.' | {command} -n 12",
            shell=True,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
        )
        if done.returncode or not done.stdout.strip():
            raise TimeoutError(f"code {done.returncode}: {done.stderr}")
        click.echo(f"  {done.stdout.strip()!r}")


@click.command()
@click.option("--model", type=click.Path(path_type=Path, exists=True), help="A GGUF (default: the bundled pair).")
@click.option("--out", type=click.Path(path_type=Path), default=Path("work/tour"), show_default=True)
@click.option("--ctx", default=2048, show_default=True, help="Context, small enough to be filled.")
@click.option("--threads", default=1, show_default=True)
def main(model: Path | None, out: Path, ctx: int, threads: int) -> None:
    """Take the tour."""
    if shutil.which("tmux") is None:
        raise click.ClickException("this needs tmux: install it with the system's packages")
    lcspec = Path(sys.executable).with_name("lcspec")
    if model is None:
        from lcspec.modelfiles.demo import DEMO_TARGET, demo_path

        model = demo_path(DEMO_TARGET)
    tour = Tour(out)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "here"
        folder.mkdir()
        (folder / "notes.txt").write_text(NOTES, encoding="utf-8")
        environ = {
            "HOME": home,
            "LCSPEC_DATA_DIR": f"{home}/data",
            "LCSPEC_CACHE_DIR": f"{home}/cache",
            "XDG_CONFIG_HOME": f"{home}/config",
            "COLORTERM": "truecolor",
            "LC_ALL": "C.UTF-8",
        }
        command = f"{shlex.quote(str(lcspec))} chat {shlex.quote(str(model.resolve()))} --ctx {ctx} --threads {threads}"
        terminal = Terminal(command, environ, folder)
        try:
            conversation(tour, terminal)
        finally:
            terminal.close()
        elsewhere(tour, command, environ, folder)
    if tour.failed:
        raise click.ClickException(f"not reached: {', '.join(tour.failed)}")


if __name__ == "__main__":
    main()

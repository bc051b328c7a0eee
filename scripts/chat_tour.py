"""Drive `lcspec chat` in a real terminal (tmux) through what it can do, and save a picture of every stop.

python scripts/chat_tour.py --out work/tour                      # the bundled pair
python scripts/chat_tour.py --model smollm2.gguf --out work/tour  # any other model

Needs tmux, and Pillow (`pip install '.[test]'`). Ends with code 1 if a stop was not reached. Pictures of SmolLM2 that
are worth it are in docs/.
"""

from __future__ import annotations

import os
import re
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
from terminal_picture import draw

WAIT = 180.0
STILL = 5.0  # seconds within which a picture should stand still
COLUMNS, LINES = 110, 34
NOTES = "Buy milk, tea and bread.\n"
FIRST = "Write a python function that returns the largest number of a list."
SECOND = "Now write the same function for the smallest number."
MATHS = (
    "\n\n"
    r"The area is \(\pi r^2\), a half of it \(\frac{1}{2} \pi r^2\), the sum "
    r"\[\sum_{i=1}^n x_i \le \sqrt{n}\] Call `hello_world()`."
)


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
        """Save what the terminal shows, once it shows the same for a moment."""
        before, end = "", time.monotonic() + STILL
        while (shown := terminal.screen(colours=True)) != before and time.monotonic() < end:
            before = shown
            time.sleep(0.8)
        path = self.out / f"{name}.png"
        draw(shown, COLUMNS, path)
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


def say(terminal: Terminal, command: str, told: str) -> None:
    """Type a command, and wait until its answer has come and gone."""
    terminal.type(command)
    terminal.press("Enter")
    terminal.until(told)
    terminal.until(told, gone=True)


def first_run(tour: Tour, lcspec: Path, environ: dict[str, str], folder: Path) -> None:
    """A bare `lcspec chat` on a machine without a model."""
    with tour.stop("an empty machine"):
        terminal = Terminal(f"{shlex.quote(str(lcspec))} chat", environ, folder)
        try:
            terminal.until("Download SmolLM2")
            tour.picture(terminal, "00-offer")
            terminal.press("n", "Enter")
            terminal.until("bundled: a toy", "draft model: ")
            tour.picture(terminal, "00-toys")
        finally:
            terminal.close()


def talk(tour: Tour, terminal: Terminal) -> None:
    """Answers: cut, continued, guessed, with a file, again, edited."""
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
        terminal.until("here is no command /frobnicate")
        tour.picture(terminal, "03-unknown-command")
        terminal.press("C-a", "C-k")
    with tour.stop("a cut answer, continued"):
        say(terminal, "/set temperature 0", "temperature is 0.0 for this run")
        say(terminal, "/set max_tokens 24", "max_tokens is 24")
        answered(terminal, FIRST)
        terminal.until("cut at the token limit")
        tour.picture(terminal, "04-cut")
        say(terminal, "/set max_tokens 220", "max_tokens is 220")
        terminal.type("/continue")
        terminal.press("Enter")
        terminal.until(" 24 tokens", gone=True)
        idle(terminal)
        tour.picture(terminal, "05-continued")
    with tour.stop("lens and inspector"):
        answered(terminal, SECOND)
        terminal.press("F2")
        terminal.until("coloured words")
        tour.picture(terminal, "06-lens")
        terminal.press("F3")
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
        say(terminal, "/set temperature 0.8", "temperature is 0.8 for this run")
        terminal.press("C-r")
        terminal.until("2/2")
        idle(terminal)
        tour.picture(terminal, "08-regenerated")
        terminal.press("BTab", "Left")
        terminal.until("1/2")
    with tour.stop("the model's answer is edited, and maths is shown"):
        terminal.press("e")
        terminal.until("Editing the answer")
        terminal.paste(MATHS)
        tour.picture(terminal, "09-editing")
        terminal.press("Enter")
        terminal.until("edited by you")
        tour.picture(terminal, "09-maths")


def screens(tour: Tour, terminal: Terminal) -> None:
    """Drafters, settings, help, conversations, models, themes."""
    with tour.stop("drafters, settings, help"):
        for key, text, name in (
            ("F4", "lcspec decides", "10-drafters"),
            ("C-s", "Temperature", "11-settings"),
            ("F1", "In the input", "12-help"),
        ):
            terminal.press(key)
            terminal.until(text)
            tour.picture(terminal, name)
            if name == "11-settings":
                terminal.press("Tab", "End", "BSpace", "BSpace", "BSpace", "7", "C-s")
                terminal.until("from 0 to 2")
                tour.picture(terminal, "11-settings-refused")
            terminal.press("Escape")
            terminal.until(text, gone=True)
    with tour.stop("conversations: pinned, searched, opened at the hit"):
        terminal.press("C-o")
        terminal.until("type to search")
        terminal.press("C-k")
        terminal.until("pinned")
        terminal.type("largest")
        terminal.until("largest number")
        tour.picture(terminal, "13-chats")
        terminal.press("Enter")
        terminal.until("Conversations", gone=True)
        terminal.until(FIRST[:40])
    with tour.stop("models"):
        terminal.press("F5")
        terminal.until("Choose a model", "used last")
        tour.picture(terminal, "14-models")
        terminal.press("F1")
        terminal.until("Show only the models")
        tour.picture(terminal, "15-models-help")
        terminal.press("Escape", "Escape")
        terminal.until("Choose a model", gone=True)
    with tour.stop("a light terminal"):
        terminal.press("F12", "C-End")
        tour.picture(terminal, "16-light")
        terminal.press("F12")


def limits(tour: Tour, terminal: Terminal) -> None:
    """What does not fit, and leaving."""
    with tour.stop("a file that is too large"):
        terminal.type("/clear")
        terminal.press("Enter")
        terminal.until("is ready")
        terminal.type("/file large.txt")
        terminal.press("Enter")
        terminal.until("Too large")
        tour.picture(terminal, "17-large-file")
        terminal.press("BSpace")
        terminal.until("Too large", gone=True)
    with tour.stop("a message that is too long, and a larger context"):
        terminal.paste("word " * 2500)
        terminal.press("Enter")
        terminal.until("Your message is back in the input")
        tour.picture(terminal, "18-too-long")
        terminal.press("BTab", "Enter")
        terminal.until("The context now holds 4,096 tokens")
        tour.picture(terminal, "19-larger-context")
        terminal.press("C-u")
        terminal.until("word word", gone=True)
    with tour.stop("Ctrl+C stops an answer, twice more leaves, and a line is left"):
        terminal.type("Tell me a long story about a lighthouse.")
        terminal.press("Enter")
        terminal.until("answering")
        terminal.press("C-c")
        terminal.until("stopped by you")
        terminal.press("C-c")
        terminal.until("Ctrl+C again quits")
        tour.picture(terminal, "20-ctrl-c")
        terminal.press("C-c")
        terminal.until("ended with 0", "lcspec chat --resume")
        tour.picture(terminal, "21-parting")


def elsewhere(tour: Tour, command: str, environ: dict[str, str], folder: Path) -> None:
    """What needs a start of its own: resuming in ASCII, text from a pipe."""
    with tour.stop("resumed, in ASCII"):
        terminal = Terminal(f"{command} --resume", {**environ, "LC_ALL": "C"}, folder)
        try:
            terminal.until("context", "lighthouse")
            assert terminal.screen().isascii(), "something is not ASCII"
            tour.picture(terminal, "22-ascii")
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


def connected(tour: Tour, lcspec: Path, model: Path, options: list[str], environ: dict[str, str], folder: Path) -> None:
    """A chat against a server."""
    with tour.stop("a server answers"):
        command = [str(lcspec), "serve", str(model), "--port", "0", "--slots", "1", *options]
        server = subprocess.Popen(command, env={**os.environ, **environ}, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            address = next(filter(None, (re.search(r"at (http://\S+)/v1", line) for line in server.stderr)))
            terminal = Terminal(f"{shlex.quote(str(lcspec))} chat --connect {address[1]} -n 60", environ, folder)
            try:
                terminal.until("is ready")
                answered(terminal, "Why is the sky blue?")
                tour.picture(terminal, "23-connected")
            finally:
                terminal.close()
        finally:
            server.terminate()
            server.wait(30)


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
        (folder / "large.txt").write_text(NOTES * 500, encoding="utf-8")
        environ = {
            "HOME": home,
            "LCSPEC_DATA_DIR": f"{home}/data",
            "LCSPEC_CACHE_DIR": f"{home}/cache",
            "XDG_CONFIG_HOME": f"{home}/config",
            "COLORTERM": "truecolor",
            "LC_ALL": "C.UTF-8",
        }
        options = ["--ctx", str(ctx), "--threads", str(threads)]
        command = shlex.join([str(lcspec), "chat", str(model.resolve()), *options])
        first_run(tour, lcspec, environ, folder)
        terminal = Terminal(command, environ, folder)
        try:
            talk(tour, terminal)
            screens(tour, terminal)
            limits(tour, terminal)
        finally:
            terminal.close()
        elsewhere(tour, command, environ, folder)
        connected(tour, lcspec, model.resolve(), options, environ, folder)
    if tour.failed:
        raise click.ClickException(f"not reached: {', '.join(tour.failed)}")


if __name__ == "__main__":
    main()

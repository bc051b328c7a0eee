"""Draw the pictures of `lcspec chat` in docs/: real conversations with the bundled pair, in dark and light.

python scripts/make_screenshots.py            # needs no terminal
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click

from lcspec.modelfiles.demo import DEMO_TARGET, demo_path
from lcspec.tui.app import ChatApp, ChatOptions
from lcspec.tui.screens.chat import DARK, LIGHT, ChatScreen

WAIT = 120.0
TALK = ("Hi! I'd like to order a large iced latte, please.", "Yes, that is right.", "Thank you!")
CODE = "Write a python function to find the maximum of a list of numbers."
SMALL, LARGE = (80, 24), (120, 36)
# Greedy, so that the pictures are the same every time; every drafter asked, because on so small a model none pays.
SETTINGS: dict[str, Any] = {"temperature": 0.0, "seed": 1, "max_tokens": 90, "drafters": "ngram,suffix,model"}


class Photographer:
    """Drives the application and takes pictures of it."""

    def __init__(self, app: ChatApp, pilot: Any, out: Path) -> None:
        self.app, self.pilot, self.out = app, pilot, out

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition."""
        end = time.monotonic() + WAIT
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError("the application did not get there")
            await self.pilot.pause(0.02)

    @property
    def chat(self) -> ChatScreen:
        """The conversation."""
        assert isinstance(self.app.screen, ChatScreen)
        return self.app.screen

    async def talk(self, *texts: str) -> None:
        """Send messages and wait for their answers."""
        await self.until(
            lambda: isinstance(self.app.screen, ChatScreen) and self.chat.is_mounted and self.chat.prompt.has_focus
        )
        for text in texts:
            before = len(self.chat.chat.branch)
            self.chat.prompt.give_back(text)
            await self.pilot.press("enter")
            await self.until(lambda before=before: len(self.chat.chat.branch) == before + 2)
            await self.until(lambda: not self.chat.answering.busy)
        await self.settle()

    async def settle(self) -> None:
        """Let everything be drawn, without toasts and a cursor that blinks."""
        self.app.clear_notifications()
        await self.pilot.pause(0.3)

    def save(self, name: str) -> None:
        """Write the picture."""
        svg = self.app.export_screenshot(title="lcspec chat")
        # Rich links a font on the network; any monospaced font of the viewer's will do.
        svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
        path = self.out / f"chat-{name}.svg"
        path.write_text(svg, encoding="utf-8")
        click.echo(path)


async def conversation(photo: Photographer) -> None:
    """A conversation as it looks."""
    await photo.talk(*TALK)
    await photo.pilot.press("ctrl+t")
    await photo.until(lambda: photo.chat.chat.tree.place(photo.chat.chat.branch[-1].id)[1] == 2)
    await photo.until(lambda: not photo.chat.answering.busy)
    await photo.settle()


async def lens(photo: Photographer) -> None:
    """Lens and inspector."""
    await photo.talk(CODE, TALK[0])
    await photo.pilot.press("f2", "f3")
    await photo.settle()


async def picker(photo: Photographer) -> None:
    """The list of models."""
    await photo.talk()
    await photo.pilot.press("f5")
    await photo.pilot.pause(1.0)


async def drafters(photo: Photographer) -> None:
    """Switching drafters."""
    await photo.talk(TALK[0])
    await photo.pilot.press("f4")
    await photo.settle()


async def help_(photo: Photographer) -> None:
    """The help."""
    await photo.talk(TALK[0])
    await photo.pilot.press("f1")
    await photo.settle()


async def settings(photo: Photographer) -> None:
    """The settings."""
    await photo.talk(TALK[0])
    await photo.pilot.press("ctrl+s")
    await photo.settle()


Scene = Callable[[Photographer], Awaitable[None]]
PICTURES: dict[str, tuple[Scene, tuple[int, int], str]] = {
    "dark": (lens, LARGE, DARK),
    "light": (lens, LARGE, LIGHT),
    "small-dark": (conversation, SMALL, DARK),
    "small-light": (conversation, SMALL, LIGHT),
    "small-inspector": (lens, SMALL, DARK),
    "picker": (picker, SMALL, DARK),
    "drafters": (drafters, SMALL, LIGHT),
    "help": (help_, LARGE, DARK),
    "settings": (settings, LARGE, LIGHT),
}


async def take(name: str, out: Path, threads: int) -> None:
    """One picture."""
    scene, size, theme = PICTURES[name]
    overrides = {**SETTINGS, "theme": theme, "threads": threads}
    app = ChatApp(ChatOptions(model=demo_path(DEMO_TARGET), overrides=overrides, settings=Path("chat.toml")))
    try:
        async with app.run_test(size=size) as pilot:
            photo = Photographer(app, pilot, out)
            await scene(photo)
            photo.save(name)
    finally:
        app.shut_down()


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("docs"), show_default=True)
@click.option("--only", type=click.Choice(list(PICTURES)), multiple=True, help="Only these (repeatable).")
@click.option("--threads", default=0, help="CPU threads (0: physical cores).")
def main(out: Path, only: tuple[str, ...], threads: int) -> None:
    """Take the pictures; nothing of the user's is read or written."""
    with tempfile.TemporaryDirectory() as folder:
        for variable in ("LCSPEC_DATA_DIR", "XDG_CONFIG_HOME", "HOME"):
            os.environ[variable] = str(Path(folder) / variable.lower())
        os.environ.pop("NO_COLOR", None)
        for name in only or PICTURES:
            os.environ["LCSPEC_DATA_DIR"] = str(Path(folder) / name)
            asyncio.run(take(name, out, threads))


if __name__ == "__main__":
    main()

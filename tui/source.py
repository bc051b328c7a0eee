"""Where answers come from: an engine of the chat's own (`bridge`), or a server (`remote`)."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Sequence, Union

from lcspec.answers.stored import ThinkTags
from lcspec.config import DraftFiles, SpeculationParams
from lcspec.engine.events import Failed, Finished, Prefill, Started, Step, Tokens
from lcspec.sampling.parameters import SamplingParams
from lcspec.tui.conversation import ChatTokenizer, Prompt
from lcspec.tui.store import Message

# The context of a server that does not tell its own.
UNKNOWN = sys.maxsize

Item = Union[Started, Prefill, Tokens, Step, Finished, Failed]


@dataclass(frozen=True)
class Loaded:
    """What the interface needs to know about the model that answers.

    Attributes:
        path, files: the target (of a server: its name for the model), and what there is to draft with.
        name: what it is called everywhere on the screen: its file's name, or the one inside where the file has none.
        quantization: as in the file.
        n_ctx, n_ctx_train: positions of the context (UNKNOWN: nobody says), and how many the model was trained for (0:
            unknown).
        threads: CPU threads in use.
        spare: whether decoding leaves a core free.
        notes: sentences on what did not go as asked for, and on what was decided about drafting.
        exact: whether every text has the same bits with drafts and without; None: nobody says.
        server: where the server is; empty for a model on this machine.
    """

    path: Path
    files: DraftFiles
    name: str
    quantization: str
    n_ctx: int
    threads: int
    spare: bool = False
    n_ctx_train: int = 0
    notes: tuple[str, ...] = ()
    exact: bool | None = None
    server: str = ""

    @property
    def draft(self) -> Path | None:
        """The first draft model."""
        return next(iter(self.files.models), None)

    @property
    def heading(self) -> str:
        """Model, draft model and quantization, or model and server."""
        if self.server:
            return f"{self.name} at {self.server}"
        draft = f" + {self.draft.stem}" if self.draft is not None else ""
        known = self.quantization.lower() in self.name.lower()
        return f"{self.name}{draft}" + ("" if known else f", {self.quantization}")


@dataclass
class Progress:
    """How far loading is; written by the engine thread, read by the screen."""

    what: str = ""
    fraction: float = 0.0
    given_up: bool = False
    seen: list[str] = field(default_factory=list)

    def __call__(self, what: str, fraction: float) -> bool:
        """The engine's progress callback; False makes it give up."""
        if what not in self.seen:
            self.seen.append(what)
        self.what, self.fraction = what, fraction
        return not self.given_up


@dataclass(frozen=True)
class Question:
    """What is to be answered; `before`: the answer to go on with, of which `prompt` has nothing."""

    prompt: Prompt
    sampling: SamplingParams
    speculation: SpeculationParams
    max_tokens: int | None = None
    before: Message | None = None


class Running(Protocol):
    """One running request, as the interface sees it."""

    counts: bool  # whether every `Tokens` says how many tokens its text is

    @property
    def done(self) -> bool:
        """Whether its end was drained."""
        ...

    @property
    def accepted(self) -> bool:
        """Whether it was taken."""
        ...

    def drain(self) -> list[Item]:
        """Everything that came since the last time; a refusal comes as Failed."""
        ...

    def cancel(self) -> None:
        """End it as soon as possible."""
        ...


@dataclass(frozen=True)
class Asked:
    """A request on its way: `prompt` with the answer it goes on with, `tags` to read the answer with (None: as it
    is)."""

    running: Running
    prompt: Prompt
    tags: ThinkTags | None = None


class Source(Protocol):
    """A model, and the requests on it."""

    progress: Progress

    @property
    def local(self) -> bool:
        """Whether the engine is on this machine and the chat's own: lens, inspector and drafters need that."""
        ...

    @property
    def title(self) -> str:
        """What is loaded, for the loading screen."""
        ...

    @property
    def alive(self) -> bool:
        """Whether asking again makes sense."""
        ...

    @property
    def tokenizer(self) -> ChatTokenizer:
        """Counts conversations; from any thread."""
        ...

    def tokenize(self, text: str) -> Sequence[int]:
        """Token ids of a text; from any thread."""
        ...

    def piece(self, token: int) -> str:
        """The text of a token, "" where nobody knows it."""
        ...

    async def ready(self) -> object:
        """Wait until it can be asked.

        Raises:
            LcspecError: it never will.
        """
        ...

    async def prepare(self, speculation: SpeculationParams) -> Loaded:
        """Get ready for drafting so, and say what was decided.

        Raises:
            LcspecError: the drafters cannot be had.
        """
        ...

    async def ask(self, question: Question) -> Asked:
        """Begin an answer.

        Raises:
            LcspecError: it cannot be asked so.
        """
        ...

    async def switch(self, running: Running, speculation: SpeculationParams) -> None:
        """Give a running answer other drafters.

        Raises:
            LcspecError: they cannot be had; the answer goes on as before.
        """
        ...

    def interruption(self) -> str | None:
        """Why the engine had to be started again since the latest question; None: it had not."""
        ...

    def give_up(self) -> None:
        """Stop loading."""
        ...

    def close(self, timeout: float = 10.0) -> bool:
        """End everything; False if it did not end in time."""
        ...

"""From what a user names (files, counts, strategy strings) to a running engine. Every front end starts here."""

from __future__ import annotations

import contextlib
import gc
import importlib.resources
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterator, Mapping, Sequence

from lcspec.config import DrafterSpec, ModelOptions, SpeculationParams
from lcspec.errors import ModelFileError

if TYPE_CHECKING:
    from lcspec.engine import Engine
    from lcspec.llama import Model

Progress = Callable[[str, float], bool | None]

DEMO_TARGET = "demo-target-q8_0.gguf"
DEMO_DRAFT = "demo-draft-q8_0.gguf"


def demo_path(name: str) -> Path:
    """Path of a bundled model.

    Raises:
        ModelFileError: this installation came without it.
    """
    path = Path(str(importlib.resources.files("lcspec.demo_models"))) / name
    if not path.exists():
        raise ModelFileError(
            f"the bundled model {name} is missing from this installation: reinstall lcspec, or name a GGUF"
        )
    return path


@dataclass(frozen=True)
class ModelPair:
    """Which files to load. Without a model the bundled pair serves, with its own draft unless another is named."""

    target: Path
    draft: Path | None

    @classmethod
    def resolve(cls, model: Path | None, draft: Path | None) -> ModelPair:
        """Fill in the bundled files."""
        if model is None:
            return cls(demo_path(DEMO_TARGET), draft or demo_path(DEMO_DRAFT))
        return cls(model, draft)


@dataclass
class Session:
    """A loaded target with its engine."""

    model: Model
    engine: Engine

    def prompt_ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a raw prompt."""
        ids = tuple(self.model.vocab.tokenize(text))
        # A model that adds no BOS has nothing to continue in an empty prompt; its BOS or end token starts a text.
        return ids or (max(self.model.vocab.bos, self.model.vocab.eos, 0),)

    def chat_ids(self, messages: Sequence[Mapping[str, object]]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Token ids of a conversation ready for the assistant's answer, and the template's stop strings."""
        from lcspec.llama.template import ChatTemplate

        template = ChatTemplate(self.model)
        text = template.render(messages)
        return tuple(self.model.vocab.tokenize(text, special=not template.has_bos(text))), template.stop


@contextlib.contextmanager
def open_session(
    options: ModelOptions, draft: Path | None = None, progress: Progress | None = None, heads: Path | None = None
) -> Iterator[Session]:
    """Load the target and make an engine; the draft model is loaded when a request first needs it.

    Raises:
        LcspecError: the files cannot be used; the message says what to do.
    """
    from lcspec.drafters import DrafterEnv
    from lcspec.engine import Engine
    from lcspec.llama import Model

    def report(what: str) -> Callable[[float], bool | None] | None:
        return None if progress is None else lambda fraction: progress(what, fraction)

    with Model.load(options, report(options.path.name)) as model:
        engine = Engine(model, options)
        engine.env = DrafterEnv(
            target=model,
            slots=options.slots,
            ctx=engine.context.n_ctx,
            draft_path=draft,
            heads_path=heads,
            threads=options.threads,
            gpu_layers=options.gpu_layers,
            progress=report(draft.name) if draft is not None else None,
        )
        gc.freeze()  # what is loaded stays: the collector need not walk it between steps
        with engine:
            yield Session(model, engine)


def parse_speculation(
    text: str,
    *,
    has_draft: bool,
    has_heads: bool = False,
    has_grammar: bool = False,
    has_prediction: bool = False,
    max_draft: int | None = None,
    verifier: str = "coupled",
    exact: bool = False,
) -> SpeculationParams:
    """Read `--speculate`: off, or drafters separated by commas, each `name[:option=value...]`.

    `auto` asks every drafter that this session can have.
    """
    if text == "auto":
        names = ["prediction"] * has_prediction + ["forced"] * has_grammar + ["ngram", "suffix"]
        names += ["medusa"] * has_heads + ["model"] * has_draft
        specs = tuple(DrafterSpec(name) for name in names)
    elif text in ("off", "none", ""):
        specs = ()
    else:
        specs = tuple(DrafterSpec.parse(part) for part in text.split(",") if part.strip())
    return SpeculationParams(specs, auto=text == "auto", max_draft=max_draft, verifier=verifier, exact=exact)


def loading_line() -> Progress | None:
    """A progress line on a terminal's stderr while models load; None elsewhere."""
    if not sys.stderr.isatty():
        return None

    def show(what: str, fraction: float) -> None:
        end = "\r\x1b[K" if fraction >= 1.0 else ""
        sys.stderr.write(f"\r\x1b[Kloading {what} {fraction:4.0%}{end}")
        sys.stderr.flush()

    return show

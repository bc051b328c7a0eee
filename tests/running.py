"""Running requests on an engine and keeping everything that came out."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterable, Sequence
from unittest.mock import patch

from lcspec.config import ModelOptions, SpeculationParams
from lcspec.engine.engine import Engine
from lcspec.engine.events import Event, Failed, Finished, Started, StepStats, Tokens
from lcspec.engine.request import Request
from lcspec.errors import LcspecError
from lcspec.llama import Context, offloads
from lcspec.placement import Placement
from lcspec.profiles.cost_curve import CostCurve
from lcspec.profiles.price import Price
from lcspec.profiles.step_cost import SHORT_CONTEXT, measure
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, parse_speculation

# A GPU's kernels round in other ways at other widths.
ROUNDS_ALIKE = not offloads(Placement())
GREEDY = SamplingParams(temperature=0.0, seed=1)
SEEDED = SamplingParams(temperature=0.8, seed=7)
SAMPLINGS = {"greedy": GREEDY, "seeded": SEEDED}

CODE = (
    "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return ",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n        self.items",
    "import os\n\nfor name in os.listdir('.'):\n    if name.endswith('.py'):\n        print(name)\n\nfor name in ",
    "def read(path):\n    with open(path) as file:\n        return file.read()\n\n\ndef write(path, text):\n    with ",
    "x = 1\ny = 2\nz = 3\nprint(x, y, z)\nx = 1\ny = 2\nz = 3\n",
)
CHAT = (
    "Hello, how are you today?",
    "I would like a large coffee with milk, please.",
    "Tom has 3 apples and buys 4 more. How many apples has he now?",
    "What is your favourite colour, and why?",
    "Can you tell me where the station is?",
)


@dataclass
class Answer:
    """What one request gave."""

    events: list[Event] = field(default_factory=list)
    error: LcspecError | None = None

    @property
    def started(self) -> Started:
        return next(e for e in self.events if isinstance(e, Started))

    @property
    def finished(self) -> Finished:
        return next(e for e in self.events if isinstance(e, Finished))

    @property
    def reason(self) -> str:
        return self.finished.reason

    @property
    def infos(self) -> list[Any]:
        return [info for e in self.events if isinstance(e, Tokens) for info in e.tokens]

    @property
    def ids(self) -> list[int]:
        return [info.id for info in self.infos]

    @property
    def bits(self) -> list[tuple[int, float | None]]:
        """Every token with its log-probability, which shows a change in the logits long before the token does."""
        return [(info.id, info.logprob) for info in self.infos]

    @property
    def text(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, Tokens))

    @property
    def steps(self) -> list[StepStats]:
        return [e for e in self.events if isinstance(e, StepStats)]


def until(condition: Callable[[], object], told: Callable[[], object] = str, patience: float = 300.0) -> None:
    """Wait for what another thread or process does; `told` is what is said where it never comes."""
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, told()
        time.sleep(0.02)


def _measure_once(*given: Any, **named: Any) -> CostCurve:
    """T(n) of every width at one length, one decode each."""
    with patch("lcspec.profiles.step_cost.LONG_CONTEXT", SHORT_CONTEXT):
        return measure(*given, repeat=1, **named)


@contextlib.contextmanager
def hasty_measuring() -> Iterator[None]:
    """Inside, what this machine takes is measured in a hurry: tests share the processors, so that no figure would be
    right however often it is taken, and every figure must do.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch("lcspec.profiles.steadiness.SHARE", 0.0))
        stack.enter_context(patch("lcspec.profiles.step_cost.RETRIES", 0))
        stack.enter_context(patch("lcspec.engine.learned.measure", _measure_once))
        stack.enter_context(patch.multiple("lcspec.profiles.attention", LAYERS=1, READS=1, REPEAT=1))
        yield


def options(path: Path, **changes: Any) -> ModelOptions:
    """One thread and a small context: these models are tiny and the machine may be busy. The library's attention,
    because what is faster is not the same everywhere, and texts have near ties.
    """
    return ModelOptions(path, **{"ctx": 512, "threads": 1, "attention": "library", **changes})


def speculation(text: str = "off", **changes: Any) -> SpeculationParams:
    """`--speculate` as the command line reads it, in a session that has a draft model (if nothing else is said)."""
    return parse_speculation(text, **{"draft": Path("draft.gguf"), **changes})


def request(
    prompt: Sequence[int], speculate: str = "off", n: int | None = 32, *, sampling: SamplingParams = GREEDY, **rest: Any
) -> Request:
    """A request; `rest` is shared out between the request and its speculation."""
    own = {k: rest.pop(k) for k in ("stop", "logprobs", "ignore_end", "prediction") if k in rest}
    return Request(tuple(prompt), sampling, speculation(speculate, **rest), n, **{"ignore_end": True, **own})


def answer(engine: Engine, wanted: Request) -> Answer:
    """Run one request to its end."""
    return Answer(list(engine.run(wanted)))


def side_by_side(engine: Engine, wanted: Iterable[Request]) -> list[Answer]:
    """Run requests together, to their ends."""
    found = {engine.submit(w): Answer() for w in wanted}
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Failed):
                found[event.request].error = event.error
            else:
                found[event.request].events.append(event)
    return list(found.values())


@contextlib.contextmanager
def decodes_counted(context: Context, unless: Callable[[], bool] = lambda: False) -> Iterator[list[int]]:
    """A list whose only number is how often `context` has decoded, `unless` that said otherwise."""
    decode, count = context.decode, [0]

    def counting(**named: Any) -> float:
        count[0] += not unless()
        return decode(**named)

    with patch.object(context, "decode", counting):
        yield count


def at_price(price: Price) -> Callable[..., list[tuple[ModelOptions, Price]]]:
    """What takes the place of `kernels.prices` where every exact way shall cost the same."""
    return lambda model, options, ways: [(way, price) for way in ways]


def prompts(session: Session, n_chat: int, n_code: int) -> list[tuple[int, ...]]:
    """Token ids of the first chat and code prompts."""
    chat = [session.chat_ids([{"role": "user", "content": text}])[0] for text in CHAT[:n_chat]]
    return chat + [session.prompt_ids(text) for text in CODE[:n_code]]


class Brake:
    """Lets the engine take as many steps as it is allowed, so that a test can act in the middle of an answer."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)
        self._open = False

    def install(self, session: Session) -> None:
        """On the engine thread."""
        step = session.engine.step

        def braked() -> list[Event]:
            while session.engine.busy and not self._open and not self._permits.acquire(timeout=0.05):
                return []  # orders are obeyed between two steps
            return step()

        session.engine.step = braked  # type: ignore[method-assign]

    def allow(self, steps: int) -> None:
        """Some more steps."""
        self._permits.release(steps)

    def release(self) -> None:
        """As many as it likes."""
        self._open = True


def own_cache(folder: Path) -> Path:
    """A cache directory below `folder` in which nothing lies but what was measured of this machine's kernels."""
    measured, own = Path(os.environ["LCSPEC_CACHE_DIR"]), folder / "cache"
    own.mkdir()
    for kind in ("attention", "work", "exact"):
        (measured / kind).mkdir(parents=True, exist_ok=True)
        (own / kind).symlink_to(measured / kind)
    return own

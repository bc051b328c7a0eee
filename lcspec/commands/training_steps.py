"""The steps of the commands that train drafts: have the target write answers, train, report."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from lcspec.commands.training_run import Recipe, bar
from lcspec.config import ModelOptions
from lcspec.errors import UnsupportedModel, UsageError
from lcspec.llama import Context, Model
from lcspec.placement import loading_fields
from lcspec.session import loading_line
from lcspec.training.choices import CHOICE_TEMPERATURES, ChoiceWriter
from lcspec.training.collect import TEMPERATURES, Job, Writer, answer_jobs, invent
from lcspec.training.prompts import PromptMaker, Source
from lcspec.training.task import TrainingTask
from lcspec.training.texts import TextStore

if TYPE_CHECKING:
    from lcspec.training.clock import Trained  # needs PyTorch, which is optional

# Share of the time for collecting when `--positions` does not end it before.
COLLECT_SHARE = 0.4
LEAST_POSITIONS = 200
# Prompts a model invents when it is given none, and the share of the time for collecting that any number may take.
INVENTED = 400
INVENT_SHARE = 0.15
# Seconds between two notes of the time spent, for a run that goes on after a kill.
NOTE_SECONDS = 10.0


T = TypeVar("T")


class Store(Protocol):
    """Where what was collected is kept."""

    def __len__(self) -> int: ...

    @property
    def answers(self) -> int: ...


def seconds_collecting(work: Path) -> float:
    """Seconds that collecting took so far."""
    return float(_spent(work)["seconds"])


def _spent(work: Path) -> dict[str, Any]:
    try:
        found = json.loads((work / "collect.json").read_text())
        return {"seconds": float(found["seconds"]), "done": bool(found["done"])}
    except (OSError, ValueError, KeyError, TypeError):  # not begun, or half written: what was collected is kept
        return {"seconds": 0.0, "done": False}


def collect(
    path: Path,
    o: dict[str, Any],
    recipe: Recipe,
    sources: list[Source],
    work: Path,
    store: Store,
    make_writer: Callable[[Context, int], Writer],
    keep: Callable[[Writer, Job], None],
    temperatures: tuple[float, ...] = TEMPERATURES,
    recurrent: bool = False,
) -> None:
    """Have the model at `path` write answers for `keep`, up to the wanted positions or the end of their share of time.

    `recurrent`: models with a recurrent state may write them, too.

    Raises:
        LcspecError: the model cannot be used, or no prompt fits its context.
    """
    spent = _spent(work)
    if spent["done"]:
        return
    limit = COLLECT_SHARE * 60.0 * recipe.minutes
    options = ModelOptions(
        path, ctx=o["ctx"] or 512, slots=o["slots"], threads=o["threads"], max_width=max(64, o["slots"]),
        **loading_fields(o),
    )  # fmt: skip
    began = time.monotonic()

    def used() -> float:
        return float(spent["seconds"]) + time.monotonic() - began

    def finished(done: bool) -> None:
        (work / "collect.json").write_text(json.dumps({"seconds": round(used(), 2), "done": done}))

    with Model.load(options, _loading(path)) as model, _context(model, options, recurrent) as context:
        writer = make_writer(context, recipe.seed + store.answers)
        room = writer.context.n_ctx - recipe.answer
        with bar("collecting") as show:
            early = INVENT_SHARE * limit
            if wanted := recipe.invent or (0 if sources else INVENTED):
                enough, longest = (lambda n: n > 3 and used() > early), min(room // 2, 64)
                sources = sources + _invented(model, writer, work, wanted, longest, enough)
            maker = PromptMaker(model, sources, room, recipe.seed)
            noted = time.monotonic()

            def done(job: Job) -> bool:
                nonlocal noted
                keep(writer, job)
                show(max(len(store) / recipe.positions, used() / limit))
                if time.monotonic() - noted > NOTE_SECONDS:
                    finished(False)
                    noted = time.monotonic()
                return len(store) < recipe.positions and (used() < limit or len(store) < LEAST_POSITIONS)

            try:
                writer.run(answer_jobs(maker, recipe.answer, store.answers, temperatures), done)
            except KeyboardInterrupt:
                finished(False)
                raise
    if not len(store):
        raise UsageError("none of the text fits the context: give shorter prompts or a larger --ctx")
    finished(True)


def collect_texts(
    path: Path,
    o: dict[str, Any],
    recipe: Recipe,
    sources: list[Source],
    work: Path,
    store: TextStore,
    make_writer: Callable[[Context, int], ChoiceWriter],
    recurrent: bool = False,
) -> None:
    """`collect` into a TextStore; says what there is at the end.

    Raises:
        LcspecError: as `collect`.
    """
    began = time.monotonic()

    def keep(writer: Writer, job: Job) -> None:
        assert isinstance(writer, ChoiceWriter)
        store.append(writer.text(job), job.group)

    collect(path, o, recipe, sources, work, store, make_writer, keep, CHOICE_TEMPERATURES, recurrent)
    if time.monotonic() - began > 1.0:
        click.echo(f"collected {len(store)} tokens of {store.answers} answers and their prompts", err=True)


@contextlib.contextmanager
def _context(model: Model, options: ModelOptions, recurrent: bool) -> Iterator[Context]:
    if not recurrent and not model.traits.attention_only:
        raise UnsupportedModel(
            f"{options.path.name} has a recurrent state: heads are not made for such models yet; "
            "use a model with plain attention"
        )
    with Context(model, replace(options, streams=True), spare=False) as context:
        yield context


def _loading(path: Path) -> Any:
    line = loading_line()
    return None if line is None else lambda fraction: line(path.name, fraction)


def _invented(
    model: Model, writer: Writer, work: Path, n: int, room: int, enough: Callable[[int], bool]
) -> list[Source]:
    """Prompts of the model's own, made once and kept in the work folder."""
    path = work / "invented.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # not made yet, or half written
        return [Source(tuple(item["messages"]), item["text"]) for item in json.loads(path.read_text())]
    made = invent(model, writer, n, room, enough)
    path.write_text(json.dumps([{"messages": s.messages, "text": s.text} for s in made]))
    return made


def train(
    out: Path,
    model: Path,
    o: dict[str, Any],
    recipe: Recipe,
    store: TextStore,
    work: Path,
    make: Callable[[TrainingTask], T],
) -> T:
    """`make` a draft of the texts in `store`, with a progress bar, in the time that collecting has left."""
    with bar("training") as show:
        return make(
            TrainingTask(
                out=out,
                target=model,
                store=store,
                work=work,
                seconds=max(1.0, 60.0 * recipe.minutes - seconds_collecting(work)),
                seed=recipe.seed,
                threads=o["threads"],
                storage=o["store"],
                sources=sources_line(o["text"], recipe.invent),
                show=show,
            )
        )


def sources_line(text: Sequence[Path], invent: int) -> str:
    """What the prompts were made from, for people."""
    names = [p.name for p in text] + ["prompts invented by the model itself"] * bool(invent or not text)
    return ", ".join(names)


def tell(trained: Trained, store: TextStore, *lines: str) -> None:
    """Say how the training went, then `lines`, then figures on held-out texts."""
    progress, found = trained.progress, trained.measured
    before = progress.history[0][2]
    click.echo(
        "\n".join(
            [
                f"trained for {progress.step} steps, {progress.passes} passes over {len(store)} tokens of "
                f"{store.answers} answers",
                *lines,
                f"held out ({found.rows} drafts, greedy):",
                "  depth       " + "".join(f"{k:>7}" for k in range(1, len(found.depths) + 1)),
                "  acceptance  " + "".join(f"{x:>7.3f}" for x in found.depths),
                f"  {found.length:.2f} tokens for each step of the model, with chains of {len(found.depths)} "
                f"({before:.2f} before training)",
            ]
        )
    )
    if progress.best <= before:
        click.echo(
            "it learned nothing that helps with held-out texts: give it more --minutes, or more --text", err=True
        )

"""The line above the input: context fill, speed, what the drafters do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator

from textual.content import Content
from textual.widgets import Static

from lcspec.tui.conversation import ContextFill
from lcspec.tui.lens import style_of
from lcspec.tui.source import UNKNOWN
from lcspec.tui.speculation import SpeculationLog
from lcspec.tui.wording import gauge, saved, steps

NEARLY_FULL = 0.85


@dataclass(frozen=True)
class Status:
    """What the line shows.

    Attributes:
        fill: of the context.
        phase: what goes on: "", "thinking of an answer ...".
        rate: tokens a second of the answer.
        drafters: as the user chose them (auto, off, names); empty where a server decides.
        lens: whether the lens is on; then the drafters' tints are explained.
    """

    fill: ContextFill
    phase: str = ""
    rate: float | None = None
    drafters: str = "auto"
    lens: bool = False


class StatusLine(Static):
    """One line; what matters most comes first, and what does not fit is left out."""

    _shown: tuple[Status, SpeculationLog] | None = None

    def on_resize(self) -> None:
        """There is more room now, or less."""
        if self._shown is not None:
            self.show(*self._shown)

    def show(self, status: Status, log: SpeculationLog) -> None:
        """Show it."""
        self._shown = status, log
        line = self._fill(status.fill)
        room = self.content_size.width
        for part in self._parts(status, log):
            if not room or line.cell_length + 2 + part.cell_length <= room:
                line = Content.assemble(line, "  ", part)
        self.update(line, layout=False)

    @staticmethod
    def _fill(fill: ContextFill) -> Content:
        if fill.limit == UNKNOWN:
            return Content.assemble(("context ", "dim"), f"{fill.used} tokens")
        full = fill.fraction >= NEARLY_FULL
        return Content.assemble(
            ("context ", "dim"),
            (f"{gauge(fill.fraction)} ", "$text-error" if full else "$text-primary"),
            (f"{fill.used}/{fill.limit} ({fill.fraction:.0%})", "bold" if full else ""),
        )

    def _parts(self, status: Status, log: SpeculationLog) -> Iterator[Content]:
        """What stands behind the context."""
        if status.phase:
            yield Content.styled(status.phase, "$text-warning")
        if status.rate is not None:
            yield Content.styled(f"{status.rate:.1f} tokens/s", "bold")
        names = sorted(log.by_drafter, key=lambda name: -log.by_drafter[name][1])
        if status.lens:
            tints = self._tints(names or ["model", "ngram", "suffix"])
            yield Content.assemble(("coloured words were guessed by ", "dim"), *tints)
        elif status.drafters:
            yield Content.styled(f"drafters {status.drafters}", "dim")
        if log.count and (per_step := steps(log.tokens_per_step)):
            yield Content(per_step)
        for name in names[:3] if not status.lens else ():
            drafted, accepted = log.by_drafter[name]
            yield Content.styled(f"{name} {accepted}/{drafted}", "dim")
        if log.count and log.saved is not None:
            yield Content(saved(log.saved))

    def _tints(self, names: list[str]) -> list[str | tuple[str, str]]:
        out: list[str | tuple[str, str]] = []
        for name in names:
            out += [" " if out else "", (name, style_of(name, colour=not self.app.no_color))]
        return out

"""The line above the input: context fill, speed, what the drafters do."""

from __future__ import annotations

from dataclasses import dataclass

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
    """One line; what matters most comes first, so that a narrow screen cuts the rest."""

    def show(self, status: Status, log: SpeculationLog) -> None:
        """Show it."""
        fill = status.fill
        full = fill.fraction >= NEARLY_FULL
        parts: list[str | tuple[str, str]] = [("context ", "dim")]
        if fill.limit == UNKNOWN:
            parts.append(f"{fill.used} tokens")
        else:
            parts += [
                (f"{gauge(fill.fraction)} ", "$text-error" if full else "$text-primary"),
                (f"{fill.used}/{fill.limit} ({fill.fraction:.0%})", "bold" if full else ""),
            ]
        if status.phase:
            parts += [("  ", ""), (status.phase, "$text-warning")]
        if status.rate is not None:
            parts += [("  ", ""), (f"{status.rate:.1f} tokens/s", "bold")]
        names = sorted(log.by_drafter, key=lambda name: -log.by_drafter[name][1])
        if status.lens:
            parts += [("  coloured words were guessed by ", "dim"), *self._tints(names or ["model", "ngram", "suffix"])]
        if status.drafters:
            parts += [("  ", ""), (f"drafters {status.drafters}", "dim")]
        if log.count:
            per_step = steps(log.tokens_per_step)
            parts.append(f"  {per_step}" if per_step else "")
            for name in names[:3]:
                drafted, accepted = log.by_drafter[name]
                parts.append((f"  {name} {accepted}/{drafted}", "dim"))
            if log.saved is not None:
                parts.append(f"  {saved(log.saved)}")
        self.update(Content.assemble(*parts), layout=False)

    def _tints(self, names: list[str]) -> list[str | tuple[str, str]]:
        out: list[str | tuple[str, str]] = []
        for name in names:
            out += [(name, style_of(name, colour=not self.app.no_color)), " "]
        return out

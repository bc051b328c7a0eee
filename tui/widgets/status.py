"""The line above the input: context fill, speed, what the drafters do."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content
from textual.widgets import Static

from lcspec.tui.conversation import ContextFill
from lcspec.tui.speculation import SpeculationLog
from lcspec.tui.wording import gauge, seconds

NEARLY_FULL = 0.85


@dataclass(frozen=True)
class Status:
    """What the line shows.

    Attributes:
        fill: of the context.
        phase: what goes on: "", "thinking of an answer ...".
        rate: tokens a second of the answer.
        drafters: as the user chose them (auto, off, names).
    """

    fill: ContextFill
    phase: str = ""
    rate: float | None = None
    drafters: str = "auto"


class StatusLine(Static):
    """One line; what matters most comes first, so that a narrow screen cuts the rest."""

    def show(self, status: Status, log: SpeculationLog) -> None:
        """Show it."""
        fill = status.fill
        full = fill.fraction >= NEARLY_FULL
        parts: list[str | tuple[str, str]] = [
            ("context ", "dim"),
            (f"{gauge(fill.fraction)} ", "$text-error" if full else "$text-primary"),
            (f"{fill.used}/{fill.limit} ({fill.fraction:.0%})", "bold" if full else ""),
        ]
        if status.phase:
            parts += [("  ", ""), (status.phase, "$text-warning")]
        if status.rate is not None:
            parts += [("  ", ""), (f"{status.rate:.1f} tokens/s", "bold")]
        parts += [("  ", ""), (f"drafters {status.drafters}", "dim")]
        if log.count:
            parts.append(f"  {log.tokens_per_step:.2f}/step")
            for name, (drafted, accepted) in sorted(log.by_drafter.items(), key=lambda item: -item[1][1])[:3]:
                parts.append((f"  {name} {accepted}/{drafted}", "dim"))
            if log.compared:
                parts.append(f"  saved {seconds(log.saved_seconds)}")
        self.update(Content.assemble(*parts))

"""`--explain`: what the planner compared and expected in each step, and what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from lcspec.engine.events import Event, StepStats

if TYPE_CHECKING:
    from lcspec.llama import Vocab

# Widths shown for a step, besides plain decoding and the chosen one.
SHOWN = 3


@dataclass
class Explainer:
    """Collects steps; prints a line for each to stderr, and a summary at the end."""

    vocab: Vocab
    steps: int = 0
    expected_tokens: float = 0.0
    expected_seconds: float = 0.0
    emitted: int = 0
    seconds: float = 0.0
    target_seconds: float = 0.0
    widths: dict[int, int] = field(default_factory=dict)

    def show(self, event: Event) -> None:
        """Print a step."""
        if not isinstance(event, StepStats):
            return
        plan, n = event.plan, event.tree.n_drafted
        self.steps += 1
        self.emitted += len(event.emitted)
        spent = event.seconds
        self.seconds += spent
        self.target_seconds += event.target_seconds
        self.widths[event.width] = self.widths.get(event.width, 0) + 1
        text = "".join(self.vocab.text([t]) for t in event.emitted)
        line = f"step {self.steps}: drafted {n}, accepted {event.accepted}, wrote {text!r}"
        if plan.seconds:
            self.expected_tokens += plan.tokens
            self.expected_seconds += plan.seconds
            padded = f", padded to {plan.width}" if plan.width > event.width else ""
            line += (
                f"; width {event.width}{padded}: expected {plan.tokens:.2f} tokens in {plan.seconds * 1e3:.1f} ms, "
                f"got {len(event.emitted)} in {event.target_seconds * 1e3:.1f} ms + {event.draft_seconds * 1e3:.1f} ms "
                "drafting"
            )
        if plan.considered:
            line += f"; considered {self._weighed(plan.considered, n)}"
        click.echo(line, err=True)

    @staticmethod
    def _weighed(considered: list[tuple[int, float, float]], chosen: int) -> str:
        ranked = sorted(considered, key=lambda c: -c[1] / c[2])
        shown = {c[0]: c for c in [*ranked[:SHOWN], *(c for c in considered if c[0] in (0, chosen))]}
        return ", ".join(f"{n}: {tokens / seconds:.0f}/s" for n, (_, tokens, seconds) in sorted(shown.items()))

    def close(self) -> None:
        """Print the summary."""
        if not self.steps:
            return
        click.echo(f"{self.steps} steps, widths {dict(sorted(self.widths.items()))}", err=True)
        if self.expected_seconds and self.target_seconds:
            expected = self.expected_tokens / self.expected_seconds
            measured = self.emitted / self.target_seconds
            click.echo(
                f"target steps: expected {expected:.1f} tokens/s, measured {measured:.1f} "
                f"({measured / expected:.2f} of it); with drafting and Python {self.emitted / self.seconds:.1f}",
                err=True,
            )

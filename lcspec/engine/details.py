"""What an interface shows of a step beyond its own account: who drafts, and what the step is compared with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Sequence

from lcspec.engine.events import Event, Started, Step, StepStats

if TYPE_CHECKING:  # a server shows steps, and does not load the library
    from lcspec.engine.drafting import Drafting
    from lcspec.engine.exact_policy import ExactPolicy


class Details:
    """Turns the StepStats of one request into Steps."""

    def __init__(self, drafting: Drafting, exact: ExactPolicy | None) -> None:
        """`exact`: of an exact request, whose steps have the widths that are certified; None for any other."""
        self._drafting, self._exact = drafting, exact
        self._length = 0  # of the text so far, in tokens

    def added(self, events: Sequence[Event]) -> list[Event]:
        """The events of a step; called on the engine's thread, before the next step."""
        return [self._step(event) if isinstance(event, StepStats) else self._seen(event) for event in events]

    def _seen(self, event: Event) -> Event:
        if isinstance(event, Started):
            self._length = event.prompt_tokens
        return event

    def _step(self, stats: StepStats) -> Step:
        self._length += len(stats.emitted)
        names = tuple(self._drafting.drafters)
        if self._drafting.auto is None:
            return Step(stats, names)
        curve, widths = self._drafting.auto.curve, frozenset({1})
        if self._exact is not None and self._exact.certificate is not None:
            widths = self._exact.certificate.widths  # plain decoding is padded to one of these, too
        plain = min((curve.seconds(w, self._length) for w in widths), default=math.inf)
        expected = stats.plan.seconds or curve.seconds(max(stats.width, stats.plan.width), self._length)
        return Step(stats, names, _known(plain), _known(expected))


def _known(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None

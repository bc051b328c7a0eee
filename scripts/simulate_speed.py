"""`lcspec bench` on a machine made of numbers: the models are real, the clock is not.

Every decode of the target takes what a given cost curve says for its width, every decode of a draft model a given
time; nothing else takes any, except what `--look-us` puts on every look at the clock, for Python. Drafts, acceptance
and texts are the real ones of the models at hand. So the planner's decisions can be judged without a machine's noise,
and for machines one does not have: `--curve flat:20` stands for a GPU on which every width up to 32 takes 20 ms.

    python scripts/simulate_speed.py --curve curve.json --draft-ms 0.7 -- \\
        models/demo-target-q8_0.gguf --draft models/demo-draft-q8_0.gguf --strategies 'ngram;auto' --repeat 1

`curve.json` is what `lcspec calibrate --json` printed on the machine to be simulated. Everything after `--` goes to
`lcspec bench`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from lcspec.profiles.cost_curve import CostCurve

# A wider batch than was measured is a prompt: it takes what its pieces would.
DRAFT_WIDENING = 0.05


def read_curve(text: str) -> CostCurve:
    """A curve from `flat:MILLISECONDS` or a file that `lcspec calibrate --json` wrote."""
    if text.startswith("flat:"):
        return CostCurve.flat(float(text.removeprefix("flat:")) / 1e3, 32)
    points = json.loads(Path(text).read_text(encoding="utf-8"))["seconds"]
    return CostCurve({int(n): {int(c): float(s) for c, s in by.items()} for n, by in points.items()})


class VirtualTime:
    """Stands in for the module `time` in everything that measures, and advances by what decodes are said to take."""

    def __init__(self, curve: CostCurve, draft_seconds: float, noise: float, look: float) -> None:
        self.curve, self.draft_seconds, self.noise, self.look = curve, draft_seconds, noise, look
        self.random = random.Random(1)
        self.now = 0.0
        self.targets: list[object] = []  # contexts of engines; whatever else decodes drafts

    def perf_counter(self) -> float:
        """Virtual seconds."""
        self.now += self.look
        return self.now

    def seconds_of(self, context: object, width: int) -> float:
        """What a decode takes."""
        if context not in self.targets:
            return self.draft_seconds * (1.0 + DRAFT_WIDENING * (width - 1))
        widest = self.curve.max_width
        known = min((n for n in self.curve.widths if n >= width), default=widest)
        seconds = self.curve.measured(known, 0) * max(1.0, width / widest)
        return seconds * self.random.lognormvariate(0.0, self.noise)

    def install(self) -> None:
        """Replace the clock everywhere."""
        import lcspec.engine.engine
        import lcspec.engine.sequence
        import lcspec.llama.context
        import lcspec.planner.auto
        import lcspec.planner.fixed
        import lcspec.planner.policy

        clock = SimpleNamespace(perf_counter=self.perf_counter)
        for module in (
            lcspec.planner.policy,
            lcspec.planner.auto,
            lcspec.engine.engine,
            lcspec.planner.fixed,
            lcspec.engine.sequence,
        ):
            module.time = clock  # type: ignore[attr-defined]
        real, begin = lcspec.llama.context.Context.decode, lcspec.engine.engine.Engine.__init__

        def init(engine: lcspec.engine.engine.Engine, *args: Any, **options: Any) -> None:
            begin(engine, *args, **options)
            self.targets.append(engine.context)

        def decode(context: lcspec.llama.context.Context, batch: lcspec.llama.batch.Batch | None = None) -> float:
            real(context, batch)
            took = self.seconds_of(context, (batch or context.batch).n)
            self.now += took
            return took

        lcspec.llama.context.Context.decode = decode  # type: ignore[method-assign]
        lcspec.engine.engine.Engine.__init__ = init  # type: ignore[method-assign]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--curve", required=True, help="A file from `lcspec calibrate --json`, or flat:MILLISECONDS.")
@click.option("--draft-ms", type=float, default=0.7, show_default=True, help="A step of the draft model.")
@click.option("--noise", type=float, default=0.0, show_default=True, help="Spread (log) of the target's times.")
@click.option("--look-us", type=float, default=0.0, show_default=True, help="What a look at the clock takes: Python.")
@click.argument("bench", nargs=-1, type=click.UNPROCESSED)
def main(curve: str, draft_ms: float, noise: float, look_us: float, bench: tuple[str, ...]) -> None:
    """Run `lcspec bench` in virtual time."""
    from lcspec.cli import cli

    with tempfile.TemporaryDirectory() as cache:  # nothing learned here may be taken for the machine's own figures
        os.environ["LCSPEC_CACHE_DIR"] = cache
        VirtualTime(read_curve(curve), draft_ms / 1e3, noise, look_us / 1e6).install()
        cli.main(["bench", *bench], standalone_mode=True)


if __name__ == "__main__":
    sys.exit(main())

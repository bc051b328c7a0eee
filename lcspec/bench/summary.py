"""From raw runs to the figures of the table and the report."""

from __future__ import annotations

import math
from typing import Any, Callable, Sequence

from lcspec.bench import predict
from lcspec.bench.prompts import groups
from lcspec.bench.records import PromptResult, Run
from lcspec.bench.runner import AUTO, PLAIN
from lcspec.bench.stats import Estimate, geometric_mean, median, speedups
from lcspec.profiles.cost_curve import CostCurve

Statistic = Callable[[Sequence[float]], float]


class Summary:
    """Figures over finished prompts; prompts that lack a strategy are left out."""

    def __init__(
        self,
        results: Sequence[PromptResult],
        strategies: Sequence[str],
        curve: CostCurve,
        widths: frozenset[int] | None = None,
    ) -> None:
        """`widths`: what steps were limited to (None: nothing)."""
        self.results = [r for r in results if r.covers(strategies)]
        self.strategies = list(strategies)
        self.curve = curve
        self._curves = {id(r): predict.rescaled(curve, r.of(PLAIN), r.tokens) for r in self.results}
        self._prices = {id(r): predict.pricing(self._curve(r), r.tokens, widths) for r in self.results}

    def as_dict(self) -> dict[str, Any]:
        """The `summary` object of results.json."""
        by_name = groups([r.prompt for r in self.results])
        return {
            "strategies": self.strategies,
            "groups": [self._group(name, [self.results[i] for i in ids], median) for name, ids in by_name.items()],
            "overall": self._group("all", self.results, geometric_mean) if self.results else None,
            "planner": predict.planner_ratios([s for r in self.results for run in r.of(AUTO) for s in run.steps]),
        }

    def _curve(self, result: PromptResult) -> CostCurve:
        """T(n) at the speed that the machine had on this prompt."""
        return self._curves[id(result)]

    def _group(self, name: str, results: Sequence[PromptResult], statistic: Statistic) -> dict[str, Any]:
        """Rows of one group; `statistic` condenses the prompts' ratios: the median, or overall the geometric mean."""
        rows = [self._row(results, s, statistic) for s in self.strategies]
        perfect = [x for r in results if (x := self._perfect(r)) is not None]
        return {
            "name": name,
            "prompts": len(results),
            "rows": rows,
            "perfect_drafter_speedup": _or_none(statistic(perfect)),
            "auto": self._regret(results, rows, statistic) if AUTO in self.strategies else None,
        }

    def _row(self, results: Sequence[PromptResult], strategy: str, statistic: Statistic) -> dict[str, Any]:
        runs = [run for r in results for run in r.of(strategy)]
        middle, mean = speedups(
            [[run.tokens_per_second for run in r.of(strategy)] for r in results],
            [[run.tokens_per_second for run in r.of(PLAIN)] for r in results],
        )
        steps = [s for run in runs for s in run.steps]
        seconds = sum(run.stats["decode_seconds"] for run in runs)
        drafted = sum(s.drafted for s in steps)
        if strategy == PLAIN:
            middle, mean = Estimate(middle.value), Estimate(mean.value)  # 1 by definition, whatever the repeats say
        shown = mean if statistic is geometric_mean else middle
        return {
            "strategy": strategy,
            "tokens_per_second": median([_rate(r, strategy) for r in results]),
            "speedup": shown.as_dict(),
            "speedup_median": middle.as_dict(),
            "speedup_geometric_mean": mean.as_dict(),
            "predicted_speedup": self._predicted(results, strategy, _curve_rate, statistic),
            "analysis_speedup": self._predicted(results, strategy, predict.analysis_rate, statistic),
            "perfect_knowledge_speedup": self._perfect_knowledge(results, strategy, statistic),
            "acceptance_length": sum(s.emitted for s in steps) / len(steps),
            "acceptance": sum(s.accepted for s in steps) / drafted if drafted else None,
            "chain_acceptance": predict.chain_acceptance(steps) if drafted else None,
            "drafted_by_depth": _added([run.stats["drafted_by_depth"] for run in runs]),
            "accepted_by_depth": _added([run.stats["accepted_by_depth"] for run in runs]),
            "target_share": sum(s.target for s in steps) / seconds if seconds else None,
            "draft_share": sum(s.draft for s in steps) / seconds if seconds else None,
            "identical": sum(all(run.difference is None for run in r.of(strategy)) for r in results),
            "lossless": all(run.lossless for run in runs),
        }

    def _predicted(
        self,
        results: Sequence[PromptResult],
        strategy: str,
        rate: Callable[[Run, int, CostCurve], float | None],
        statistic: Statistic,
    ) -> float | None:
        """Predicted rate over the predicted rate of plain decoding, both by the same curve."""
        ratios = []
        for r in results:
            ours = _mean_rate(r, strategy, self._curve(r), rate)
            plain = _mean_rate(r, PLAIN, self._curve(r), _curve_rate)
            if ours is None or plain is None:
                return None
            ratios.append(ours / plain)
        return _or_none(statistic(ratios))

    def _perfect_knowledge(self, results: Sequence[PromptResult], strategy: str, statistic: Statistic) -> float | None:
        """The bound of the same proposals, over plain decoding as it was priced for the prediction."""
        ratios = []
        for r in results:
            price = self._prices[id(r)]
            plain = _mean_rate(r, PLAIN, self._curve(r), _curve_rate)
            best = median([run.tokens / predict.perfect_knowledge_seconds(run, price) for run in r.of(strategy)])
            if plain is None or not best > 0:
                return None
            ratios.append(best / plain)
        return _or_none(statistic(ratios))

    def _perfect(self, result: PromptResult) -> float | None:
        n = result.of(PLAIN)[0].tokens
        price = self._prices[id(result)]
        plain = _mean_rate(result, PLAIN, self._curve(result), _curve_rate)
        return _or_none(n / predict.perfect_drafter_seconds(n, price) / plain) if plain is not None else None

    def _regret(
        self, results: Sequence[PromptResult], rows: Sequence[dict[str, Any]], statistic: Statistic
    ) -> dict[str, Any]:
        """`auto` over the best fixed strategy (one for the whole group), over plain decoding, and over whatever was
        best on each prompt. The last flatters the others: the luckiest of several noisy figures wins."""
        fixed = {row["strategy"]: row["speedup"]["value"] for row in rows if row["strategy"] != AUTO}
        mine = next(row["speedup"]["value"] for row in rows if row["strategy"] == AUTO)
        best = max(fixed, key=lambda s: float(fixed[s]))
        hindsight = [_rate(r, AUTO) / max(_rate(r, s) for s in fixed) for r in results]
        return {
            "best_fixed": best,
            "over_best_fixed": mine / fixed[best],
            "over_plain": mine,
            "over_best_of_each_prompt": statistic(hindsight),
        }


def _rate(result: PromptResult, strategy: str) -> float:
    """Median tokens per second of the repeats."""
    return median([run.tokens_per_second for run in result.of(strategy)])


def _curve_rate(run: Run, n_prompt: int, curve: CostCurve) -> float | None:
    seconds = predict.curve_seconds(run, n_prompt, curve)
    return run.tokens / seconds if seconds is not None else None


def _mean_rate(
    result: PromptResult, strategy: str, curve: CostCurve, rate: Callable[[Run, int, CostCurve], float | None]
) -> float | None:
    rates = [rate(run, result.tokens, curve) for run in result.of(strategy)]
    known = [x for x in rates if x is not None]
    return median(known) if known and len(known) == len(rates) else None


def _added(lists: Sequence[Sequence[int]]) -> list[int]:
    """Element by element, shorter lists counting as zeros behind their end."""
    return [sum(x[i] for x in lists if i < len(x)) for i in range(max(map(len, lists), default=0))]


def _or_none(value: float) -> float | None:
    """JSON knows no nan."""
    return value if math.isfinite(value) else None

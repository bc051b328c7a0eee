"""The table of a comparison of servers."""

from __future__ import annotations

import statistics
from typing import Any


def markdown(results: dict[str, Any]) -> str:
    """Rates, times to the first text and ratios by level, medians over rounds."""
    lines = [
        f"{results['target']}, {results['threads']} threads, {results['requests']} requests a run of {results['n']} "
        "tokens on average. Rates: tokens/s over all streams, prompts included; first text: median and 95th "
        "percentile, seconds; memory: megabytes at the peak, all processes.",
        "",
    ]
    for streams in sorted({r["streams"] for r in results["runs"]}):
        runs = [r for r in results["runs"] if r["streams"] == streams]
        rows = [_row(name, [r for r in runs if r["name"] == name]) for name in dict.fromkeys(r["name"] for r in runs)]
        lines += _level(streams, rows)
    return "\n".join(lines) + "\n"


def _row(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    good = [r for r in runs if "error" not in r]
    if not good:
        return {"name": name, "error": runs[-1]["error"]}
    first = sorted(t for r in good for t in r["first"])
    drafted = sum(r["drafted"] for r in good)
    return {
        "name": name,
        "ours": good[0]["ours"],
        "rate": statistics.median(r["rate"] for r in good),
        "low": min(r["rate"] for r in good),
        "high": max(r["rate"] for r in good),
        "median": statistics.median(first),
        "p95": first[min(len(first) - 1, round(0.95 * (len(first) - 1)))],
        "accepted": sum(r["accepted"] for r in good) / drafted if drafted else None,
        "memory": statistics.median(r["memory"] for r in good),
    }


def _level(streams: int, rows: list[dict[str, Any]]) -> list[str]:
    good = [r for r in rows if "error" not in r]
    theirs = max((r["rate"] for r in good if not r["ours"]), default=None)
    plain = next((r["rate"] for r in good if r["name"] == "lcspec off"), None)
    out = [
        f"{streams} streams:",
        "",
        "| | tokens/s | (min..max) | over the best other | over lcspec off | first text | p95 | accepted | memory |",
        "|---" * 9 + "|",
    ]
    for r in rows:
        if "error" in r:
            out.append(f"| {r['name']} | failed: {r['error'][:80]} | | | | | | | |")
            continue
        accepted = "" if r["accepted"] is None else f"{r['accepted']:.0%}"
        span = f"{r['low']:.1f}..{r['high']:.1f}"
        ratios = f"{_ratio(r['rate'], theirs)} | {_ratio(r['rate'], plain)}"
        out.append(
            f"| {r['name']} | {r['rate']:.1f} | {span} | {ratios} | {r['median']:.3f} | {r['p95']:.3f} | {accepted} | "
            f"{r['memory']:.0f} |"
        )
    return [*out, ""]


def _ratio(value: float, of: float | None) -> str:
    return "" if not of else f"{value / of:.2f}"


def prediction_lines(rows: list[dict[str, Any]] | None) -> str:
    """What `prediction` brought at one stream, with the bound that the accepted tokens set."""
    if not rows:
        return ""
    ratios = sorted(r["prediction"] / r["plain"] for r in rows)
    steps = statistics.median(r["tokens_per_step"] for r in rows)
    drafted = sum(r["drafted"] for r in rows)
    share = sum(r["accepted"] for r in rows) / drafted if drafted else 0.0
    same = sum(r["same_text"] for r in rows)
    return (
        f"\nprediction, 1 stream, {len(rows)} prompts: {statistics.median(ratios):.2f}x plain (median; "
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}), {share:.0%} of drafted tokens accepted, the same text in {same}. "
        f"Bound, if a step cost the same at every width: {steps:.2f}x (tokens a step).\n"
    )

"""The tables of a comparison of servers on several kinds of answers."""

from __future__ import annotations

import statistics
from typing import Any


def markdown(results: dict[str, Any]) -> str:
    """First lcspec over llama-server's best for each kind and number of streams, then everybody's medians."""
    good = [r for r in results["runs"] if "error" not in r]
    rows = [_row(r["case"], r["streams"], r["name"], good) for r in _first_of_each(good)]
    rounds = len({r["round"] for r in good})
    lines = [
        f"{results['target']}, {results['threads']} threads, answers of {results['n']} tokens at most, "
        f"{rounds} rounds in {results['minutes']:.1f} minutes. Medians over rounds; rates: tokens/s over all streams, "
        "prompts included.",
        "",
        *_ratios(rows),
        "",
        "| kind | streams | | tokens/s | (min..max) | answers/s | tokens an answer | prompt tokens read | "
        "first text | valid | accepted |",
        "|---" * 11 + "|",
    ]
    for r in rows:
        accepted = "" if r["accepted"] is None else f"{r['accepted']:.0%}"
        lines.append(
            f"| {r['case']} | {r['streams']} | {r['name']} | {r['rate']:.1f} | {r['low']:.1f}..{r['high']:.1f} | "
            f"{r['answers']:.2f} | {r['length']:.0f} | {r['read']:.0f} | {r['first']:.3f} | {r['held']} | {accepted} |"
        )
    failed = [r for r in results["runs"] if "error" in r]
    lines += ["", *(f"failed: {r['name']}, {r['streams']} streams: {r['error'][:200]}" for r in failed)]
    return "\n".join(lines).rstrip() + "\n"


def _first_of_each(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = {(r["case"], r["streams"], r["name"]): r for r in reversed(runs)}
    return sorted(found.values(), key=lambda r: (r["case"], r["streams"], not r["ours"], r["name"]))


def _row(case: str, streams: int, name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    mine = [r for r in runs if (r["case"], r["streams"], r["name"]) == (case, streams, name)]
    drafted, asked = sum(r["drafted"] for r in mine), sum(r["asked"] for r in mine)
    return {
        "case": case,
        "streams": streams,
        "name": name,
        "ours": mine[0]["ours"],
        "rate": statistics.median(r["rate"] for r in mine),
        "low": min(r["rate"] for r in mine),
        "high": max(r["rate"] for r in mine),
        "answers": statistics.median(r["answers"] for r in mine),
        "length": sum(r["tokens"] for r in mine) / asked,
        "read": sum(r["read"] for r in mine) / asked,
        "first": statistics.median(t for r in mine for t in r["first"]),
        "held": "" if case == "plain" else f"{sum(r['held'] for r in mine)}/{asked}",
        "accepted": sum(r["accepted"] for r in mine) / drafted if drafted else None,
    }


def _ratios(rows: list[dict[str, Any]]) -> list[str]:
    """lcspec over the best of the others, in tokens a second (answers a second)."""
    levels = sorted({r["streams"] for r in rows})
    lines = [
        "| lcspec over llama-server's best: tokens/s (answers/s) | "
        + " | ".join(f"{s} streams" for s in levels)
        + " |",
        "|---" * (len(levels) + 1) + "|",
    ]
    for case in dict.fromkeys(r["case"] for r in rows):
        cells = []
        for streams in levels:
            here = [r for r in rows if (r["case"], r["streams"]) == (case, streams)]
            ours = next((r for r in here if r["ours"]), None)
            best = max((r for r in here if not r["ours"]), key=lambda r: float(r["rate"]), default=None)
            quick = max((r["answers"] for r in here if not r["ours"]), default=0.0)
            known = ours is not None and best is not None
            cells.append(f"{ours['rate'] / best['rate']:.2f} ({ours['answers'] / quick:.2f})" if known else "")
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    return lines

"""The table of a comparison, from the dictionaries that go into results.json."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from typing import Any

from .contenders import OURS, PLAIN
from .measure import geometric_mean
from .outputs import same_text

CATEGORIES_A_BLOCK = 6
_STAMP = re.compile(r"\d+(\.\d+){2,} ")  # time stamps of log lines
NOTE_WIDTH = 70
NOTES = """\
- t/s: median over the prompts of a category (summary: geometric mean over all prompts) of the median over repetitions.
  Tokens emitted by decode steps per second of decoding, by each program's own clock: without loading, the prompt, and
  the token that the prompt's last row gives (figures of programs that count it are corrected).
- {reference} x: how many times faster {reference} is than the row, geometric mean over the prompts both have; above 1
  lcspec is ahead. method x: the same for lcspec's own strategy of the row's method. plain: speed-up over {plain}.
- acc: accepted / drafted tokens. text: prompts whose text agrees with {plain}'s as far as both go; steps of other
  widths run other kernels, so near ties flip.
- Every program: temperature 0, end tokens banned, {n} tokens, {threads} threads, prompts in turns; settings from a grid
  on {tuning} prompts, then {repeat} repetitions on {prompts}."""


def reference_of(results: dict[str, Any], wanted: str | None) -> str | None:
    """Name of the lcspec strategy that the ratios are for: the one asked for, `auto` if it ran, else the fastest."""
    ours = {row["name"]: geometric_mean(rates_of(row).values()) for row in results["contenders"] if _ours(row)}
    ours = {name: rate for name, rate in ours.items() if not math.isnan(rate)}
    for name in (f"{OURS} {wanted}", f"{OURS} auto"):
        if name in ours:
            return name
    return max(ours, key=lambda name: ours[name]) if ours else None


def rates_of(row: dict[str, Any]) -> dict[str, float]:
    """Median tokens per second by prompt id."""
    if row["runs"] or row["best"] is None:
        return {prompt: statistics.median(run["rate"] for run in runs) for prompt, runs in row["runs"].items()}
    return {prompt: run["rate"] for prompt, run in row["tuning"][row["best"]].items()}


def ratio(faster: dict[str, float], slower: dict[str, float], prompts: set[str] | None = None) -> float:
    """Geometric mean of faster/slower over the prompts that both have; nan when there are none."""
    common = [p for p in faster if p in slower and (prompts is None or p in prompts)]
    return geometric_mean(faster[p] / slower[p] for p in common)


def table(results: dict[str, Any], wanted: str | None = None) -> str:
    """The comparison as Markdown: a summary with everybody's best setting, then the categories."""
    rows = results["contenders"]
    reference = reference_of(results, wanted)
    if reference is None:
        return "lcspec has no results, so there is nothing to compare with\n"
    rates = {row["name"]: rates_of(row) for row in rows}
    parts = [_summary(results, rates, reference), *_categories(results, rates, reference)]
    if results.get("interrupted"):
        done, wanted_prompts = len(results["prompts_done"]), len(results["categories"])
        parts.insert(0, f"Interrupted after {done} of {wanted_prompts} prompts: no more than a first impression.")
    if results.get("bench"):
        parts.append(_bench(results["bench"]))
    problems = [line for row in rows for line in _failures(row)]
    if problems:
        parts.append("Failures (settings in the tuning, prompts in the main part):\n\n" + "\n".join(problems))
    facts = {"n": results["n"], "threads": results["threads"], "repeat": results["repeat"]}
    counts = {"tuning": len(results["tuning_prompts"]), "prompts": len(results["prompts_done"])}
    parts.append(NOTES.format(reference=reference, plain=PLAIN, **facts, **counts))
    return "\n\n".join(parts) + "\n"


def _summary(results: dict[str, Any], rates: dict[str, dict[str, float]], reference: str) -> str:
    rows = results["contenders"]
    by_method = {row["method"]: row["name"] for row in reversed(rows) if _ours(row) and rates[row["name"]]}
    body = []
    for row in rows:
        mine = rates[row["name"]]
        peer = not _ours(row)
        twin = by_method.get(row["method"]) if peer else None
        body.append(
            [
                row["name"],
                row["best"] or "-",
                str(len(mine)),
                _number(geometric_mean(mine.values()), 1),
                _number(ratio(mine, rates[PLAIN])),
                _number(ratio(rates[reference], mine)),
                _number(ratio(rates[twin], mine)) if twin else "",
                _acceptance(row),
                _texts(row, rows),
                _short("; ".join(filter(None, [row["note"], _other_prompts(row, results)]))),
            ]
        )
    head = ["program", "best setting", "prompts", "t/s", "plain", f"{reference} x", "method x", "acc", "text", "note"]
    return _markdown(head, body)


def _categories(results: dict[str, Any], rates: dict[str, dict[str, float]], reference: str) -> list[str]:
    rows = results["contenders"]
    seen = {prompt for mine in rates.values() for prompt in mine}
    groups: dict[str, set[str]] = {}
    for prompt, category in results["categories"].items():
        if prompt in seen:
            groups.setdefault(category, set()).add(prompt)
    names = list(groups)
    parts = []
    for at in range(0, len(names), CATEGORIES_A_BLOCK):
        block = names[at : at + CATEGORIES_A_BLOCK]
        body = []
        for row in rows:
            mine = rates[row["name"]]
            cells = [row["name"]]
            for name in block:
                inside = [rate for prompt, rate in mine.items() if prompt in groups[name]]
                times = ratio(rates[reference], mine, groups[name])
                cells.append(f"{statistics.median(inside):.1f} x{_number(times)}" if inside else "-")
            body.append(cells)
        parts.append(_markdown(["t/s, x", *(f"{name} ({len(groups[name])})" for name in block)], body))
    return parts


def _bench(bench: dict[str, Any]) -> str:
    if not bench["lcspec"] or not bench["llama-bench"]:
        return f"Plain decoding against llama-bench: no result ({bench.get('error', 'interrupted')})."
    ours, theirs = statistics.median(bench["lcspec"]), statistics.median(bench["llama-bench"])
    return (
        f"Plain decoding from an empty context: {PLAIN} {ours:.2f} t/s, llama-bench tg{bench['n']} {theirs:.2f} t/s, "
        f"ratio {ours / theirs:.3f} (medians of {len(bench['lcspec'])} interleaved repetitions)."
    )


def _acceptance(row: dict[str, Any]) -> str:
    runs = [run for runs in row["runs"].values() for run in runs]
    if not runs and row["best"]:
        runs = list(row["tuning"][row["best"]].values())
    drafted = sum(run["drafted"] or 0 for run in runs)
    return f"{sum(run['accepted'] or 0 for run in runs) / drafted:.2f}" if drafted else ""


def _texts(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    plain = next(other for other in rows if other["name"] == PLAIN)
    pairs = [(runs[0]["text"], plain["runs"][p][0]["text"]) for p, runs in row["runs"].items() if p in plain["runs"]]
    return f"{sum(same_text(one, other) for one, other in pairs)}/{len(pairs)}" if pairs else ""


def _failures(row: dict[str, Any]) -> list[str]:
    """Reasons, each with the settings or prompts that had it."""
    by_reason: dict[str, list[str]] = {}
    for where, why in row["failures"].items():
        by_reason.setdefault(_STAMP.sub("", why), []).append(where)
    return [f"- {row['name']} ({'; '.join(places)}): {why}" for why, places in by_reason.items()]


def _other_prompts(row: dict[str, Any], results: dict[str, Any]) -> str:
    """A remark if the program saw another number of prompt tokens than lcspec."""
    other = [p for p, runs in row["runs"].items() if runs[0]["n_prompt"] != results["prompt_tokens"].get(p)]
    return f"read {len(other)} prompts as other tokens" if other else ""


def _short(text: str) -> str:
    return text if len(text) <= NOTE_WIDTH else text[: NOTE_WIDTH - 3] + "..."


def _ours(row: dict[str, Any]) -> bool:
    return bool(row["program"] == OURS)


def _number(value: float, digits: int = 2) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table; columns of words are flushed left, those of numbers right."""
    columns = list(zip(head, *body))
    widths = [max(map(len, column)) for column in columns]
    left = [i == 0 or column[0] in ("note", "best setting") for i, column in enumerate(columns)]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.ljust(w) if flush else cell.rjust(w) for cell, w, flush in zip(cells, widths, left)]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (w + 1) + ("-" if flush else ":") for w, flush in zip(widths, left)) + "|"
    return "\n".join([line(head), rule, *map(line, body)])

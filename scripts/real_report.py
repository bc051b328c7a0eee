"""The figures of scripts/real_bench.py, from its JSON: a summary, a Markdown table, a chart."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from peers.contenders import OURS
from peers.contenders import PLAIN as OUR_PLAIN
from peers.measure import geometric_mean
from peers.report import rates_of, ratio
from real_models import SHIPPED

from lcspec.bench.output import write_results, write_text
from lcspec.bench.runner import AUTO, PLAIN
from lcspec.bench.stats import Estimate, median, ratios, speedups
from lcspec.bench.svg import LEFT, WIDTH, Bar, Plot
from lcspec.errors import UsageError

ALL = "all"
HEIGHT = 300
LEGEND = 26
# Colours of the bars, plain decoding having none.
STYLE = (
    "text{fill:#333;font:12px sans-serif}.grid{stroke:#ccc}.rule{stroke:#c33;stroke-dasharray:4 3}"
    ".whisker{stroke:#333;fill:none}.s0{fill:#8bbc21}.s1{fill:#2f7ed8}.s2{fill:#c9772b}.s3{fill:#8e62b8}.s4{fill:#999}"
    "@media (prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#555}.whisker{stroke:#ddd}}"
)


def summary(results: Mapping[str, Any]) -> dict[str, Any]:
    """By case: speed-ups over plain by category and overall, identical texts, ms per plain step, first tokens, peers.

    A speed-up is the geometric mean over prompts of the median ratio over repetitions, with its 95 % interval.
    """
    return {name: _case(case, results["categories"]) for name, case in results["cases"].items() if _measured(case)}


def _measured(case: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry for name, entry in case["prompts"].items() if "runs" in entry}


def _case(case: Mapping[str, Any], categories: Mapping[str, str]) -> dict[str, Any]:
    prompts = _measured(case)
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for name, entry in prompts.items():
        kinds.setdefault(categories[name], []).append(entry["runs"])
    everything = [entry["runs"] for entry in prompts.values()]
    return {
        "prompts": len(prompts),
        "skipped": len(case["prompts"]) - len(prompts),
        "exact": case["all_exact"],
        "plain_ms": median([entry["plain_ms"] for entry in prompts.values()]),
        "first_token_ms": {length: 1e3 * median(found) for length, found in (case["first_token"] or {}).items()},
        ALL: _rows(everything),
        "categories": {kind: _rows(runs) for kind, runs in kinds.items()},
        "peers": _peers(case["peers"]) if case.get("peers") else None,
    }


def _rows(prompts: list[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """A row for every strategy on these prompts' runs."""
    plain = [[run["rate"] for run in runs[PLAIN]] for runs in prompts]
    rows = {}
    for name in prompts[0]:
        rates = [[run["rate"] for run in runs[name]] for runs in prompts]
        mean = Estimate(1.0) if name == PLAIN else speedups(rates, plain)[1]
        rows[name] = {
            "prompts": len(prompts),
            "tokens_per_second": median([median(one) for one in rates]),
            "speedup": mean.as_dict(),
            "worst_prompt": min(median(ratios(a, b)) for a, b in zip(rates, plain)),
            "identical": sum(all(run["same"] for run in runs[name]) for runs in prompts),
        }
    return rows


def _peers(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every contender of the comparison with llama.cpp's programs; `behind` 1.2: lcspec's auto is 1.2 times faster."""
    rates = {row["name"]: rates_of(row) if row["runs"] else {} for row in found["contenders"]}
    return [
        {
            "name": row["name"],
            "setting": row["best"],
            "prompts": len(rates[row["name"]]),
            "tokens_per_second": geometric_mean(rates[row["name"]].values()),
            "over_plain": _known(ratio(rates[row["name"]], rates[OUR_PLAIN])),
            "behind": _known(ratio(rates.get(f"{OURS} auto", {}), rates[row["name"]])),
        }
        for row in found["contenders"]
        if rates[row["name"]]
    ]


def _known(value: float) -> float | None:
    """JSON knows no nan."""
    return value if math.isfinite(value) else None


def table(results: Mapping[str, Any]) -> str:
    """The summary as Markdown: all cases, then each by category, then the peers."""
    cases = results["summary"]
    parts = [f"{results['settings']['model']}, {results['machine']['cpu']}, {results['machine']['threads']} threads"]
    lines = [
        "| case | exact | strategy | prompts | over plain | worst prompt | texts as plain |",
        "|-|-|-|-:|-:|-:|-:|",
    ]
    for name, case in cases.items():
        for strategy, row in case[ALL].items():
            same = f"{row['identical']}/{row['prompts']}"
            lines.append(
                f"| {name} | {'yes' if case['exact'] else 'no'} | {strategy} | {row['prompts']} | "
                f"{_interval(row['speedup'])} | {row['worst_prompt']:.2f} | {same} |"
            )
    parts.append("\n".join(lines))
    lengths = list(dict.fromkeys(length for case in cases.values() for length in case["first_token_ms"]))
    heads = "".join(f" first token of {length} (ms) |" for length in lengths)
    lines = [f"| case | ms per plain step |{heads}", "|-|-:|" + "-:|" * len(lengths)]
    for name, case in cases.items():
        cells = [f"{case['first_token_ms'][n]:.1f}" if n in case["first_token_ms"] else "" for n in lengths]
        lines.append("| " + " | ".join([name, f"{case['plain_ms']:.2f}", *cells]) + " |")
    parts.append("\n".join(lines))
    for name, case in cases.items():
        strategies = [s for s in case[ALL] if s != PLAIN]
        lines = [f"| {name} | prompts | " + " | ".join(strategies) + " |", "|-|-:|" + "-:|" * len(strategies)]
        for kind, rows in {**case["categories"], ALL: case[ALL]}.items():
            cells = " | ".join(f"{rows[s]['speedup']['value']:.2f}" for s in strategies)
            lines.append(f"| {kind} | {rows[PLAIN]['prompts']} | {cells} |")
        parts.append("\n".join(lines))
        if case["peers"]:
            lines = [f"| {name} | best setting | prompts | over plain | lcspec auto x |", "|-|-|-:|-:|-:|"]
            for row in case["peers"]:
                ratios = " | ".join("" if x is None else f"{x:.2f}" for x in (row["over_plain"], row["behind"]))
                lines.append(f"| {row['name']} | {row['setting']} | {row['prompts']} | {ratios} |")
            parts.append("\n".join(lines))
    notes = [f"- {name}: left out: {why}" for name, why in results["left_out"].items()]
    for name, case in results["cases"].items():
        notes += [f"- {name}, {p}: {e['skipped']}" for p, e in case["prompts"].items() if "skipped" in e]
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])]) + "\n"


def _interval(estimate: Mapping[str, float | None]) -> str:
    low, high = estimate["low"], estimate["high"]
    return f"{estimate['value']:.2f}" + (f" ({low:.2f} to {high:.2f})" if low is not None and high is not None else "")


def chart(groups: Mapping[str, Mapping[str, Mapping[str, Any]]], title: str) -> str:
    """Speed-up over plain as an SVG file: `groups` (categories, or cases) of bars (strategies)."""
    names = list(dict.fromkeys(s for rows in groups.values() for s in rows if s != PLAIN))
    tops = [row["speedup"]["high"] or row["speedup"]["value"] for rows in groups.values() for row in rows.values()]
    plot = Plot(len(groups), max([1.2, *tops]), height=HEIGHT, y_label="times plain decoding")
    wide = 0.8 / max(1, len(names))
    for at, (label, rows) in enumerate(groups.items()):
        for i, name in enumerate(s for s in names if s in rows):
            found = rows[name]["speedup"]
            bar = Bar(found["value"], found["low"], found["high"], i % 5, f"{label}, {name}: {found['value']:.2f}")
            plot.bar(at + 0.1 + wide * (i + 0.5), wide, bar)
        # Where many share the width, every second label stands lower.
        plot.text(plot.x(at + 0.5), HEIGHT - 22 + 14 * (at % 2 if len(groups) > 4 else 0), label, "middle")
    plot.rule((0, 1), (len(groups), 1))
    legend = "".join(
        f'<rect class="s{i % 5}" x="{LEFT + 150 * i}" y="-16" width="12" height="10"/>'
        f'<text x="{LEFT + 150 * i + 18}" y="-7">{escape(name if AUTO in name else f"{name}, always")}</text>'
        for i, name in enumerate(names)
    )
    picture = plot.svg(title).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    box = f'viewBox="0 -{LEGEND} {WIDTH} {HEIGHT + LEGEND}"'
    picture = picture.replace(f'viewBox="0 0 {WIDTH} {HEIGHT}"', box, 1)
    return picture.replace(">", f"><style>{STYLE}</style>{legend}", 1) + "\n"


def _file_and(case: str, temperature: bool) -> str:
    """Words for a case in a chart."""
    file, _, degree = case.split(", ")
    words = f"at the cost of {file.upper()}" if file[0].isdigit() else f"as {file}" if file == SHIPPED else file
    return f"{words}, {degree}" if temperature else words


def charts(results: Mapping[str, Any]) -> dict[str, str]:
    """The SVG files by name: the first case by category, and the cases of its exactness side by side."""
    cases = results["summary"]
    if not cases:
        return {}
    name, first = next(iter(cases.items()))
    exactness = name.split(", ")[1]
    by_kind = {**first["categories"], ALL: first[ALL]}
    alike = {label: case[ALL] for label, case in cases.items() if label.split(", ")[1] == exactness}
    temperatures = len({label.split(", ")[2] for label in alike})
    by_case = {_file_and(label, temperatures > 1): rows for label, rows in alike.items()}
    return {
        "categories.svg": chart(by_kind, f"Speed-up over plain decoding by kind of text: {name}"),
        "cases.svg": chart(by_case, f"Speed-up over plain decoding by file, exactness: {exactness}"),
    }


def _short(case: str) -> str:
    return case.replace(", temperature ", " t").replace(", default", "").replace(", no-exact", " no-exact")


def resumed(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The results so far, or empty ones.

    Raises:
        UsageError: they were measured with other settings, or the file is not one of this script.
    """
    fresh = {"format": 1, "settings": settings, "machine": {}, "cases": {}, "left_out": {}, "complete": False}
    if not path.exists():
        return fresh
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        earlier = found["settings"]
        found["cases"], found["left_out"] = dict(found["cases"]), {}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a results file of this script: give another --out") from error
    for name, value in settings.items():
        if earlier.get(name) != value:
            raise UsageError(
                f"{path} was measured with another {name} ({earlier.get(name)}, now {value}): "
                "give another --out, or the same options as then"
            )
    return found


def finish(results: dict[str, Any], out: Path) -> str:
    """Write summary, table and charts of what there is; returns the table, empty if nothing was measured."""
    results["summary"] = summary(results)
    write_results(out, results)
    if not results["summary"]:
        return ""
    text = table(results)
    write_text(out / "table.md", text)
    for name, picture in charts(results).items():
        write_text(out / name, picture)
    return text

"""report.html: one self-contained page (inline style and SVG, nothing loaded from anywhere, light and dark)."""

from __future__ import annotations

from html import escape
from typing import Any, Sequence

from lcspec.bench.svg import Bar, Plot, Series, ticks
from lcspec.bench.table import counted, number, percent
from lcspec.profiles.cost_curve import CostCurve

GROUPS_PER_PLOT = 7
MAX_DEPTH_SHOWN = 16
# Plain decoding is grey; then one colour a strategy: light, dark.
COLOURS = (
    ("#8a8880", "#8f8d86"),
    ("#2a78d6", "#3987e5"),
    ("#eb6834", "#d95926"),
    ("#1baf7a", "#199e70"),
    ("#eda100", "#c98500"),
    ("#e87ba4", "#d55181"),
    ("#4a3aa7", "#9085e9"),
    ("#e34948", "#e66767"),
)

STYLE = """
:root { color-scheme: light dark; --page: #f9f9f7; --ink: #16150f; --soft: #55534c; --grid: #e2e0d9; --card: #ffffff;
  %s }
@media (prefers-color-scheme: dark) {
  :root { --page: #121210; --ink: #f4f3ee; --soft: #b5b3aa; --grid: #33322e; --card: #1b1b19; %s }
}
body { background: var(--page); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 24px;
  max-width: 1040px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 28px 0 4px; }
h3 { font-size: 15px; margin: 18px 0 4px; } p { color: var(--soft); margin: 4px 0 8px; }
figure { background: var(--card); border: 1px solid var(--grid); border-radius: 6px; margin: 8px 0; padding: 8px; }
svg { display: block; width: 100%%; height: auto; } svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
.grid { stroke: var(--grid); } .rule { stroke: var(--soft); stroke-dasharray: 5 4; }
.line { fill: none; stroke: var(--c); stroke-width: 2; } .dot { fill: var(--c); stroke: var(--card); stroke-width: 1; }
.bar { fill: var(--c); } .whisker { stroke: var(--ink); fill: none; stroke-width: 1.3; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 4px 0 4px 8px; color: var(--soft); font-size: 13px; }
.legend i { background: var(--c); border-radius: 2px; display: inline-block; height: 11px; margin-right: 6px;
  width: 11px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; width: 100%%; }
th, td { border-bottom: 1px solid var(--grid); padding: 3px 8px; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 600; }
"""

COLUMNS = (
    "strategy", "tokens/s", "speed-up", "95 % interval", "predicted", "from acceptance", "perfect knowledge",
    "tokens/step", "accepted", "same text",
)  # fmt: skip


def style() -> str:
    """The page's style sheet with a class a colour."""
    light = " ".join(f"--c{i}: {pair[0]};" for i, pair in enumerate(COLOURS))
    dark = " ".join(f"--c{i}: {pair[1]};" for i, pair in enumerate(COLOURS))
    classes = " ".join(f".s{i} {{ --c: var(--c{i}); }}" for i in range(len(COLOURS)))
    return STYLE % (light, dark) + classes


def report_html(results: dict[str, Any]) -> str:
    """The page for a `results.json` object with a summary."""
    summary, model, machine = results["summary"], results["model"], results["machine"]
    names = summary["strategies"]
    title = f"{model['name'] or model['file']} ({model['quantization']})"
    parts = [f"<h1>lcspec bench: {escape(title)}</h1>", _about(results, machine)]
    if summary["overall"] is None:
        parts.append("<p>No prompt was finished.</p>")
    else:
        shown = [*summary["groups"], summary["overall"]] if len(summary["groups"]) > 1 else [summary["overall"]]
        parts += _speedup_section(shown, names)
        parts += _prediction_section(summary["groups"], names)
        parts += _depth_section(summary["overall"])
    parts += _curve_section(results["curve"])
    if summary["overall"] is not None:
        parts += _tables(shown, summary["planner"])
    parts += _notes(results)
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>lcspec bench: {escape(title)}</title>\n<style>{style()}</style>\n</head>\n<body>\n{body}\n"
        "</body>\n</html>\n"
    )


def colour(index: int) -> int:
    """Colour class of the strategy at `index`; `off` (0) keeps the grey to itself."""
    return index if index == 0 else 1 + (index - 1) % (len(COLOURS) - 1)


def legend(names: Sequence[str], colours: Sequence[int] | None = None) -> str:
    """What the colours mean."""
    chosen = colours if colours is not None else [colour(i) for i in range(len(names))]
    items = "".join(f'<span><i class="s{c}"></i>{escape(n)}</span>' for n, c in zip(names, chosen))
    return f'<div class="legend">{items}</div>'


def _about(results: dict[str, Any], machine: dict[str, Any]) -> str:
    s, draft = results["settings"], results["draft"] or []
    facts = [
        f"{machine['cpu']}, threads: {machine['threads']}, {machine['gpu_layers'] or 'no'} layers on a GPU",
        f"llama-cpp-python {machine['llama_cpp']}, lcspec {machine['lcspec']}, {machine['time']}",
        "draft model: " + ", ".join(f"{d['file']} ({d['quantization']})" for d in draft) if draft else "no draft model",
        f"{counted(len(results['prompts']))} of {s['prompts']}, {s['n']} tokens each, {s['repeat']} repeats, "
        f"temperature {s['temperature']:g}, seed {s['seed']}"
        + (", chat template" if s["chat"] else "")
        + (", exact" if s["exact"] else ""),
    ]
    if not results["complete"]:
        facts.append("This run was interrupted; the figures cover what was finished.")
    return "<p>" + "<br>".join(escape(f) for f in facts) + "</p>"


def _speedup_section(groups: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    out = [
        "<h2>Speed-up over plain decoding</h2>",
        "<p>Medians over prompts (all: geometric mean), with 95 % bootstrap intervals. The dashed line is plain "
        "decoding.</p>",
    ]
    shown = [i for i, n in enumerate(names) if i > 0] or [0]
    out.append(legend([names[i] for i in shown], [colour(i) for i in shown]))
    top = max(max(r["speedup"]["value"], r["speedup"]["high"] or 0.0) for g in groups for r in g["rows"])
    size = -(-len(groups) // -(-len(groups) // GROUPS_PER_PLOT))  # all plots about equally full
    for start in range(0, len(groups), size):
        part = groups[start : start + size]
        plot = Plot(len(part), max(1.0, top), y_label="speed-up")
        width = min(0.8, 0.2 * len(part)) / len(shown)
        for g, group in enumerate(part):
            for k, i in enumerate(shown):
                row = group["rows"][i]
                e = row["speedup"]
                title = f"{group['name']}, {row['strategy']}: {e['value']:.2f}"
                if e["low"] is not None:
                    title += f" ({e['low']:.2f} to {e['high']:.2f})"
                bar = Bar(e["value"], e["low"], e["high"], colour(i), title)
                plot.bar(g + 0.5 + (k - (len(shown) - 1) / 2) * width, width, bar)
            name, room = group["name"], 105 // len(part)
            label = name if len(name) <= room else ".." + name[2 - room :]  # the end of set/category says more
            plot.text(plot.x(g + 0.5), plot.height - 22, label, "middle")
        plot.rule((0, 1), (len(part), 1))
        out.append(f"<figure>{plot.svg('Speed-up by category and strategy')}</figure>")
    return out


def _prediction_section(groups: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    points = [
        (row["predicted_speedup"], row["speedup"]["value"], i, f"{group['name']}, {row['strategy']}")
        for group in groups
        for i, row in enumerate(group["rows"])
        if i > 0 and row["predicted_speedup"] is not None
    ]
    if not points:
        return []
    top = ticks(max(max(p[:2]) for p in points))
    plot = Plot(top[-1], top[-1], height=340, x_label="predicted speed-up", y_label="measured speed-up")
    plot.x_ticks(top)
    plot.rule((0, 0), (top[-1], top[-1]))
    for predicted, measured, i, title in points:
        plot.dot(predicted, measured, colour(i), f"{title}: predicted {predicted:.2f}, measured {measured:.2f}")
    return [
        "<h2>Predicted and measured</h2>",
        "<p>One point a category and strategy. Predicted: the widths of its steps priced by T(n) / T(1), plus drafting "
        "time. "
        "On the dashed line both agree; below it something costs that T(n) does not know.</p>",
        legend(names[1:], [colour(i) for i in range(1, len(names))]),
        f"<figure>{plot.svg('Predicted and measured speed-up')}</figure>",
    ]


def _depth_section(overall: dict[str, Any]) -> list[str]:
    lines = []
    for i, row in enumerate(overall["rows"]):
        pairs = list(zip(row["drafted_by_depth"], row["accepted_by_depth"]))[:MAX_DEPTH_SHOWN]
        shares = [(float(d), accepted / drafted) for d, (drafted, accepted) in enumerate(pairs, start=1) if drafted]
        if shares:
            lines.append(Series(row["strategy"], shares, colour(i)))
    if not lines:
        return []
    deepest = max(x for s in lines for x, _ in s.points)
    plot = Plot(deepest + 0.5, 1.0, x_label="depth", y_label="accepted / drafted")
    plot.x_ticks([float(d) for d in range(1, int(deepest) + 1)])
    for series in lines:
        plot.line(series)
    return [
        "<h2>Acceptance by depth</h2>",
        "<p>Accepted nodes over verified ones at each depth; in a tree, siblings of an accepted node count as "
        "rejected.</p>",
        legend([s.name for s in lines], [s.colour for s in lines]),
        f"<figure>{plot.svg('Acceptance by depth')}</figure>",
    ]


def _curve_section(data: dict[str, Any]) -> list[str]:
    curve = CostCurve.from_dict(data)
    lengths = sorted({c for by in curve.points.values() for c in by})
    lines = [
        Series(
            f"{c} tokens of context",
            [(float(n), curve.points[n][c] * 1e3) for n in curve.widths if c in curve.points[n]],
            1 + i % (len(COLOURS) - 1),
        )
        for i, c in enumerate(lengths)
    ]
    plot = Plot(
        curve.max_width + 0.5,
        max(y for s in lines for _, y in s.points),
        x_label="width (tokens in one decode)",
        y_label="ms",
    )
    plot.x_ticks([float(n) for n in curve.widths if n in (1, 2, 3) or n % 4 == 0])
    for series in lines:
        plot.line(series, " ms")
    when = "stored by an earlier run" if data["measured_earlier"] else "measured before this run"
    return [
        "<h2>Cost of a decode, T(n)</h2>",
        f"<p>As {when}.</p>",
        legend([s.name for s in lines], [s.colour for s in lines]),
        f"<figure>{plot.svg('Cost of a decode by width')}</figure>",
    ]


def _tables(groups: Sequence[dict[str, Any]], planner: dict[str, Any] | None) -> list[str]:
    out = [
        "<h2>Figures</h2>",
        "<p>Predicted: from T(n) and the tokens that came out. From acceptance: Leviathan and Chen's analysis with the "
        "measured T(n). Perfect knowledge: the same proposals, verified only where they will be accepted. Same text: "
        "prompts whose answer was that of plain decoding, token by token, in every repeat.</p>",
    ]
    for group in groups:
        out.append(f"<h3>{escape(group['name'])} ({counted(group['prompts'])})</h3>")
        rows = "".join(_table_row(row, group["prompts"]) for row in group["rows"])
        head = "".join(f"<th>{c}</th>" for c in COLUMNS)
        out.append(f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>')
        text = f"A perfect drafter would reach {number(group['perfect_drafter_speedup'])}."
        auto = group["auto"]
        if auto is not None:
            text += (
                f" auto reached {auto['over_best_fixed']:.3f} of the best fixed strategy ({auto['best_fixed']}) and "
                f"{auto['over_best_of_each_prompt']:.3f} of what was best on each prompt."
            )
        out.append(f"<p>{escape(text)}</p>")
    if planner is not None:
        out.append(
            f"<p>The planner's expectations over what happened, {planner['steps']:.0f} steps: rate "
            f"{planner['rate']:.3f}, tokens {planner['tokens']:.3f}, target time {planner['seconds']:.3f}.</p>"
        )
    return out


def _table_row(row: dict[str, Any], prompts: int) -> str:
    e = row["speedup"]
    cells = [
        escape(row["strategy"]),
        f"{row['tokens_per_second']:.1f}",
        f"{e['value']:.2f}",
        f"{e['low']:.2f} to {e['high']:.2f}" if e["low"] is not None else "-",
        number(row["predicted_speedup"]),
        number(row["analysis_speedup"]),
        number(row["perfect_knowledge_speedup"]),
        f"{row['acceptance_length']:.2f}",
        percent(row["acceptance"]),
        f"{row['identical']}/{prompts}" + ("" if row["lossless"] else " (lossy)"),
    ]
    return "<tr>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>"


def _notes(results: dict[str, Any]) -> list[str]:
    cut = [p["id"] for p in results["prompts"] if p["cut_characters"]]
    notes = [*results["notes"]]
    if cut:
        notes.append(f"Cut at the beginning to fit the context: {', '.join(cut)}.")
    notes += [f"Skipped {s['id']}: {s['reason']}." for s in results["skipped"]]
    return ["<h2>Notes</h2>", "<p>" + "<br>".join(escape(n) for n in notes) + "</p>"]

"""The summary as plain text, at most 100 columns wide."""

from __future__ import annotations

from typing import Any

NAME = 22
HEAD = (
    f"  {'strategy':<{NAME}}{'tokens/s':>9}{'speed-up':>9}{'95 % interval':>15}{'predicted':>10}"
    f"{'tok/step':>9}{'accepted':>9}{'same text':>10}"
)


def number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash for what is not known."""
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share, or a dash."""
    return "-" if value is None else f"{value:.0%}"


def shortened(name: str, width: int) -> str:
    """`name` in `width` columns."""
    return name if len(name) <= width else name[: width - 2] + ".."


def row_text(row: dict[str, Any], prompts: int) -> str:
    """One strategy."""
    speedup = row["speedup"]
    interval = f"{number(speedup['low'])} to {number(speedup['high'])}" if speedup["low"] is not None else "-"
    same = f"{row['identical']}/{prompts}" + ("" if row["lossless"] else " lossy")
    return (
        f"  {shortened(row['strategy'], NAME - 1):<{NAME}}{row['tokens_per_second']:>9.1f}{speedup['value']:>9.2f}"
        f"{interval:>15}{number(row['predicted_speedup']):>10}{row['acceptance_length']:>9.2f}"
        f"{percent(row['acceptance']):>9}{same:>10}"
    )


def bounds_text(group: dict[str, Any]) -> list[str]:
    """What could have been reached, and how `auto` stands."""
    known = [
        (row["strategy"], row["perfect_knowledge_speedup"]) for row in group["rows"] if row["acceptance"] is not None
    ]
    out = [f"  a perfect drafter: {number(group['perfect_drafter_speedup'])}"]
    if known:
        listed = ", ".join(f"{shortened(s, NAME)} {number(x)}" for s, x in known)
        out.append(f"  perfect knowledge of acceptance: {listed}")
    auto = group["auto"]
    if auto is not None:
        best = shortened(auto["best_fixed"], NAME)
        out.append(
            f"  auto: {auto['over_best_fixed']:.3f} of the best fixed strategy ({best}), "
            f"{auto['over_best_of_each_prompt']:.3f} of each prompt's best"
        )
    return [line for whole in out for line in wrapped(whole)]


def wrapped(line: str, width: int = 100) -> list[str]:
    """Break a long line at spaces."""
    lines = []
    while len(line) > width:
        at = line.rfind(" ", 8, width + 1)
        if at < 0:
            break
        lines.append(line[:at])
        line = "    " + line[at + 1 :]
    return [*lines, line]


def summary_text(summary: dict[str, Any]) -> str:
    """The whole table."""
    overall = summary["overall"]
    if overall is None:
        return "no prompt was finished"
    lines = []
    for group in summary["groups"] if len(summary["groups"]) > 1 else []:
        lines += ["", f"{group['name']} ({counted(group['prompts'])}, medians)", HEAD]
        lines += [row_text(row, group["prompts"]) for row in group["rows"]]
        lines += bounds_text(group)
    lines += ["", f"all ({counted(overall['prompts'])}, geometric means)", HEAD]
    lines += [row_text(row, overall["prompts"]) for row in overall["rows"]]
    lines += bounds_text(overall)
    planner = summary["planner"]
    if planner is not None:
        lines.append(
            f"  the planner's expectations over what happened: rate {planner['rate']:.3f}, "
            f"tokens {planner['tokens']:.3f}, target time {planner['seconds']:.3f}"
        )
    return "\n".join(lines[1:])


def counted(prompts: int) -> str:
    """`1 prompt`, `2 prompts`."""
    return f"{prompts} prompt" + "s" * (prompts != 1)

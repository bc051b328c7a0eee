"""What `lcspec verify` found, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lcspec.config import BY_ROWS


def ways_text(ways: Sequence[Mapping[str, Any]]) -> str:
    """The exact ways that there are, what each costs, and whether its bits hold."""
    if not ways:
        return "There is no way here in which a token's bits depend on its own text alone."
    lines = ["ways to be exact (time of a step and to the first token, over the fastest context):"]
    for way in ways:
        costs = "cost not known" if way["decode"] is None else f"{way['decode']:.2f} and {way['first_token']:.2f}"
        trees = ", trees too" if way["trees"] else ""
        holds = f"the same bits at every width{trees}" if way["independent"] else "bits differ"
        lines.append(f" {'*' if way['taken'] else ' '} {way['way']}: {costs}; {holds}")
    return "\n".join(lines)


def classes_text(result: Mapping[str, Any]) -> str:
    """The width classes."""
    lines = [
        f"{result['model']} ({result['quantization']}), {result['threads']} threads, weights "
        f"{'repacked' if result['repack'] else 'as stored'}: {result['positions']} positions compared"
    ]
    if not result["repeatable"]:
        lines.append("The same computation twice gives different bits: nothing can be certified here.")
        return "\n".join(lines)
    for group in result["classes"]:
        largest = max(result["largest_difference"][str(w)] for w in group)
        flips = max(result["argmax_flips"][str(w)] for w in group)
        mark = "*" if set(result["widths"]) <= set(group) else " "
        against = f"differs from width {result['reference_width']} by up to {largest:.4g}, {flips} argmax flips"
        lines.append(f" {mark} {ranges(group):<24} {'the reference' if largest == 0 else against}")
    if result["independent"]:
        lines.append(_independent(result))
        return "\n".join(lines)
    if result.get("refuted"):
        lines.append("A short check had found the same bits at every width. That is taken back from the next start on.")
    lines.append(f"--exact decodes at widths {ranges(result['widths'])} (marked *).")
    trees = "give the same bits as chains" if result["trees"] else "do not: --exact uses chains only"
    lines.append(f"Trees {trees}.")
    return "\n".join(lines)


def _independent(result: Mapping[str, Any]) -> str:
    if result["attention"] not in BY_ROWS:
        return (
            "A row has the same bits beside other requests and after any pieces of the prompt: with K in F16 and V in "
            "BF16 every request is exact."
        )
    whose = "every request of the single slot" if result["slots"] == 1 else "every request of every slot"
    return f"A row has the same bits after any pieces of the prompt: row by row {whose} is exact."


def ranges(widths: Sequence[int]) -> str:
    """1, 2-5, 8 and so on."""
    out: list[list[int]] = []
    for w in sorted(widths):
        if out and w == out[-1][1] + 1:
            out[-1][1] = w
        else:
            out.append([w, w])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def texts_text(result: Mapping[str, Any]) -> str:
    """The comparison of texts."""
    lines = [str(result["refused"])] if "refused" in result else []
    rows = result.get("texts", [])
    if rows:
        lines.append("speculation on against off, prompts with identical text:")
    for row in rows:
        how = "greedy" if row["temperature"] == 0 else f"temperature {row['temperature']}, seeded"
        exact = f"--exact {row['identical_exact']}/{row['prompts']}   " if "identical_exact" in row else ""
        lines.append(f"  {row['strategy']:<11} {how:<24} {exact}without {row['identical']}/{row['prompts']}")
    return "\n".join(lines)

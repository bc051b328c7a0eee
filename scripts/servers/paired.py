"""All servers up at once, one request at a time to each of them in turn: a ratio for every request.

What the machine does beside comes and goes within seconds, so it changes both sides of a ratio alike. A server that
waits takes no time.
"""

from __future__ import annotations

import contextlib
import random
import statistics
from typing import Any

from .load import Answer, LoadError, run
from .output import say
from .start import Contender, Setup, running


def paired(
    who: list[Contender], setup: Setup, slots: int, bodies: list[dict[str, Any]], timeout: float
) -> list[dict[str, Any]]:
    """Every body to every contender, in another order each time; a dict for each contender.

    A request that one of them refuses counts for none.

    Raises:
        LoadError: a server did not get ready, or there is no request that all of them answered.
    """
    rng, answers = random.Random(1), list[dict[str, Answer]]()
    with contextlib.ExitStack() as stack:
        ports = {c.name: stack.enter_context(running(c, setup, slots)) for c in who}
        for body in [bodies[0], *bodies]:  # what is made at first use is not what is measured
            found = dict[str, Answer]()
            try:
                for name in rng.sample(list(ports), len(ports)):
                    found[name] = run("127.0.0.1", ports[name], [body], 1, timeout).answers[0]
            except LoadError as error:
                say(f"left out: {error}")
                continue
            answers.append(found)
    if len(answers) < 2:
        raise LoadError("there is no request that all servers answered")
    rows = []
    for contender in who:
        own = [found[contender.name] for found in answers[1:]]
        rates = [a.tokens / a.seconds for a in own]
        first = [a.first for a in own]
        after = [(a.tokens - 1) / (a.seconds - a.first) for a in own]
        rows.append({"name": contender.name, "ours": contender.is_this, "rates": rates, "first": first, "after": after})
    return rows


def paired_table(rows: list[dict[str, Any]]) -> str:
    """Medians over the requests: rates with the prompt and behind the first text, seconds to the first text, and their
    ratios to those of the best of the others (or to our first)."""
    theirs = [row for row in rows if not row["ours"]]
    best = max(theirs, key=lambda row: statistics.median(row["rates"])) if theirs else rows[0]
    lines = [
        f"\nOne request at a time to each in turn, {len(best['rates'])} requests, medians; ratios to {best['name']}:\n",
        "| | tokens/s | ratio | (quarter..three quarters) | behind the first text | ratio | first text, s | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["name"]]
        for what, form in (("rates", ".1f"), ("after", ".1f"), ("first", ".3f")):
            ratios = sorted(a / b for a, b in zip(row[what], best[what]))
            low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            cells += [format(statistics.median(row[what]), form), f"{middle:.2f}"]
            cells += [f"{low:.2f}..{high:.2f}"] if what == "rates" else []
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"

"""`lcspec calibrate`: measure T(n) on this machine, show it, and say what follows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Sequence

import click

from lcspec.commands.progress import progress_bar
from lcspec.config import model_drafter, rollback_for
from lcspec.engine.admission import check_writes
from lcspec.llama import Branching
from lcspec.loading import model_options
from lcspec.profiles.cost_curve import CostCurve
from lcspec.profiles.steadiness import disturbance
from lcspec.session import ModelPair, Session, loading_line, open_session

BAR = 40


def run(model: Path | None, draft: Sequence[Path], as_json: bool, **o: Any) -> None:
    """Measure, print, store. `o`: ctx, threads, max_width and `device_options`.

    Raises:
        LcspecError: the model cannot be loaded or measured, or writes no text.
    """
    pair = ModelPair.resolve(model, draft)
    rollback = rollback_for("auto", None)  # the curve is that of the steps that will be made
    options = model_options(pair.target, o, exact=None, rollback=rollback, max_width=o["max_width"])
    with open_session(options, pair.draft, loading_line()) as session:
        check_writes(session.engine.context)
        curve, draft_seconds, by_threads, stored = _measure(session, quiet=as_json)
        info = describe(session, curve, draft_seconds, by_threads)
    if as_json:
        click.echo(json.dumps(info))
        return
    click.echo(table(curve, info))
    for sentence in info["conclusions"]:
        click.echo(sentence)
    told = disturbance(curve.retaken, curve.unsteady)
    if told is not None:
        click.echo(told, err=True)
    if not stored:
        click.echo("(The cache directory cannot be written, so this will be measured again.)", err=True)


def _measure(session: Session, quiet: bool) -> tuple[CostCurve, dict[str, float], dict[int, float], bool]:
    """The curve, seconds of a step of every draft model, T(1) by thread count, and whether the curve was stored."""
    from lcspec.profiles.step_cost import ENOUGH_SECONDS, Meter, measure, save_curve

    engine = session.engine
    seq = engine.pool.take()
    with progress_bar("measuring T(n)", quiet) as progress:
        curve = measure(engine.context, seq, repeat=5, enough=ENOUGH_SECONDS, progress=progress)
    by_threads: dict[int, float] = {}
    context = engine.context
    for n in sorted({max(1, context.n_threads // 2), context.n_threads, context.n_threads + 1}):
        context.set_threads(n)
        meter = Meter(context, seq)
        meter.fill(16)
        by_threads[n] = sorted(meter.time(1, i) for i in range(5))[2]
        meter.close()
    context.set_threads(context.n_threads)
    engine.pool.give(seq)
    stored = save_curve(context, curve)
    return curve, _draft_steps(session), by_threads, stored


def _draft_steps(session: Session) -> dict[str, float]:
    """Seconds of one step of every draft model, by file name."""
    from lcspec.drafters import create

    found: dict[str, float] = {}
    for i, path in enumerate(session.engine.drafting.env.draft.models):
        drafter = create(model_drafter(i), session.engine.drafting.env)
        try:
            if (seconds := drafter.step_seconds()) is not None:
                found[path.name] = seconds
        finally:
            drafter.close()
    return found


def break_even(
    curve: CostCurve, context: int, draft_seconds: float, widths: frozenset[int] | None = None
) -> float | None:
    """The smallest per-token acceptance at which a chain beats plain decoding; None if not even certainty does."""
    if speedup(curve, context, 1.0, draft_seconds, widths) <= 1.0:
        return None
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if speedup(curve, context, middle, draft_seconds, widths) <= 1.0 else (low, middle)
    return high


def speedup(
    curve: CostCurve, context: int, acceptance: float, draft_seconds: float, widths: frozenset[int] | None = None
) -> float:
    """The best chain's tokens per second over those of plain decoding, every token accepted with `acceptance`."""
    costs = curve.effective(context, widths)
    best, expected, p, chain = 0.0, 1.0, 1.0, list[float]()
    for n in range(1, len(costs)):
        p *= acceptance
        expected += p
        chain.append(p)
        if n + 1 in costs:
            more = curve.stake.seconds(costs, 1, 1, chain) if curve.stake is not None else 0.0
            best = max(best, expected * costs[1][0] / (costs[n + 1][0] + n * draft_seconds + more))
    return best


def describe(
    session: Session, curve: CostCurve, draft_seconds: dict[str, float], by_threads: dict[int, float]
) -> dict[str, Any]:
    """Everything `calibrate --json` prints."""
    from lcspec.profiles.attention import times_for

    engine = session.engine
    lengths = sorted({c for by in curve.points.values() for c in by})
    context = lengths[0] if lengths else 0
    t1 = curve.measured(1, context)
    ratios = {n: curve.measured(n, context) / t1 for n in curve.widths}
    if engine.context.memory.branching is Branching.NONE:
        widths = frozenset({1})  # nothing drafted can be verified
    else:
        widths = frozenset(n for n in curve.widths if n <= engine.context.memory.max_chain)
    free = break_even(curve, context, 0.0, widths)
    drafted = {name: break_even(curve, context, seconds, widths) for name, seconds in draft_seconds.items()}
    attention = times_for(session.model, engine.options)
    info = {
        "model": str(engine.options.path),
        "quantization": session.model.header.quantization,
        "threads": engine.context.n_threads,
        "gpu_layers": session.model.gpu_layers,
        "speculation": engine.context.memory.branching.value,
        "state_seconds": None if curve.stake is None else {"save": curve.stake.save, "load": curve.stake.load},
        "contexts": lengths,
        "seconds": {str(n): {str(c): s for c, s in by.items()} for n, by in curve.points.items()},
        "relative": {str(n): r for n, r in ratios.items()},
        "draft_step_seconds": draft_seconds,
        "break_even_acceptance": {"free_drafts": free, "draft_models": drafted},
        "disturbed": {"measured_again": list(curve.retaken), "unsteady": list(curve.unsteady)},
        "seconds_by_threads": {str(n): s for n, s in by_threads.items()},
        "exactness": exactness(session),
        "attention": attention and {way: layer.answer for way, layer in attention._asdict().items() if layer},
    }
    info["conclusions"] = conclusions(info, ratios)
    return info


def exactness(session: Session) -> dict[str, Any] | None:
    """What the same bits for every request cost here; None where that is not known."""
    from lcspec.profiles.kernels import exact_ways
    from lcspec.profiles.price import prices

    engine = session.engine
    options = replace(session.model.options, attention="measured")
    ways = prices(session.model, options, exact_ways(session.model, options))
    taken = [price for way, price in ways if way.attention == engine.options.attention]
    found = next(iter([*taken, *(price for _, price in ways)]), None)
    if found is None:
        return None
    return {
        "by_default": engine.exact.independent,
        "slots": engine.options.slots,
        "keeps_answers": engine.prompts.keeps_answers,
        "decode": found.decode,
        "first_token": found.first,
        "check": found.check,
    }


def exactness_text(found: dict[str, Any]) -> str:
    """The same in a sentence."""
    costs = f"{found['decode'] - 1:+.1%} a step, {found['first_token'] - 1:+.1%} to a long prompt's first token"
    if found["by_default"]:
        beside = "" if found["slots"] == 1 else ", whoever else is served"
        lost = " A conversation that the cache has lost may go on otherwise." if found["keeps_answers"] else ""
        return f"Texts are exact by default: the same bits with drafts and without{beside} ({costs}).{lost}"
    return f"Texts are not exact by default ({costs}): --exact insists."


def conclusions(info: dict[str, Any], ratios: dict[int, float]) -> list[str]:
    """What follows, in a few sentences."""
    out = []
    verifies = info.get("speculation") != Branching.NONE.value
    if not verifies:
        out.append(
            "Drafts cannot be verified on this model: its recurrent state cannot be taken back, so lcspec decodes "
            "plainly. The widths tell how fast a prompt is read."
        )
    state = info.get("state_seconds")
    if state is not None:
        out.append(
            "Its recurrent state cannot be taken back: a step with drafts saves it first "
            f"({state['save'] * 1e3:.2f} ms), and after a refusal lcspec loads it ({state['load'] * 1e3:.2f} ms) and "
            "decodes what was accepted again. What follows counts that."
        )
    cheap = [n for n in ratios if n > 1 and all(ratios[n] / n < ratios[m] / m for m in (n - 1, n + 1) if m in ratios)]
    best = sorted(cheap or [n for n in ratios if n > 1], key=lambda n: ratios[n] / n)[:4]
    named = ", ".join(f"{n} ({ratios[n]:.2f} x one token)" for n in sorted(best))
    if named and verifies:
        out.append(f"Cheap widths here: {named}.")
    if verifies:
        out.append(_pays(info["break_even_acceptance"]))
    if info.get("exactness"):
        out.append(exactness_text(info["exactness"]))
    attention = info.get("attention")
    if attention and attention["products"] < attention["fused"]:
        times = attention["fused"] / attention["products"]
        out.append(f"Attention takes {times:.1f} times as long with the fused kernel (flash attention) as without.")
    timed = {int(n): s for n, s in info["seconds_by_threads"].items()}
    if timed:
        fastest = min(timed, key=timed.__getitem__)
        if timed[fastest] < 0.95 * timed.get(info["threads"], 0.0):
            out.append(f"{fastest} threads decode a token in {timed[fastest] * 1e3:.1f} ms: try --threads {fastest}.")
    return out


def _pays(needed: dict[str, Any]) -> str:
    """From which acceptance on speculation pays."""
    if needed["free_drafts"] is None:
        return "No width is cheap enough for speculation to pay: lcspec will decode plainly."
    text = f"Speculation pays {_from(needed['free_drafts'])} with n-gram drafts"
    for name, share in needed["draft_models"].items():
        who = name if len(needed["draft_models"]) > 1 else "this draft model"
        text += f", {share:.0%} with {who}" if share is not None else f"; {who} is too slow to pay at any acceptance"
    return text + "."


def _from(needed: float) -> str:
    return "at any acceptance" if needed < 0.005 else f"from an acceptance of {needed:.0%} a token"


def table(curve: CostCurve, info: dict[str, Any]) -> str:
    """The curve as a table with bars."""
    lengths = info["contexts"]
    head = "width " + " ".join(f"{f'{c} ctx':>10}" for c in lengths) + "   relative   per token"
    lines = [f"{info['model']} ({info['quantization']}), {info['threads']} threads", head]
    longest = max(info["relative"].values(), default=1.0)
    for n in curve.widths:
        cells = []
        for c in lengths:
            seconds = curve.points[n].get(c)
            cells.append(f"{seconds * 1e3:7.2f} ms" if seconds is not None else f"{'-':>10}")
        r = info["relative"][str(n)]
        lines.append(f"{n:5} {' '.join(cells)} {r:10.2f} {r / n:11.2f} " + "#" * max(1, round(r / longest * BAR)))
    for name, seconds in info["draft_step_seconds"].items():
        lines.append(f"draft model {name}: {seconds * 1e3:.2f} ms a step")
    return "\n".join(lines)

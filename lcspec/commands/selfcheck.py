"""`lcspec verify`: is speculation exact on this machine? Width classes, trees, then text with it on against off."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence

import click

from lcspec.commands.options import model_options
from lcspec.config import BY_ROWS, DrafterSpec, SpeculationParams
from lcspec.engine.admission import check_writes
from lcspec.engine.events import Tokens
from lcspec.errors import ExactnessError
from lcspec.llama import Branching
from lcspec.profiles.exactness import DEPENDS
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import ModelPair, Session, loading_line, open_session

if TYPE_CHECKING:
    from lcspec.profiles.certification import Report

SPOT_STRIDE = 33
PROMPT_TOKENS = 48


def run(
    model: Path | None,
    draft: Sequence[Path],
    positions: int,
    n: int,
    prompts: int,
    repack: bool,
    as_json: bool,
    **o: Any,
) -> int:
    """Measure, compare, print; returns 0 when everything that is promised holds.

    For a model that --exact refuses, texts are compared without it, and the result is 1: nothing is promised.

    Raises:
        LcspecError: the model cannot be loaded, or writes no text.
    """
    pair = ModelPair.resolve(model, draft)
    options = model_options(pair.target, o, exact=True, repack=repack)
    with open_session(options, pair.draft, loading_line()) as session:
        check_writes(session.engine.context)
        result: dict[str, Any] = {
            "model": str(pair.target),
            "quantization": session.model.header.quantization,
            "threads": session.engine.context.n_threads,
            "gpu_layers": session.model.gpu_layers,
            "repack": repack,
            "attention": session.engine.options.attention,
        }
        from lcspec.profiles.certification import Comparison, Report

        try:
            certificate = session.engine.exact.certificate
            result["independent"] = session.engine.exact.independent
            if session.model.traits.attention_only:
                result |= figures(classes(session, positions, quiet=as_json))
            elif certificate is None:
                raise ExactnessError(refusal(session))
            else:  # other widths and trees cannot be taken back from a state, so this is what was compared
                result |= figures(Report(certificate, 1, tuple(map(Comparison, sorted(certificate.widths))), 0))
            if not as_json:
                click.echo(classes_text(result))
            result["texts"] = texts(session, n, prompts, quiet=as_json)
        except ExactnessError as error:
            result |= {"classes": [], "widths": [], "refused": str(error)}
            result["texts"] = texts(session, n, prompts, quiet=as_json, exact=False)
    if as_json:
        click.echo(json.dumps(result))
    else:
        click.echo(texts_text(result))
    return 0 if "refused" not in result and all(t["identical_exact"] == t["prompts"] for t in result["texts"]) else 1


def refusal(session: Session) -> str:
    """Why a model with a recurrent state is not exact, and what it does instead."""
    name, branching = session.model.options.path.name, session.engine.context.memory.branching
    what = {
        Branching.NONE: "no draft is verified on it, so its text is that of plain decoding",
        Branching.CHAIN: "it verifies chains of drafts, and a near tie may turn out otherwise than without them",
    }
    return f"--exact is not available for {name}: it has a recurrent state, and {DEPENDS}; {what[branching]}"


def figures(report: Report) -> dict[str, Any]:
    """A certificate and what is behind it, for `verify --json`."""
    return {
        **report.certificate.as_dict(),
        "widths": sorted(report.certificate.widths) if report.certificate.repeatable else [],
        "reference_width": report.reference,
        "largest_difference": {str(c.width): c.largest for c in report.comparisons},
        "argmax_flips": {str(c.width): c.flips for c in report.comparisons},
        "tree_mismatches": report.tree_mismatches,
    }


def classes(session: Session, positions: int, quiet: bool) -> Report:
    """Certify all widths at enough spots for `positions` positions, and store the certificate."""
    from lcspec.profiles.certification import ALL_WIDTHS, SPAN, measure_certificate, store

    limit = session.engine.context.n_ctx - 3 * SPAN
    spots = [s for s in range(8, max(9, limit), SPOT_STRIDE)][: max(1, -(-positions // SPAN))]
    hidden = quiet or not sys.stderr.isatty()
    with click.progressbar(length=1000, label="comparing widths", file=sys.stderr, hidden=hidden) as bar:
        shown = 0

        def progress(fraction: float) -> None:
            nonlocal shown
            bar.update(int(fraction * 1000) - shown)
            shown = int(fraction * 1000)

        report = measure_certificate(
            session.engine.prefix_cache, session.engine.padding, spots=spots, widths=ALL_WIDTHS, progress=progress
        )
    store(session.engine.context, report.certificate)
    return report


def classes_text(result: dict[str, Any]) -> str:
    """The width classes for people."""
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
        lines.append(
            "A row has the same bits after any pieces of the prompt: row by row every request of the single slot is "
            "exact."
            if result["attention"] in BY_ROWS
            else "A row has the same bits beside other requests and after any pieces of the prompt: with K in F16 and "
            "V in BF16 every request is exact."
        )
        return "\n".join(lines)
    lines.append(f"--exact decodes at widths {ranges(result['widths'])} (marked *).")
    trees = "give the same bits as chains" if result["trees"] else "do not: --exact uses chains only"
    lines.append(f"Trees {trees}.")
    return "\n".join(lines)


def ranges(widths: list[int]) -> str:
    """1, 2-5, 8 and so on."""
    out: list[list[int]] = []
    for w in sorted(widths):
        if out and w == out[-1][1] + 1:
            out[-1][1] = w
        else:
            out.append([w, w])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def texts(session: Session, n: int, prompts: int, quiet: bool, exact: bool = True) -> list[dict[str, Any]]:
    """Speculation on against off, greedy and seeded, without --exact and (if `exact`) with it, on real text.

    Empty for a model on which no draft can be verified.
    """
    from lcspec.profiles.step_cost import sample_tokens

    engine = session.engine
    tokens = sample_tokens(engine.context, PROMPT_TOKENS * prompts)
    starts = [tuple(tokens[i * PROMPT_TOKENS : (i + 1) * PROMPT_TOKENS]) for i in range(prompts)]
    out: list[dict[str, Any]] = []
    if engine.context.memory.branching is Branching.NONE:
        return out
    ways = (True, False) if exact else (False,)
    for temperature in (0.0, 0.8):
        plain = {way: [_text(session, p, n, temperature, SpeculationParams(exact=way)) for p in starts] for way in ways}
        for name, specs in _strategies(session).items():
            row: dict[str, Any] = {"strategy": name, "temperature": temperature, "prompts": len(starts)}
            for way in ways:
                spec = SpeculationParams(specs, exact=way)
                same = [_text(session, p, n, temperature, spec) == t for p, t in zip(starts, plain[way])]
                row["identical_exact" if way else "identical"] = sum(same)
            out.append(row)
            if not quiet and sys.stderr.isatty():
                click.echo(f"compared {name} at temperature {temperature}", err=True)
    return out


def _strategies(session: Session) -> dict[str, tuple[DrafterSpec, ...]]:
    """What to compare: every drafter as a chain and, where the memory can branch, as a tree."""
    found: dict[str, tuple[DrafterSpec, ...]] = {"ngram": (DrafterSpec("ngram", {"nodes": "7"}),)}
    trees = session.engine.context.memory.branching is Branching.TREE
    if trees:
        found["ngram tree"] = (DrafterSpec("ngram", {"nodes": "10", "branch": "3"}),)
    for name in session.engine.drafting.env.draft.drafters:
        found[name] = (DrafterSpec(name),)
        if trees:
            found[f"{name} tree"] = (DrafterSpec(name, {"nodes": "12", "branch": "3"}),)
    return found


def _text(
    session: Session, prompt: tuple[int, ...], n: int, temperature: float, speculation: SpeculationParams
) -> list[int]:
    from lcspec.engine.request import Request

    request = Request(prompt, SamplingParams(temperature=temperature, seed=1), speculation, n, ignore_end=True)
    ids: list[int] = []
    for event in session.engine.run(replace(request)):
        if isinstance(event, Tokens):
            ids += [t.id for t in event.tokens]
    return ids


def texts_text(result: dict[str, Any]) -> str:
    """The comparison of texts for people."""
    lines = [str(result["refused"])] if "refused" in result else []
    rows = result.get("texts", [])
    if rows:
        lines.append("speculation on against off, prompts with identical text:")
    for row in rows:
        how = "greedy" if row["temperature"] == 0 else f"temperature {row['temperature']}, seeded"
        exact = f"--exact {row['identical_exact']}/{row['prompts']}   " if "identical_exact" in row else ""
        lines.append(f"  {row['strategy']:<11} {how:<24} {exact}without {row['identical']}/{row['prompts']}")
    return "\n".join(lines)

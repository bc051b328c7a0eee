"""`lcspec verify`: is speculation exact on this machine? Ways, width classes, trees, then text with it and without."""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, Sequence

import click

from lcspec.commands.progress import progress_bar
from lcspec.commands.selfcheck_text import classes_text, texts_text, ways_text
from lcspec.config import DrafterSpec, DraftFiles, ModelOptions, SpeculationParams
from lcspec.engine.admission import check_writes
from lcspec.engine.events import Failed, Finished, Tokens
from lcspec.errors import ExactnessError
from lcspec.llama import Branching
from lcspec.loading import model_options
from lcspec.profiles.exactness import DEPENDS
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import ModelPair, Session, loading_line, open_session

if TYPE_CHECKING:
    from lcspec.profiles.certification import Report

SPOT_STRIDE = 33
PROMPT_TOKENS = 48
TEMPERATURES = (0.0, 0.8)
# Where nobody says how much to compare: the most, and about how long it may take, seconds.
MOST_POSITIONS, MOST_PROMPTS = 320, 4
ENOUGH_SECONDS = 120.0

# The texts of all prompts, by temperature and the name of a strategy.
Texts = dict[tuple[float, str], list[list[int]]]


def run(
    model: Path | None,
    draft: Sequence[Path],
    positions: int | None,
    n: int,
    prompts: int | None,
    repack: bool,
    slots: int,
    as_json: bool,
    **o: Any,
) -> int:
    """Measure, compare, print; returns 0 when everything that is promised holds.

    For a model that --exact refuses, texts are compared without it, and the result is 1: nothing is promised.

    Raises:
        LcspecError: the model cannot be loaded, or writes no text.
    """
    pair = ModelPair.resolve(model, draft)
    options = model_options(pair.target, o, exact=True, repack=repack, slots=slots)
    with open_session(options, pair.draft, loading_line()) as session:
        check_writes(session.engine.context)
        if positions is None or prompts is None:
            most = affordable(session, n)
            positions, prompts = positions or most[0], prompts or most[1]
        result = describe(session, options)
        try:
            check(session, result, positions, quiet=as_json)
            with_exact = texts(session, n, prompts, exact=True, quiet=as_json)
        except ExactnessError as error:
            result |= {"classes": [], "widths": [], "refused": str(error)}
            with_exact = None
        if not as_json:
            click.echo(ways_text(result["ways"]))
            if "positions" in result:
                click.echo(classes_text(result))
        # Where every request is exact, the texts without are those of another context.
        without = None if result["independent"] else texts(session, n, prompts, exact=False, quiet=as_json)
    if without is None:
        without = _texts_without(options, pair.draft, n, prompts, as_json)
    result["texts"] = compared(without, with_exact)
    click.echo(json.dumps(result) if as_json else texts_text(result))
    kept = all(row["identical_exact"] == row["prompts"] for row in result["texts"]) if with_exact is not None else False
    return 0 if kept and not result.get("refuted") else 1


def affordable(session: Session, n: int) -> tuple[int, int]:
    """How many positions, and how many prompts of `n` tokens, are compared in about ENOUGH_SECONDS each."""
    from lcspec.profiles.certification import SPAN
    from lcspec.profiles.step_cost import Meter

    meter = Meter(session.engine.context, session.engine.padding.seq)
    token = statistics.median([meter.time(1) for _ in range(4)])
    meter.close()
    # A position is decoded at SPAN widths, where a row takes half of what it takes alone; a text by each strategy,
    # with --exact and without.
    spots = ENOUGH_SECONDS / (SPAN * SPAN / 2 * token)
    texts = ENOUGH_SECONDS / (2 * len(TEMPERATURES) * len(_strategies(session)) * n * token)
    return SPAN * max(1, min(MOST_POSITIONS // SPAN, int(spots))), max(1, min(MOST_PROMPTS, int(texts)))


def describe(session: Session, options: ModelOptions) -> dict[str, Any]:
    """What is checked, and every exact way that there is here: what it costs, and whether its bits hold."""
    from lcspec.profiles.independence import independence_of
    from lcspec.profiles.kernels import name_of, priced_ways

    engine, model, ways = session.engine, session.model, list[dict[str, Any]]()
    for way, price in priced_ways(model, options):
        certificate = independence_of(model, way, price is not None and price.keeps_answers)
        name = name_of(way)
        row: dict[str, Any] = {"way": name, "taken": engine.exact.independent and name == name_of(engine.options)}
        row |= {"independent": certificate is not None and certificate.independent}
        row |= {"trees": certificate is not None and certificate.trees}
        ways.append(row | {"decode": price and price.decode, "first_token": price and price.first})
    return {
        "model": str(options.path),
        "quantization": model.header.quantization,
        "threads": engine.context.n_threads,
        "gpu_layers": model.gpu_layers,
        "repack": model.repack,
        "slots": engine.options.slots,
        "attention": engine.options.attention,
        "ways": ways,
        "independent": engine.exact.independent,
    }


def check(session: Session, result: dict[str, Any], positions: int, quiet: bool) -> None:
    """Add the width classes to `result`. A longer look at an independent context may refute what a short one said.

    Raises:
        ExactnessError: the model is not exact here; the message says why.
    """
    from lcspec.profiles.certification import Comparison, Report
    from lcspec.profiles.independence import revoke

    exact = session.engine.exact
    if not session.model.traits.attention_only:
        if exact.certificate is None:
            raise ExactnessError(refusal(session))
        # Other widths and trees cannot be taken back from a state, so this is what was compared.
        result |= figures(Report(exact.certificate, 1, tuple(map(Comparison, sorted(exact.certificate.widths))), 0))
        return
    result |= figures(classes(session, positions, exact.independent, quiet))
    if exact.independent:
        alike = result["repeatable"] and len(result["classes"]) == 1 and (result["trees"] or exact.chains_only)
        result |= {"independent": alike, "refuted": not alike}
        if alike:
            result["widths"] = result["classes"][0]
        else:
            revoke(session.model, session.engine.options)


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


def classes(session: Session, positions: int, independent: bool, quiet: bool) -> Report:
    """Compare all widths at enough spots for `positions` positions; what is found of a context that is not independent
    is stored as its certificate."""
    from lcspec.profiles.certification import ALL_WIDTHS, SPAN, measure_certificate, store

    engine = session.engine
    limit = engine.context.n_ctx - 3 * SPAN
    spots = [s for s in range(8, max(9, limit), SPOT_STRIDE)][: max(1, -(-positions // SPAN))]
    with progress_bar("comparing widths", quiet) as progress:
        report = measure_certificate(
            engine.prefix_cache, engine.padding, spots=spots, widths=ALL_WIDTHS, progress=progress
        )
    if not independent and engine.options.slots == 1:
        store(engine.context, report.certificate)
    return report


def texts(session: Session, n: int, prompts: int, *, exact: bool, quiet: bool) -> Texts:
    """The texts of `prompts` prompts, greedy and seeded: plainly, one after the other (`off`), and by every strategy,
    side by side if there are slots. Only `off` for a model on which no draft can be verified.
    """
    from lcspec.profiles.step_cost import sample_tokens

    tokens = sample_tokens(session.engine.context, PROMPT_TOKENS * prompts)
    starts = [tuple(tokens[i * PROMPT_TOKENS : (i + 1) * PROMPT_TOKENS]) for i in range(prompts)]
    out: Texts = {}
    for temperature in TEMPERATURES:
        for name, specs in _strategies(session).items():
            spec = SpeculationParams(specs, exact=exact)
            at_once = session.engine.options.slots if specs else 1
            out[temperature, name] = _texts(session, starts, n, temperature, spec, at_once)
            if not quiet and sys.stderr.isatty():
                click.echo(f"compared {name} at temperature {temperature}", err=True)
    return out


def _texts_without(options: ModelOptions, draft: DraftFiles, n: int, prompts: int, quiet: bool) -> Texts:
    with open_session(replace(options, exact=False), draft) as session:
        return texts(session, n, prompts, exact=False, quiet=quiet)


def compared(without: Texts, with_exact: Texts | None) -> list[dict[str, Any]]:
    """A row for every strategy: how many texts are those of plain decoding, without --exact and with it."""
    rows = []
    for temperature, name in without:
        if name == "off":
            continue
        row: dict[str, Any] = {"strategy": name, "temperature": temperature}
        row |= {"prompts": len(without[temperature, name]), "identical": _same(without, temperature, name)}
        rows.append(row if with_exact is None else row | {"identical_exact": _same(with_exact, temperature, name)})
    return rows


def _same(found: Texts, temperature: float, name: str) -> int:
    return sum(a == b for a, b in zip(found[temperature, "off"], found[temperature, name]))


def _strategies(session: Session) -> Mapping[str, tuple[DrafterSpec, ...]]:
    """What to compare: every drafter as a chain and, where the memory can branch, as a tree."""
    branching = session.engine.context.memory.branching
    found: dict[str, tuple[DrafterSpec, ...]] = {"off": ()}
    if branching is Branching.NONE:
        return found
    found["ngram"] = (DrafterSpec("ngram", {"nodes": "7"}),)
    trees = branching is Branching.TREE
    if trees:
        found["ngram tree"] = (DrafterSpec("ngram", {"nodes": "10", "branch": "3"}),)
    for name in session.engine.drafting.env.draft.drafters:
        found[name] = (DrafterSpec(name),)
        if trees:
            found[f"{name} tree"] = (DrafterSpec(name, {"nodes": "12", "branch": "3"}),)
    return found


def _texts(
    session: Session,
    prompts: Sequence[tuple[int, ...]],
    n: int,
    temperature: float,
    speculation: SpeculationParams,
    at_once: int,
) -> list[list[int]]:
    """The answers to `prompts`, `at_once` of which run side by side."""
    from lcspec.engine.request import Request

    engine, out = session.engine, list[list[int]]()
    for start in range(0, len(prompts), at_once):
        found = dict[int, list[int]]()
        for prompt in prompts[start : start + at_once]:
            sampling = SamplingParams(temperature=temperature, seed=1)
            found[engine.submit(Request(prompt, sampling, speculation, n, ignore_end=True))] = []
        running = set(found)
        while running:
            for event in engine.step():
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Tokens):
                    found[event.request] += [token.id for token in event.tokens]
                elif isinstance(event, Finished):
                    running.discard(event.request)
        out += found.values()
    return out

"""Who is compared: llama.cpp's programs with a small grid over their own options, and lcspec's strategies."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

OURS = "lcspec"
PLAIN = f"{OURS} off"
DEFAULT_STRATEGIES = "auto; ngram@3|5|7|15; model@3|5|7|15"


@dataclass(frozen=True)
class Setting:
    """One way to run a contender.

    Attributes:
        label: how tables call it.
        args: options for the program; for lcspec, none.
        max_draft: lcspec only: drafted nodes per step.
        fresh: a server has to be restarted for every run, because it would remember earlier answers.
    """

    label: str
    args: tuple[str, ...] = ()
    max_draft: int | None = None
    fresh: bool = False


@dataclass(frozen=True)
class Contender:
    """A program with a method.

    Attributes:
        name: unique, shown in tables.
        program: the executable, or `lcspec`.
        method: plain | ngram | model | lookahead | mixed | auto; rows of the same method are compared with each other.
        settings: the grid; the best one by the tuning prompts runs on all prompts.
        draft: it needs a draft model.
        free: see `outputs.parse_example`.
        strategy: lcspec only: what `--speculate` gets.
    """

    name: str
    program: str
    method: str
    settings: tuple[Setting, ...] = (Setting("default"),)
    draft: bool = False
    free: int = 0
    strategy: str = ""


def _n_max(*values: int) -> tuple[Setting, ...]:
    return tuple(Setting(f"n-max {n}", ("--spec-draft-n-max", str(n))) for n in values)


def _draft(*pairs: tuple[int, float]) -> tuple[Setting, ...]:
    return tuple(
        Setting(
            f"n-max {n}, p-min {p:g}",
            ("--spec-type", "draft-simple", "--spec-draft-n-max", str(n), "--spec-draft-p-min", str(p)),
        )
        for n, p in pairs
    )


def _tree(*triples: tuple[int, int, float]) -> tuple[Setting, ...]:
    """llama-speculative: draft length, parallel drafts, split probability."""
    return tuple(
        Setting(
            f"n-max {n}" + (f", {branches} branches, p-split {split:g}" if branches > 1 else ""),
            ("--spec-draft-n-max", str(n), "-np", str(branches), "--spec-draft-p-split", str(split)),
        )
        for n, branches, split in triples
    )


def _ngram_sizes(kind: str, *pairs: tuple[int, int]) -> tuple[Setting, ...]:
    return tuple(
        Setting(
            f"{kind} {n}/{m}",
            ("--spec-type", kind, f"--spec-{kind}-size-n", str(n), f"--spec-{kind}-size-m", str(m)),
        )
        for n, m in pairs
    )


def _ngram_mod(n_match: int, n_max: int) -> Setting:
    sizes = {"n-match": n_match, "n-min": 1, "n-max": n_max}
    args = [part for name, value in sizes.items() for part in (f"--spec-ngram-mod-{name}", str(value))]
    return Setting(f"ngram-mod {n_match}/{n_max}", ("--spec-type", "ngram-mod", *args), fresh=True)


def _both_ways(settings: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """Every setting with the program's own choice of attention and without flash attention; ours measures which."""
    plain = tuple(replace(s, label=f"{s.label}, -fa off", args=(*s.args, "-fa", "off")) for s in settings)
    return settings + plain


# Its draft length is fixed to 8 in the source, and it never starts afresh at a new request.
_CACHE = Setting("ngram-cache", ("--spec-type", "ngram-cache"), fresh=True)
_NGRAMS = (
    *_ngram_sizes("ngram-simple", (2, 3), (3, 3), (3, 7), (3, 15), (12, 48)),
    *_ngram_sizes("ngram-map-k", (2, 3), (3, 7), (3, 15)),
    *_ngram_sizes("ngram-map-k4v", (3, 7), (3, 15)),
    _ngram_mod(4, 7),
    _CACHE,
)
_MIXED = tuple(
    Setting(f"{one.label} + {two.label}", ("--spec-type", "ngram-simple,draft-simple", *one.args[2:], *two.args[2:]))
    for one in _ngram_sizes("ngram-simple", (3, 7))
    for two in _draft((3, 0.0), (7, 0.6))
)
_DRAFTS = _draft((2, 0.0), (3, 0.0), (7, 0.0), (15, 0.0), (3, 0.6), (5, 0.6), (7, 0.6), (7, 0.8), (15, 0.8))

_PEERS = (
    Contender("llama-lookup", "llama-lookup", "ngram", _n_max(3, 5, 7, 15), free=1),
    Contender("llama-lookahead", "llama-lookahead", "lookahead"),
    Contender("llama-speculative-simple", "llama-speculative-simple", "model", _DRAFTS, draft=True),
    Contender("llama-speculative-simple ngram", "llama-speculative-simple", "ngram", _NGRAMS),
    Contender(
        "llama-speculative",
        "llama-speculative",
        "model",
        _tree((3, 1, 0.1), (5, 1, 0.1), (7, 1, 0.1), (15, 1, 0.1), (5, 2, 0.3), (7, 4, 0.1)),
        draft=True,
        free=1,
    ),
    Contender("llama-server", "llama-server", "plain"),
    Contender("llama-server draft", "llama-server", "model", _DRAFTS, draft=True),
    Contender("llama-server ngram", "llama-server", "ngram", _NGRAMS),
    Contender("llama-server ngram+draft", "llama-server", "mixed", _MIXED, draft=True),
)
PEERS = tuple(replace(peer, settings=_both_ways(peer.settings)) for peer in _PEERS)


def lcspec_contenders(text: str) -> tuple[Contender, ...]:
    """Read strategies separated by semicolons, each `STRATEGY` or `STRATEGY@N|N|...` for a grid over max-draft.

    A strategy is what `lcspec generate --speculate` takes. Plain decoding is always among them, and first.

    Raises:
        ValueError: a strategy is empty, given twice, or its grid is not made of numbers.
    """
    found: dict[str, Contender] = {PLAIN: _lcspec("off", (None,))}
    for part in text.split(";"):
        strategy, _, grid = (piece.strip() for piece in part.partition("@"))
        if not strategy:
            raise ValueError(f"empty strategy in {text!r}: write for example {DEFAULT_STRATEGIES!r}")
        if grid and not re.fullmatch(r"\d+(\s*\|\s*\d+)*", grid):
            raise ValueError(f"{part.strip()!r}: after @ come numbers separated by |, such as {strategy}@3|5")
        name = f"{OURS} {strategy}"
        if name in found and name != PLAIN:
            raise ValueError(f"strategy {strategy!r} is given twice: use {strategy}@3|5 for several draft lengths")
        found[name] = _lcspec(strategy, tuple(int(n) for n in grid.split("|")) if grid else (None,))
    return tuple(found.values())


def _lcspec(strategy: str, grid: tuple[int | None, ...]) -> Contender:
    drafters = [name.split(":")[0].strip() for name in strategy.split(",")]
    method = drafters[0] if len(drafters) == 1 else "mixed"
    return Contender(
        f"{OURS} {strategy}",
        OURS,
        "plain" if method == "off" else method,
        tuple(Setting("default" if n is None else f"max-draft {n}", max_draft=n) for n in grid),
        draft="model" in drafters,
        strategy=strategy,
    )

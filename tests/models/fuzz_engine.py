"""Random requests, as strange as the types allow, for an engine in a process of its own: it must not end that process.

    python -m tests.models.fuzz_engine TARGET DRAFT SEED CASES

Every case is printed before it is tried, so that the last one printed is the one that did it.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

from lcspec.engine.events import Failed, Finished
from lcspec.engine.request import Request
from lcspec.errors import LcspecError
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session, parse_speculation
from tests.models.running import options

GRAMMARS = (
    'root ::= "a"',
    'root ::= ""',
    'root ::= ""*',
    "root ::= [^\\x00-\\U0010FFFF]",  # nothing can follow
    'root ::= "ab" [^\\x00-\\U0010FFFF] | "c"',
    "root ::= .*",
    "root ::= [a-z]{0,9} root?",
    'root ::= "\\U0001F600" | "\\xff"',
    "root ::= <[5]> [a-z]",
    "root ::= !<[5]>+",
    "root ::= x\nx ::= y | x2\ny ::= [0-9]\nx2 ::= [0-9] y",
    "root ::= nowhere",
)
STRATEGIES = ("off", "auto", "ngram:min_n=1:branch=3", "model:p_min=0:branch=2", "suffix,ngram", "lookahead", "cascade")
VERIFIERS = ("coupled", "coupled", "rejection", "multi_step", "typical", "lenient")
TINY = 1e-38


def sampling(rng: random.Random, n_vocab: int) -> dict[str, Any]:
    """Sampling parameters, most of them left out."""
    values: dict[str, tuple[Any, ...]] = {
        "temperature": (0.0, 5e-324, TINY, 1e-4, 0.7, 100.0),
        "top_k": (0, 1, 3, n_vocab + 1, 2**31 - 1, 2**40),
        "top_p": (0.0, TINY, 0.5, 1.0),
        "min_p": (0.0, TINY, 0.5, 1.0),
        "typical_p": (0.0, TINY, 0.5, 1.0),
        "repeat_penalty": (TINY, 1e-300, 0.5, 1.5, 1e38, 1e300),
        "repeat_last_n": (-1, 0, 1, 2**31 - 1, 2**40),
        "frequency_penalty": (-2.0, 2.0),
        "presence_penalty": (-2.0, 2.0),
        "dry_multiplier": (TINY, 1.0, 1e38, 1e300),
        "dry_base": (0.0, 1.0, 1.75, 1e38, -1.0),
        "dry_allowed_length": (-1, 0, 2, 2**31 - 1, 2**40),
        "dry_penalty_last_n": (-1, 0, 1, 2**31 - 1, 2**40),
        "xtc_probability": (0.5, 1.0),
        "xtc_threshold": (0.0, TINY, 0.3, 1.0),
        "logit_bias": (
            tuple((t, -100.0) for t in range(n_vocab)),
            tuple((t, -math.inf) for t in range(n_vocab)),
            tuple((t, 100.0) for t in range(0, n_vocab, 2)),
            ((0, 100.0),),
            ((n_vocab - 1, -math.inf),),
        ),
        "grammar": GRAMMARS,
        "seed": (0, 2**64 - 1),
    }
    chosen = rng.sample(sorted(values), rng.choice((0, 1, 2, 4, 8)))
    return {name: rng.choice(values[name]) for name in chosen}


def one(rng: random.Random, session: Session) -> Request:
    """A request.

    Raises:
        LcspecError: it is refused.
    """
    n_vocab = session.model.n_vocab
    given = sampling(rng, n_vocab)
    length = rng.choice((1, 1, 7, 60, session.engine.context.n_ctx - 1, session.engine.context.n_ctx))
    ids = rng.choice((range(n_vocab), range(3), range(n_vocab - 3, n_vocab)))
    prompt = tuple(rng.choice(ids) for _ in range(length))
    strategy, verifier = rng.choice(STRATEGIES), rng.choice(VERIFIERS)
    limit = rng.choice((0, 1, 2, 12, None))
    shown = {k: v if len(str(v)) < 200 else f"{str(v)[:60]}..." for k, v in given.items()}
    print(f"{shown} prompt={length} {strategy} {verifier} limit={limit}", flush=True)
    return Request(
        prompt,
        SamplingParams(**given),
        parse_speculation(strategy, session.engine.drafting.env.draft, verifier=verifier),
        max_tokens=limit,
        stop=rng.choice(((), ("a",), ("\x00", "e"))),
        logprobs=rng.choice((None, 0, 3, n_vocab + 5)),
        ignore_end=rng.random() < 0.3,
        prediction=rng.choice(((), (1, 2, 3))),
    )


def main(target: str, draft: str, seed: int, cases: int) -> None:
    """Try so many requests, three at a time, with cancellations at any moment."""
    rng = random.Random(seed)
    with open_session(options(Path(target), slots=3, ctx=96, batch=32, max_width=16), Path(draft)) as session:
        engine = session.engine
        alive: set[int] = set()
        left = cases
        while left or engine.busy:
            while left and len(alive) < 4:
                left -= 1
                try:
                    alive.add(engine.submit(one(rng, session)))
                except LcspecError as error:
                    print("refused:", error, flush=True)
            if alive and rng.random() < 0.05:
                engine.cancel(rng.choice(sorted(alive)))
            for event in engine.step():
                if isinstance(event, (Finished, Failed)):
                    alive.discard(event.request)
        assert not alive
        assert engine.pool.free + 1 + len(engine.prefix_cache._idle) == engine.pool.n
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

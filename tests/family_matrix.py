"""Everything a family of models must get right, run in a process of its own: the library may abort on a model.

    python -m tests.family_matrix qwen35.gguf

prints a JSON line for every check that was made: its name, and what went wrong ("" if nothing did). References come
from the library itself, token by token in a context that nothing else uses.

Texts must be the same, except where the target hardly prefers one token to the other: kernels sum in another order at
other widths, and at such a near tie the other token may win. `--exact` knows no such excuse.
"""

from __future__ import annotations

import json
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from lcspec.config import DraftFiles
from lcspec.drafters import feature, growth
from lcspec.drafters.base import SequenceView
from lcspec.engine.prefill_budget import PrefillBudget
from lcspec.engine.request import Request
from lcspec.kv_cache.prompt_reader import LEAST_ROWS
from lcspec.llama import Context, can_fuse_row_by_row
from lcspec.modelfiles.companions import WITH_FEATURES, sort_drafts
from lcspec.profiles import kernels
from lcspec.profiles.price import Price
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session
from tests.running import (
    GREEDY,
    ROUNDS_ALIKE,
    SEEDED,
    Answer,
    answer,
    at_price,
    hasty_measuring,
    options,
    request,
    side_by_side,
)
from tests.tiny_families import FAMILIES, WINDOW
from tests.tiny_heads import write_assistant, write_eagle

# Two logits closer than this, or than twice what the library alone changes (see `ties`), may change places.
NEAR_TIE = 2e-3
N = 24
# So many readings of a text show what may change places in it.
READINGS = 12
TEXT = "the cat and the dog and the cat and the rat and the "
OTHER = "in the house of the cat there is a dog and the dog "

# Several texts of these are not read apart: nobody knows the format of their cells.
ALONE = ("deepseek32",)
# Rows of these are not alike: the library gathers what GLM attends to in another way from 17 rows on, and lightning
# attention takes the tokens of a step together, which is another sum than one after the other.
NEVER_EXACT = ("glm5-next", "minimax-01")

# Of models with a state, prompts of these are read in both ways: apart, and as steps are decoded.
NOT_APART = ("qwen35", "lfm2", "mamba")

Check = Callable[["Bench"], None]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Register a check under its function's name."""
    CHECKS[function.__name__] = function
    return function


class Bench:
    """One model under test. Every check opens sessions of its own, so that none leaves anything to another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._plain: dict[tuple[int, ...], tuple[list[int], np.ndarray]] = {}
        self._ties: dict[tuple[int, ...], np.ndarray] = {}
        self._seeded: dict[tuple[int, ...], list[int]] = {}

    def open(self, draft: DraftFiles | Path | None = None, **changes: object) -> Session:
        """A session of small context, keys and values in F32."""
        return open_session(options(self.path, **{"kv_type": "f32", "ctx": 256, **changes}), draft)  # type: ignore[return-value]

    def plain(self, session: Session, prompt: Sequence[int], n: int = N) -> tuple[list[int], np.ndarray]:
        """Greedy text of the library alone, and the logits behind each token, float32 [n, n_vocab]."""
        key = (*prompt, n)
        if key not in self._plain:
            ids, rows = list[int](), []
            with Context(session.model, session.engine.options) as context:
                batch = context.batch
                batch.clear()
                for i, token in enumerate(prompt):
                    batch.add(token, i, (0,), logits=i == len(prompt) - 1)
                context.decode()
                while True:
                    rows.append(context.logits()[-1].copy())
                    ids.append(int(rows[-1].argmax()))
                    if len(ids) == n:
                        break
                    batch.clear()
                    batch.add(ids[-1], len(prompt) + len(ids) - 1, (0,), logits=True)
                    context.decode()
            self._plain[key] = ids, np.array(rows)
        return self._plain[key]

    def seeded(self, session: Session, prompt: Sequence[int]) -> list[int]:
        """The text at a temperature without drafts."""
        key = tuple(prompt)
        if key not in self._seeded:
            self._seeded[key] = answer(session.engine, request(prompt, "off", N, sampling=SEEDED)).ids
        return self._seeded[key]

    def same(self, session: Session, prompt: Sequence[int], found: Sequence[int], what: str) -> None:
        """Compare a greedy text with the library's, up to a near tie."""
        ids, rows = self.plain(session, prompt, len(found))
        for i, (a, b) in enumerate(zip(ids, found)):
            if a != b:
                gap, tie = float(rows[i][a] - rows[i][b]), self.ties(session, prompt, ids)[i]
                assert gap < tie, f"{what}: token {i} is {b}, the library says {a} by {gap:.3g}"
                return  # from here on it is another text

    def ties(self, session: Session, prompt: Sequence[int], ids: Sequence[int]) -> np.ndarray:
        """How far apart two logits may be at each of `ids` and still change places, float [n].

        Measured on the library alone, which reads the text in steps of other widths, beside another text, and with its
        cells in another order. It is much where the router of an expert model hardly prefers one expert to the next.
        """
        text, n = (*prompt, *ids[:-1]), len(ids)
        key = (*text, n)
        if key not in self._ties:
            chance = random.Random(1)
            rows = [self._read(session, text, n, [width] * len(text)) for width in (1, 4, len(text))]
            for _ in range(READINGS):
                widths, beside = [chance.choice((1, 1, 2, 3, 5, 8)) for _ in text], chance.randint(1, 12)
                rows.append(self._read(session, text, n, widths, beside, gone=chance.randint(1, 6)))
            moved = np.max([np.abs(rows[0] - other).max(axis=1) for other in rows[1:]], axis=0)
            self._ties[key] = np.maximum(NEAR_TIE, 2 * moved)
        return self._ties[key]

    def _read(
        self, session: Session, text: Sequence[int], n: int, widths: Sequence[int], beside: int = 0, gone: int = 0
    ) -> np.ndarray:
        """Logits behind the last `n` tokens of `text`, read in steps of `widths`, float32 [n, n_vocab].

        Another text grows by `beside` tokens with the first step, by one with each of the next, and is gone after the
        step number `gone`: later tokens lie in its cells.
        """
        rows, start = list[np.ndarray](), 0
        with Context(session.model, replace(session.engine.options, slots=2)) as context:
            for step, width in enumerate(widths):
                if start >= len(text):
                    break
                batch = context.batch
                batch.clear()
                for i in range((beside if step == 0 else 1) if step < gone else 0):
                    batch.add(text[i], i if step == 0 else beside + step - 1, (1,), logits=False)
                for i, token in enumerate(text[start : start + width], start):
                    batch.add(token, i, (0,), logits=i >= len(text) - n)
                context.decode()
                if batch.n_outputs:
                    rows.append(context.logits().copy())
                start += width
                if step + 1 == gone:
                    context.memory.remove(1, 0)
        return np.concatenate(rows)

    def near_ties(self, session: Session, prompt: Sequence[int]) -> int:
        """Tokens of the plain text that are near ties."""
        ids, rows = self.plain(session, prompt)
        best = np.sort(rows, axis=1)
        return int((best[:, -1] - best[:, -2] < self.ties(session, prompt, ids)).sum())


def speculates(
    bench: Bench, strategies: Sequence[str], draft: DraftFiles | Path | None = None, hints: bool = False
) -> None:
    """Every strategy gives the library's text, also at a temperature; with `hints`, heads are half right."""
    parted = []
    with bench.open(draft) as session:
        for text in (TEXT, OTHER):
            prompt = session.prompt_ids(text)
            seeded = bench.seeded(session, prompt)
            for strategy in strategies:
                with half_right([(*prompt, *bench.plain(session, prompt)[0])] if hints else []):
                    found = answer(session.engine, request(prompt, strategy, N, draft=draft))
                with half_right([(*prompt, *seeded)] if hints else []):
                    warm = answer(session.engine, request(prompt, strategy, N, sampling=SEEDED, draft=draft))
                assert len(found.ids) == N
                bench.same(session, prompt, found.ids, strategy)
                if warm.ids != seeded:
                    parted.append(strategy)
    # A draw falls between two tokens whose chances a rounding error moves: very rarely.
    assert len(parted) <= 1, f"other texts at temperature 0.8: {parted}"


@check
def plain(bench: Bench) -> None:
    with bench.open() as session:
        for text in (TEXT, OTHER):
            prompt = session.prompt_ids(text)
            found = answer(session.engine, request(prompt, "off", N))
            bench.same(session, prompt, found.ids, "off")


@check
def ngram(bench: Bench) -> None:
    speculates(bench, ("ngram:min_n=1:nodes=8", "ngram:min_n=1:nodes=15", "ngram:branch=3:min_n=1:nodes=12"))


@check
def suffix(bench: Bench) -> None:
    speculates(bench, ("suffix:nodes=8", "suffix:nodes=15"))


@check
def auto(bench: Bench) -> None:
    speculates(bench, ("auto",), draft=head_files(bench.path))


@check
def own_draft(bench: Bench) -> None:
    """The model drafts for itself: at temperature 0 everything is accepted."""
    with bench.open(bench.path) as session:
        prompt = session.prompt_ids(TEXT)
        found = answer(session.engine, request(prompt, "model:nodes=5", N))
        bench.same(session, prompt, found.ids, "model")
        stats = found.finished.stats
        assert stats.drafted >= N // 2, f"only {stats.drafted} tokens were drafted"
        if stats.accepted != stats.drafted:
            assert bench.near_ties(session, prompt), f"{stats.accepted} of {stats.drafted} accepted"
        tree = answer(session.engine, request(prompt, "model:branch=2:nodes=7", N))
        bench.same(session, prompt, tree.ids, "model:branch=2")


@check
def refused_here_and_there(bench: Bench) -> None:
    """Drafts that are right for some tokens and then wrong, in every place of a chain, alone and side by side."""
    for slots in (1, 2):
        with bench.open(slots=slots) as session:
            one, two = session.prompt_ids(TEXT), session.prompt_ids(OTHER)
            accepted = drafted = 0
            for every in (2, 5, 14):
                wanted = []
                for prompt in (one, two)[:slots]:
                    told, _ = bench.plain(session, prompt)
                    last = session.model.n_vocab - 1
                    guess = tuple(min(t + 1, last) if i % every == every - 1 else t for i, t in enumerate(told))
                    wanted.append(request(prompt, "prediction", N, prediction=guess))
                for asked, found in zip(wanted, side_by_side(session.engine, wanted)):
                    bench.same(session, asked.prompt, found.ids, f"{slots} slots, wrong every {every}")
                    accepted += found.finished.stats.accepted
                    drafted += found.finished.stats.drafted
            assert 0 < accepted < drafted, f"{accepted} of {drafted} accepted"


@check
def exact(bench: Bench) -> None:
    """Under --exact a text with drafts has the bits of the one without."""
    with bench.open() as session:
        # Without branches widths cannot be certified, only rows.
        if not session.model.traits.attention_only or session.engine.context.memory.streams:
            return
        prompt = session.prompt_ids(TEXT)

        def run(strategy: str) -> Answer:
            return answer(session.engine, request(prompt, strategy, N, exact=True, logprobs=0))

        without = run("off")
        bench.same(session, prompt, without.ids, "off --exact")
        for strategy in ("ngram:min_n=1:nodes=7", "suffix:nodes=7"):
            assert run(strategy).bits == without.bits, f"{strategy} --exact has other bits"


@check
def exact_by_rows(bench: Bench) -> None:
    """Row by row every family has the bits of plain decoding in a new session, whatever was drafted and asked before.

    In a random order: texts that go on from others' beginnings, prompts read apart in whole or not, drafts refused
    here and there, and conversations read ahead.
    """
    if not (can_fuse_row_by_row() and ROUNDS_ALIKE):
        return
    chance, files = random.Random(3), head_files(bench.path)
    for beyond in (LEAST_ROWS, None) if bench.path.stem in NOT_APART else (LEAST_ROWS,):
        free = Price(1, 1, 1, beyond, 0)
        with mock.patch.object(kernels, "prices", at_price(free)):
            wanted = {"exact": True, "kv_type": "f16", "attention": "measured", "ctx": 512, "rollback": 16}
            with bench.open(**wanted) as session:
                texts, certified = by_rows_texts(session), session.engine.exact.independent
            if bench.path.stem in NEVER_EXACT:
                assert not certified, "rows are certified that are not alike"
                return
            expected = {}
            for i, text in enumerate(texts):
                with bench.open(**{**wanted, "rollback": 0}) as fresh:  # as --speculate off
                    expected[i] = [answer(fresh.engine, asked(text, "off", s)).bits for s in (GREEDY, SEEDED)]
            strategies = ["off", "ngram:min_n=1:nodes=8", "suffix:nodes=12", "auto", *files.drafters]
            cases = [(i, j, s) for i in range(len(texts)) for j in range(2) for s in strategies]
            for slots, rounds in ((1, 6), (3, 4))[: 1 if bench.path.stem in ALONE else 2]:
                with bench.open(files, **{**wanted, "slots": slots}) as session:
                    engine = session.engine
                    assert engine.exact.independent, f"it is not certified for {slots} slots"
                    for _ in range(rounds):
                        together = chance.sample(cases, chance.randint(1, slots + 1) if slots > 1 else 1)
                        requests = [asked(texts[i], s, (GREEDY, SEEDED)[j], files) for i, j, s in together]
                        for (i, j, s), one in zip(together, side_by_side(engine, requests)):
                            assert one.bits == expected[i][j], f"text {i}, {s}, sampling {j} of {together}, {beyond}"
                        if chance.random() < 0.2:
                            while engine.read_ahead():
                                pass


def by_rows_texts(session: Session) -> list[tuple[int, ...]]:
    """Short and long prompts, many with the same beginning."""
    one, two = session.prompt_ids(TEXT), session.prompt_ids(OTHER)
    long = (*one, *two) * (1 + 200 // (len(one) + len(two)))
    return [one, long[:180], (*long[:130], 70, 71, *two), long[:240], (*long[:20], 80, *two)]


def asked(text: Sequence[int], strategy: str, sampling: SamplingParams, draft: DraftFiles | None = None) -> Request:
    """A request with log-probabilities, which are compared to the last bit."""
    return request(text, strategy, 18, sampling=sampling, logprobs=0, draft=draft)


@check
def two_slots(bench: Bench) -> None:
    """Side by side, one after the other, and again: what others left in the cache changes nothing."""
    with bench.open(slots=2) as session:
        one, two = session.prompt_ids(TEXT), session.prompt_ids(OTHER)
        for strategy in ("off", "ngram:min_n=1:nodes=8"):
            for turn in range(2):
                pair = side_by_side(session.engine, [request(p, strategy, N) for p in (one, two)])
                for prompt, found in zip((one, two), pair):
                    bench.same(session, prompt, found.ids, f"{strategy}, side by side, turn {turn}")
                alone = answer(session.engine, request(one, strategy, N))
                bench.same(session, one, alone.ids, f"{strategy}, alone, turn {turn}")


@check
def regenerate(bench: Bench) -> None:
    """The same prompt again, with another last word, and after a longer talk."""
    with bench.open() as session:
        prompt = session.prompt_ids(TEXT)
        for strategy in ("off", "ngram:min_n=1:nodes=8"):
            for turn in range(2):
                found = answer(session.engine, request(prompt, strategy, N))
                bench.same(session, prompt, found.ids, f"{strategy}, turn {turn}")
            talk = [*prompt, *found.ids, 70, 71, 72]
            longer = answer(session.engine, request(talk, strategy, N))
            bench.same(session, talk, longer.ids, f"{strategy}, a longer talk")
            edited = [*prompt[:-1], 75]
            bench.same(
                session, edited, answer(session.engine, request(edited, strategy, N)).ids, f"{strategy}, another end"
            )
            back = answer(session.engine, request(prompt, strategy, N))
            bench.same(session, prompt, back.ids, f"{strategy}, back again")


@check
def shared_prefix(bench: Bench) -> None:
    """Prompts with a common beginning, of lengths around the window, in several orders, in one slot and in two."""
    for slots in (1, 2):
        with bench.open(slots=slots) as session:
            whole = session.prompt_ids(TEXT + OTHER)
            cuts = (WINDOW // 2, WINDOW, WINDOW + 5, len(whole) - 3)
            prompts = [[*whole[:cut], 80 + i, 90, 91] for i, cut in enumerate(cuts)]
            for order in ((0, 1, 2, 3), (3, 2, 2, 0, 1)):
                for i in order:
                    found = answer(session.engine, request(prompts[i], "off", N))
                    bench.same(session, prompts[i], found.ids, f"{slots} slots, cut {cuts[i]} in {order}")
            for turn in range(4 if slots > 1 else 0):
                with pieces(random.Random(turn)) if turn else nullcontext():
                    every = side_by_side(session.engine, [request(p, "off", N) for p in prompts])
                for prompt, found in zip(prompts, every):
                    bench.same(session, prompt, found.ids, f"all at once, turn {turn}")


@contextmanager
def pieces(chance: random.Random) -> Iterator[None]:
    """Prompts are read in pieces of any size, not as steps take time: that differs from run to run."""

    def size(*_: object) -> int:
        return chance.choice((1, 1, 2, 3, 5, 8, 20, 100))

    with mock.patch.multiple(PrefillBudget, room=size, riders=size, alone=size):
        yield


def head_files(path: Path) -> DraftFiles:
    """The heads that a family can have: layers inside, a companion, and an EAGLE-3 head where states are handed out."""
    family, written = FAMILIES[path.stem], list[Path]()
    heads = path.parent.with_name("heads")  # beside the model they would be paired with it
    heads.mkdir(exist_ok=True)
    if family.architecture in WITH_FEATURES:
        written.append(write_eagle(heads / f"{path.stem}-eagle.gguf", vocab=family.vocab))
    if path.stem == "gemma4":
        written.append(write_assistant(heads / "assistant.gguf"))
    return sort_drafts(path, DraftFiles(tuple(written)))


@contextmanager
def half_right(texts: Sequence[Sequence[int]]) -> Iterator[None]:
    """Heads of random weights say what comes next in these texts, but for four places of sixteen.

    So some drafts are accepted in whole, some in part and some not at all.
    """

    def knowing(sequence: SequenceView, logits: np.ndarray, position: int, *rest: Any) -> list[Any]:
        told = tuple(sequence.tokens)
        for text in texts:
            if position % 16 not in (0, 1, 4, 9) and position < len(text) and tuple(text[: len(told)]) == told:
                logits = logits.copy()
                logits[text[position]] = logits.max() + 9
                break
        return growth.children(sequence, logits, position, *rest)

    with mock.patch.object(feature, "children", knowing):
        yield


@check
def heads(bench: Bench) -> None:
    """MTP and EAGLE where a family has them: alone, side by side, again, behind shared beginnings, and exact."""
    files = head_files(bench.path)
    for name in files.drafters:
        strategies = (name, f"{name}:branch=2:nodes=6", f"{name},ngram:min_n=1:nodes=8")
        speculates(bench, strategies, draft=files, hints=True)
        with ExitStack() as stack:
            session = stack.enter_context(bench.open(files, slots=2))
            whole = session.prompt_ids(TEXT + OTHER)
            prompts = [whole[:30], (*whole[:30], 70, 71), (*whole[:20], 80, 90, 91), whole]
            stack.enter_context(half_right([(*p, *bench.plain(session, p)[0]) for p in prompts]))
            accepted = drafted = 0
            for turn in range(2):
                pair = side_by_side(session.engine, [request(p, name, N, draft=files) for p in prompts])
                for prompt, found in zip(prompts, pair):
                    bench.same(session, prompt, found.ids, f"{name}, side by side, turn {turn}")
                for prompt in prompts:
                    found = answer(session.engine, request(prompt, name, N, draft=files))
                    bench.same(session, prompt, found.ids, f"{name}, one by one, turn {turn}")
                    assert found.finished.stats.drafted > 0, f"{name}: nothing was drafted"
                    accepted += found.finished.stats.accepted
                    drafted += found.finished.stats.drafted
            assert 0 < accepted < drafted, f"{name}: {accepted} of {drafted} accepted"
            if session.model.traits.attention_only:
                bits = [
                    answer(session.engine, request(whole, s, N, exact=True, logprobs=0, draft=files)).bits
                    for s in ("off", name)
                ]
                assert bits[0] == bits[1], f"{name} --exact has other bits"


def main(path: Path) -> None:
    """Run every check, in order, and tell of each as it ends."""
    bench = Bench(path)
    for name, function in CHECKS.items():
        print(json.dumps({"begin": name}), flush=True)
        try:
            function(bench)
            problem = ""
        except AssertionError as error:
            problem = str(error) or traceback.format_exc(limit=-2)
        except Exception:  # the other checks still have something to say
            problem = traceback.format_exc(limit=-4)
        print(json.dumps({"check": name, "problem": problem}), flush=True)


if __name__ == "__main__":
    with hasty_measuring():
        main(Path(sys.argv[1]))

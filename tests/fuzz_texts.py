"""Random requests in random company: every text must be what the library alone says, plain and from the beginning.

    python -m tests.fuzz_texts FAMILY SEED CASES [small]

`small`: layers with a sliding window get a cache of their own size (`--no-swa-full`), for two to four slots. Everything
else follows from the seed: slots, context, attention, whether every text has a cache of its own, which requests run
side by side, what they have in common, who is cancelled when.

A token's log-probability is compared as well as the token: a cell too many or too few shows there first. Kernels round
otherwise at other widths, so the library reads every text twice, in different pieces, and what these two differ by is
what a text may differ by. Experts are all taken: a choice between two of them would turn a rounding into a step.
"""

from __future__ import annotations

import random
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lcspec.config import DraftFiles
from lcspec.engine.events import Failed
from lcspec.engine.request import Request
from lcspec.errors import ExactnessError
from lcspec.llama import Context
from lcspec.modelfiles.companions import WITH_FEATURES, sort_drafts
from lcspec.session import Session, open_session
from tests import tiny_families as families
from tests import tiny_heads, tiny_hybrids, tiny_hybrids_more, tiny_layers, tiny_sparse
from tests.running import Answer, answer, options, request

SENTENCE = "the cat and a dog in that hat ran over two old red roads to see my house"
PLAIN = ("off", "ngram:min_n=1:nodes=8", "ngram:branch=3:min_n=1:nodes=12", "suffix", "auto", "lookahead", "prediction")
# Log-probabilities further apart than this, and than so many times what the library's own two readings are apart, are
# no rounding.
LEAST, TIMES = 0.02, 20
# Rows from which the library's tiled kernel for attention is used.
TILE = 64
# Tokens of a talk: room for its answer is left.
LEFT = 60


@dataclass
class Asked:
    """A request, what came of it, and whether it is cancelled on the way."""

    how: str
    request: Request
    answer: Answer
    hurried: bool


class Fuzz:
    """One model, one session, many requests."""

    def __init__(self, session: Session, path: Path, drafts: DraftFiles | None, rng: random.Random) -> None:
        self.session, self.path, self.drafts, self.rng = session, path, drafts, rng
        engine = session.engine
        named = drafts.drafters if drafts is not None else ()
        own = drafts is not None and bool(drafts.models)
        self.hows = [*PLAIN, *(("model:nodes=5", "model:branch=2:nodes=7") if own else ())]
        self.hows += [how for name in named if name in ("mtp", "eagle") for how in (name, f"{name}:branch=2:nodes=6")]
        self.exact = session.model.traits.attention_only and not engine.context.memory.streams
        self.alone = Context(session.model, replace(engine.options, slots=1, full_windows=True, max_width=64, batch=64))
        n = engine.context.n_ctx // 3
        self.texts = [
            session.prompt_ids(" ".join(np.random.default_rng(k).choice(SENTENCE.split(), n)))[
                : engine.context.n_ctx - LEFT
            ]
            for k in range(3)
        ]
        self.past: list[list[int]] = []
        self.wrong = self.tokens = 0
        self.worst = 0.0

    def prompt(self) -> list[int]:
        """The beginning of a text, an earlier one again, one that goes on, or one that turns off somewhere."""
        rng, chance = self.rng, self.rng.random()
        if self.past and chance < 0.75:
            found = list(rng.choice(self.past))
            if chance < 0.25:
                pass
            elif chance < 0.5:
                found += [rng.randrange(60, 100) for _ in range(rng.randint(1, 9))]
            else:
                found = [*found[: rng.randint(1, len(found))], *rng.choice(self.texts)[: rng.randint(1, 80)]]
        else:
            text = rng.choice(self.texts)
            found = list(text[: rng.randint(1, len(text))])
        return found[: self.session.engine.context.n_ctx - LEFT]

    def one(self) -> Asked:
        """A request."""
        rng, how, prompt = self.rng, self.rng.choice(self.hows), self.prompt()
        more = {}
        if how == "prediction":
            more["prediction"] = tuple(rng.choice(self.texts)[:60]) if rng.random() < 0.3 else self._guess(prompt)
        wanted = request(prompt, how, rng.randint(1, 50), draft=self.drafts, logprobs=0, **more)
        return Asked(how, wanted, Answer(), rng.random() < 0.15)

    def _guess(self, prompt: list[int]) -> tuple[int, ...]:
        """What an earlier text went on with, wrong here and there."""
        for text in self.past:
            if text[: len(prompt)] == prompt and len(text) > len(prompt):
                return tuple(token if self.rng.random() < 0.9 else 65 for token in text[len(prompt) :])
        return (65, 66, 67)

    def round(self, case: int) -> None:
        """Some requests side by side, one of them perhaps later than the others."""
        engine, rng = self.session.engine, self.rng
        wanted = [self.one() for _ in range(rng.randint(1, engine.options.slots + 1))]
        running: dict[int, Asked] = {}
        late = [wanted.pop()] if len(wanted) > 1 and rng.random() < 0.5 else []
        asked = [*wanted, *late]
        running.update((engine.submit(one.request), one) for one in wanted)
        while engine.busy or late:
            if late and rng.random() < 0.3:
                one = late.pop()
                running[engine.submit(one.request)] = one
            for event in engine.step():
                found = running[event.request].answer
                if isinstance(event, Failed):
                    found.error = event.error
                else:
                    found.events.append(event)
            for number, one in running.items():
                if one.hurried and rng.random() < 0.1:
                    engine.cancel(number)
            if rng.random() < 0.02 and engine.running:  # other drafters in the middle of a text
                sequence = rng.choice(engine.running)
                other = request((1,), rng.choice(("off", "auto", "ngram:min_n=1:nodes=8")), draft=self.drafts)
                engine.switch(sequence.id, other.speculation)
        for one in asked:
            self.judge(case, one)
        if self.exact and rng.random() < 0.15:
            self.judge_exact(case, asked[0])

    def read(self, tokens: list[int], prompt: int, pieces: tuple[int, ...], start: int) -> NDArray[np.float32]:
        """Logits behind every token from number `start` on, read in `pieces` of these sizes by turns.

        What comes before is read `prompt` tokens at a time: from 64 on the library takes another kernel. A shorter one
        may have been read beside others, so 64 rows are filled up with another sequence's.
        """
        rows, batch, at, turn = [], self.alone.batch, 0, 0
        self.alone.memory.clear()
        while at < len(tokens):
            size = pieces[turn % len(pieces)] if at >= start else min(prompt, start - at)
            turn += 1
            batch.clear()
            for i, token in enumerate(tokens[at : at + size]):
                batch.add(token, at + i, (0,), logits=at + i >= start)
            if self.exact and prompt == TILE and at < start:
                for i in range(TILE - batch.n):
                    batch.add(tokens[0], at + i, (1,), logits=False)
            self.alone.decode()
            if batch.n_outputs:
                rows.append(self.alone.logits().copy())
            at += size
        return np.concatenate(rows)

    def judge(self, case: int, one: Asked) -> None:
        """Compare a text with the library's."""
        found, prompt, ids = one.answer, one.request.prompt, one.answer.ids
        if found.error is not None:
            self.wrong += 1
            print(f"case {case} {one.how} {len(prompt)} tokens: {found.error}", flush=True)
            return
        self.past = [*self.past, [*prompt, *ids]][-12:]
        if not ids:
            return
        self.tokens += len(ids)
        text, start = [*prompt, *ids][:-1], len(prompt) - 1
        said = [_log(self.read(text, *how, start)) for how in ((32, (1,)), (TILE, (5, 1, 16)))]
        rows = np.arange(len(ids))
        own = np.array([info.logprob for info in found.infos])
        apart = np.abs(said[0][rows, ids] - own)
        noise = max(LEAST, TIMES * float(np.abs(said[0] - said[1])[rows, ids].max()))
        gap = said[0].max(axis=1) - said[0][rows, ids]
        self.worst = max(self.worst, float(apart.max() / noise))
        if apart.max() > noise or gap.max() > noise:
            self.wrong += 1
            i = int(np.maximum(apart, gap).argmax())
            print(
                f"case {case} {one.how} prompt {len(prompt)} reused {found.started.reused}: token {i} of {len(ids)} is "
                f"{apart[i]:.3g} from the library's, {gap[i]:.3g} below its best; rounding {noise / TIMES:.2g}",
                flush=True,
            )

    def judge_exact(self, case: int, one: Asked) -> None:
        """With and without drafts an exact text has the same bits, here and in a session that has seen nothing."""
        changes = {"exact": True, "logprobs": 0, "draft": self.drafts, "prediction": one.request.prediction}
        prompt = one.request.prompt
        try:
            here = answer(self.session.engine, request(prompt, one.how, 20, **changes))
        except ExactnessError:  # nothing can be certified in this context
            return
        made = self.session.engine.options
        with open_session(made, self.drafts) as fresh:
            there = answer(fresh.engine, request(prompt, "off", 20, **{**changes, "prediction": ()}))
        if here.bits != there.bits:
            self.wrong += 1
            print(f"case {case} {one.how} --exact prompt {len(prompt)}: other bits", flush=True)


def _log(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def drafts_for(name: str, path: Path, rng: random.Random) -> DraftFiles | None:
    """Nothing, the model itself, or the heads that its family can have."""
    kind, family = rng.randrange(3), families.FAMILIES[name]
    if kind == 0:
        return None
    if kind == 1:
        return sort_drafts(path, DraftFiles((path,)))
    heads = path.parent / "heads"
    heads.mkdir()
    written = (
        [tiny_heads.write_eagle(heads / "eagle.gguf", vocab=family.vocab)]
        if family.architecture in WITH_FEATURES
        else []
    )
    if name == "gemma4":
        written.append(tiny_heads.write_assistant(heads / "assistant.gguf"))
    return sort_drafts(path, DraftFiles(tuple(written)))


def main(name: str, seed: int, cases: int, small: bool) -> int:
    """Run so many rounds; returns how many texts were wrong."""
    rng = random.Random(f"{name} {seed}")
    window = rng.choice((3, 16, 50))
    for module in (families, tiny_heads, tiny_hybrids, tiny_hybrids_more, tiny_sparse):
        module.WINDOW, module.CONTEXT = window, 4096
    tiny_layers.MOE["expert_used_count"] = tiny_layers.EXPERTS
    with tempfile.TemporaryDirectory() as folder:
        path = families.write_family(name, Path(folder) / f"{name}.gguf")
        drafts = drafts_for(name, path, rng)
        made = options(
            path,
            slots=rng.choice((2, 3, 4) if small else (1, 3)),
            ctx=rng.choice((800, 1200) if small else (400, 1200)),
            batch=rng.choice((24, 100)),
            max_width=16,
            kv_type="f32",
            attention=rng.choice(("library", "products")),
            full_windows=not small,
            mtp=drafts is not None and "mtp" in drafts.drafters,
            streams=not small and rng.random() < 0.3,
        )
        with open_session(made, drafts) as session:
            memory, names = session.engine.context.memory, drafts.drafters if drafts else ()
            print(
                f"{name} seed {seed} window {memory.window} slack {memory.slack} slots {made.slots} ctx {made.ctx} "
                f"batch {made.batch} {made.attention} {'streams ' * made.streams}{names}",
                flush=True,
            )
            fuzz = Fuzz(session, path, drafts, rng)
            with fuzz.alone:
                for case in range(cases):
                    fuzz.round(case)
    print(f"{name} seed {seed}: {fuzz.wrong} wrong of {fuzz.tokens} tokens; worst {fuzz.worst:.2g}", flush=True)
    return fuzz.wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "small" in sys.argv[4:]) > 0)

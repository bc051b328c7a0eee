"""Planes of several sequences in one decode: what is taken back must be what was there, in whatever order they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lcspec.engine.batch_builder import in_order
from lcspec.llama import Branching, Context, Model
from lcspec.llama.planes import Planes, Run
from tests import tiny_gguf as tiny
from tests.running import options, request, side_by_side
from tests.tiny_families import write_family
from tests.tiny_windows import write_qwen35

HYBRIDS: dict[str, Callable[[Path], Path]] = {"qwen35": write_qwen35, "lfm2": tiny.write_hybrid}
TOLERANCE = 0.02  # F32 cells; another token in the text moves the logits by 0.5 and more

Logits = NDArray[np.float32]


@pytest.fixture(scope="module", params=HYBRIDS)
def context(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    path = HYBRIDS[request.param](tmp_path_factory.mktemp("planes") / "m.gguf")
    made = options(path, slots=4, ctx=256, batch=64, kv_type="f32", rollback=6)
    with Model.load(made) as model, Context(model) as context:
        assert (context.memory.branching, context.memory.max_rollback) == (Branching.CHAIN, 6)
        yield context


class Texts:
    """What each sequence id holds, and a way to decode more of several at once."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.texts: dict[int, list[int]] = {}

    def decode(self, more: dict[int, list[int]], chunks: tuple[int, ...] = ()) -> dict[int, Logits]:
        """Decode `more` in this order; each id's logits. Those in `chunks` are prompts and have none."""
        batch, wanted = self.context.batch, {}
        batch.clear()
        for seq, tokens in more.items():
            text = self.texts.setdefault(seq, [])
            if seq in chunks:
                batch.add_run(tokens, len(text), seq)
            else:
                wanted[seq] = [batch.add(token, len(text) + i, (seq,), logits=True) for i, token in enumerate(tokens)]
            text += tokens
        self.context.decode()
        logits = self.context.logits()
        return {seq: logits[rows].copy() for seq, rows in wanted.items()}

    def cut(self, seq: int, n: int) -> bool:
        """Take back the last `n` tokens."""
        text = self.texts[seq]
        done = self.context.memory.remove(seq, len(text) - n)
        if done:
            del text[len(text) - n :]
        return done


def alone(context: Context, text: list[int], last: int) -> Logits:
    """The last rows of a text that is read in an empty context."""
    context.memory.clear()
    return Texts(context).decode({0: text})[0][-last:]


@pytest.mark.model
@pytest.mark.parametrize("seed", range(12))
def test_drafts_of_unequal_length_are_taken_back_to_what_was_there(context: Context, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def some(n: int) -> list[int]:
        return [int(token) for token in rng.integers(60, 100, n)]

    context.memory.clear()
    texts = Texts(context)
    compare: list[tuple[list[int], Logits]] = []
    for seq in rng.permutation(4).tolist():
        texts.decode({seq: some(int(rng.integers(3, 9)))}, chunks=(seq,))
    for _ in range(5):
        order = rng.permutation(4)[: int(rng.integers(3, 5))].tolist()
        chunk = order[0] if rng.random() < 0.5 else -1
        sizes = {seq: 12 if seq == chunk else int(rng.integers(1, 5)) for seq in order}
        rng.shuffle(order)
        rows = texts.decode({seq: some(sizes[seq]) for seq in order}, chunks=(chunk,))
        compare += [(list(texts.texts[seq]), found) for seq, found in rows.items()]
        for seq in rows:
            if sizes[seq] > 1:
                assert texts.cut(seq, int(rng.integers(1, sizes[seq])))
    for seq in list(texts.texts):
        rows = texts.decode({seq: some(1)})
        compare.append((list(texts.texts[seq]), rows[seq]))
    for text, found in compare:
        np.testing.assert_allclose(found, alone(context, text, len(found)), atol=TOLERANCE, rtol=0)


@pytest.mark.model
def test_planes_that_others_may_have_moved_are_not_used(context: Context) -> None:
    context.memory.clear()
    texts = Texts(context)
    for seq in range(3):
        texts.decode({seq: [60 + seq, 61, 62, 63]})
    assert all(context.memory.holds(seq, 3) for seq in range(3))  # one after the other: nothing moves
    texts.decode({1: [70, 71, 72]})
    assert context.memory.holds(1, 6)
    texts.decode({0: [80], 2: [81]})  # side by side: where 1 was
    assert not context.memory.holds(1, 6) and not texts.cut(1, 1)
    assert context.memory.holds(1, 7)


def run(seq: int, start: int, tokens: int, drafts: bool) -> Run:
    return Run(seq, start, start + tokens, 5, tokens if drafts else 1, drafts)


def cut(sizes: list[tuple[int, bool]], room: int = 64) -> list[list[int]]:
    starts = np.cumsum([0, *(n for n, _ in sizes)]).tolist()
    runs = [run(seq, starts[seq], n, drafts) for seq, (n, drafts) in enumerate(sizes)]
    return [[one.seq for one in piece] for piece in Planes(room).pieces(runs, apart=False)]


def test_a_batch_is_cut_no_further_than_drafts_need() -> None:
    plain, chunk, short, long = (1, False), (20, False), (4, True), (6, True)
    assert cut([plain, plain, chunk]) == [[0, 1, 2]]  # nothing to take back
    assert cut([chunk, long]) == [[0, 1]]  # two are always together
    assert cut([short, short, short]) == [[0, 1, 2]]
    assert cut([plain, chunk, short, short, long]) == [[0, 1], [2, 3], [4]]
    assert cut([short, plain, chunk]) == [[0], [1], [2]]
    assert cut([short, short, short], room=8) == [[0, 1], [2]]


def test_rows_are_put_in_the_order_that_needs_the_fewest_pieces() -> None:
    assert in_order([1, 1, 1], [0, 1, 2]) == [0, 1, 2]
    assert in_order([4, 1, 6, 1, 6], [0, 1, 2, 3, 4]) == [1, 3, 2, 4, 0]
    assert in_order([6, 4, 1], [0, 1, 2]) == [2, 1, 0]
    assert in_order([4, 1, 4, 1], [3, 2, 0, 1]) == [3, 1, 2, 0]  # of streams, ids that follow each other go together


def test_of_streams_only_ids_that_follow_each_other_are_decoded_together() -> None:
    def pieces(*seqs: int) -> list[list[int]]:
        runs = [run(seq, 4 * i, 4, True) for i, seq in enumerate(seqs)]
        return [[one.seq for one in piece] for piece in Planes(64, streams=True).pieces(runs, apart=False)]

    assert pieces(1, 2, 3) == [[1, 2, 3]]
    assert pieces(0, 1, 3) == [[0, 1], [3]]
    assert pieces(0, 2, 4) == [[0], [2], [4]]


def test_where_the_library_mixes_states_up_every_text_is_decoded_by_itself() -> None:
    runs = [run(seq, 4 * seq, 4, False) for seq in range(3)]
    for apart, rows in ((False, 0), (True, 0), (False, 1), (True, 1)):
        assert Planes(64, rows=rows).pieces(runs, apart=apart) == [[one] for one in runs]
    one, two, three = [run(seq, seq, 1, False) for seq in range(3)]
    assert Planes(64, rows=0).pieces([one, two], apart=False) == [[one], [two]]
    for between in (runs[0], one):  # a text with more rows, or one that is there already
        found = Planes(64, rows=1).pieces([one, two, between, three], apart=False)
        assert found == ([[one, two], [between], [three]] if between is runs[0] else [[one, two], [between, three]])


@pytest.mark.model
@pytest.mark.parametrize("family", ["plamo2", "arwkv7"])
def test_states_are_where_they_belong(family: str, tmp_path: Path) -> None:
    """Side by side without the text of the first cell: the library alone would write PLaMo 2's beyond the last one, and
    abort."""
    made = options(write_family(family, tmp_path / "m.gguf"), slots=3, ctx=256, kv_type="f32")
    with Model.load(made) as model, Context(model) as context:
        texts = Texts(context)
        texts.decode({seq: [60 + seq, 70, 80] for seq in range(4)})
        rows = [texts.decode({2: [90 + i, 71], 3: [91 + i, 72]}) for i in range(4)][-1]
        for seq, found in rows.items():
            np.testing.assert_allclose(found, alone(context, texts.texts[seq], 2), atol=TOLERANCE, rtol=0)


@pytest.mark.model
def test_texts_side_by_side_are_what_they_are_alone(tmp_path: Path) -> None:
    from lcspec.session import open_session

    path = write_family("lfm2", tmp_path / "m.gguf")
    hows = ("ngram:min_n=1:nodes=8", "off", "suffix", "ngram:min_n=1:nodes=3")
    with open_session(options(path, slots=4, ctx=300, batch=40, kv_type="f32", max_width=16)) as session:
        prompts = [session.prompt_ids("the cat and a dog in that hat " * n) for n in (2, 5, 3, 4)]

        def answers(*names: str) -> list[list[tuple[int, float | None]]]:
            asked = [request(prompt, how, 40, logprobs=0) for prompt, how in zip(prompts, names)]
            return [found.bits for found in side_by_side(session.engine, asked)]

        together = answers(*hows)
        session.engine.prefix_cache.clear()
        plain = answers("off", "off", "off", "off")
    for found, wanted in zip(together, plain):
        assert [token for token, _ in found] == [token for token, _ in wanted]
        np.testing.assert_allclose([said for _, said in found], [said for _, said in wanted], atol=TOLERANCE)  # type: ignore[arg-type]

"""The heads' network, its gradients, its data and its training, on numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lcspec.drafters.medusa.network import (
    DISCOUNT,
    Parameters,
    Sizes,
    choose_rank,
    factored,
    forward,
    gradients,
    initial,
    softmax_loss,
)
from lcspec.training.data import Dataset, make_dataset
from lcspec.training.measure import measure
from lcspec.training.prompts import Source, read_sources
from lcspec.training.states import NONE, OUTSIDE, StateStore, labels
from lcspec.training.train import State, Trainer, load_state

SIZES = [Sizes(3, 6, 8, 0, 0, 11), Sizes(2, 6, 8, 4, 0, 11), Sizes(2, 6, 8, 4, 3, 11)]


def network(sizes: Sizes, seed: int = 0) -> Parameters:
    """Parameters with nothing left at zero."""
    rng = np.random.default_rng(seed)
    params = initial(sizes, rng.standard_normal((sizes.vocab, sizes.state)).astype(np.float32), 1.0, rng)
    return {k: (v + 0.1 * rng.standard_normal(v.shape)).astype(np.float32) for k, v in params.items()}


def example(sizes: Sizes, n: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    labels_ = rng.integers(0, sizes.vocab, (sizes.heads, n)).astype(np.int32)
    labels_[-1, 0], labels_[0, 1] = NONE, OUTSIDE
    states = rng.standard_normal((n, sizes.state)).astype(np.float32)
    return states, rng.integers(0, sizes.vocab + 1, n).astype(np.int32), labels_


@pytest.mark.parametrize("sizes", SIZES, ids=["plain", "embedding", "factored"])
def test_gradients_against_finite_differences(sizes: Sizes) -> None:
    params, batch = network(sizes), example(sizes)
    params = {k: v.astype(np.float64) for k, v in params.items()}  # type: ignore[misc]
    states = batch[0].astype(np.float64)

    def loss() -> float:
        logits, _ = forward(params, sizes, states, batch[1])
        return float((DISCOUNT ** np.arange(1, sizes.heads + 1) * softmax_loss(logits, batch[2])[0]).sum())

    _, grads = gradients(params, sizes, states, batch[1], batch[2])
    rng = np.random.default_rng(2)
    for name, value in params.items():
        for _ in range(6):
            at = tuple(int(rng.integers(s)) for s in value.shape)
            before, step = value[at], 1e-4
            value[at] = before + step
            above = loss()
            value[at] = before - step
            below = loss()
            value[at] = before
            assert grads[name][at] == pytest.approx((above - below) / (2 * step), rel=2e-3, abs=2e-5), (name, at)


def test_heads_begin_as_the_target_itself() -> None:
    """Medusa-1: the residual starts at zero, and the output matrix is the target's."""
    sizes = Sizes(3, 6, 8, 4, 0, 11)
    rng = np.random.default_rng(0)
    output = rng.standard_normal((11, 6)).astype(np.float32)
    params = initial(sizes, output, 2.0, rng)
    states, pending, _ = example(sizes)
    logits, _ = forward(params, sizes, states / 2.0, pending)
    assert not params["out"].any()
    for head in logits:
        assert np.allclose(head, states @ output.T, atol=1e-5)


def test_a_factored_matrix_is_the_nearest_of_its_rank() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((40, 12)).astype(np.float32)
    up, down = factored(matrix, 5)
    values = np.linalg.svd(matrix, compute_uv=False)
    assert np.linalg.norm(matrix - up @ down) == pytest.approx(np.sqrt((values[5:] ** 2).sum()), rel=1e-4)


def test_rank_is_chosen_by_size() -> None:
    assert choose_rank(4096, 256, None) == 0
    assert choose_rank(8192, 2048, None) == 512
    assert choose_rank(4096, 256, 64) == 64
    assert choose_rank(100, 256, 200) == 0  # would save nothing


def test_labels_stop_at_the_end_of_an_answer() -> None:
    tokens = np.array([5, 6, 7, 8, 9], dtype=np.int32)
    found = labels(tokens, np.array([3, 2]), 2)
    assert found.tolist() == [[6, 7, NONE, 9, NONE], [7, NONE, NONE, NONE, NONE]]


def fill(folder: Path, answers: int = 40, length: int = 20, n_embd: int = 8, n_vocab: int = 12) -> StateStore:
    """A language in which every token follows from the one before; states show the token they chose, with noise."""
    rng = np.random.default_rng(0)
    follows, look = rng.permutation(n_vocab), rng.standard_normal((n_vocab, n_embd))
    store = StateStore(folder, n_embd)
    for group in range(answers):
        tokens = [int(rng.integers(n_vocab))]
        for _ in range(length - 1):
            tokens.append(int(follows[tokens[-1]]))
        states = look[tokens] + 0.3 * rng.standard_normal((length, n_embd))
        store.append(states.astype(np.float16), np.array(tokens, dtype=np.int32), group)
    return store


def test_the_store_survives_being_killed(tmp_path: Path) -> None:
    store = fill(tmp_path, answers=3)
    states, tokens = np.array(store.states()), store.tokens()
    with (tmp_path / "states.f16").open("ab") as file:  # half an answer was on its way
        file.write(b"\0" * 100)
    with (tmp_path / "tokens.i32").open("ab") as file:
        file.write(b"\0" * 7)
    again = StateStore(tmp_path, 8)
    assert len(again) == 60
    assert np.array_equal(again.states(), states)
    assert np.array_equal(again.tokens(), tokens)
    again.append(states[:20], tokens[:20], 16)
    assert np.array_equal(StateStore(tmp_path, 8).tokens()[60:], tokens[:20])
    assert StateStore(tmp_path, 8).held_out().tolist() == [True] * 20 + [False] * 40 + [True] * 20


def test_the_store_drops_an_answer_whose_states_are_missing(tmp_path: Path) -> None:
    fill(tmp_path, answers=3)
    path = tmp_path / "states.f16"
    path.write_bytes(path.read_bytes()[:-5])
    assert len(StateStore(tmp_path, 8)) == 40


def test_the_reduced_vocabulary_has_the_frequent_tokens(tmp_path: Path) -> None:
    store = StateStore(tmp_path, 4)
    tokens = np.array([3, 3, 3, 7, 7, 1], dtype=np.int32)
    store.append(np.zeros((6, 4), dtype=np.float16), tokens, 0)
    store.append(np.zeros((6, 4), dtype=np.float16), tokens, 1)
    data = make_dataset(store, 10, 2, 2)
    assert data.vocab.tolist() == [3, 7]
    assert data.coverage == pytest.approx(5 / 6)
    assert data.labels[0].tolist() == [0, 0, 1, 1, OUTSIDE, NONE] * 2
    assert data.pending.tolist() == [0, 0, 0, 1, 1, 2] * 2


def test_a_miss_outside_the_vocabulary_counts(tmp_path: Path) -> None:
    store = StateStore(tmp_path, 4)
    store.append(np.zeros((4, 4), dtype=np.float16), np.array([3, 3, 1, 3], dtype=np.int32), 0)
    data = make_dataset(store, 10, 1, 1)
    sizes = Sizes(1, 4, 2, 0, 0, 1)
    params = initial(sizes, np.ones((1, 4), dtype=np.float32), 1.0, np.random.default_rng(0))
    found = measure(params, sizes, data.batches(np.arange(4)))
    assert found.positions == 3
    assert found.top(1) == [pytest.approx(2 / 3)]


def trainer(data: Dataset, folder: Path, passes: int, state: State | None = None) -> Trainer:
    sizes = Sizes(2, 8, 16, 4, 0, len(data.vocab))
    start = np.zeros((len(data.vocab), 8), dtype=np.float32)
    state = state or State.start(initial(sizes, start, 1.0, np.random.default_rng(0)))
    out = Trainer(data, sizes, state, 1e6, 1, folder)
    out.max_passes = passes
    out.rate = 1e-2
    return out


def test_training_learns_and_calibrates(tmp_path: Path) -> None:
    data = make_dataset(fill(tmp_path, 200), 12, 2, 12)
    run = trainer(data, tmp_path, 60)
    before = run.measured()
    run.run()
    after = run.measured()
    assert run.state.best_loss < 0.5 * float((DISCOUNT ** np.arange(1, 3) * before.losses).sum())
    assert after.top(1)[0] > 0.9 > before.top(1)[0]
    assert after.tree(4).paths[1] == (0,)


def test_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Two passes, a checkpoint read back, two more: the same network as after four in one go."""
    data = make_dataset(fill(tmp_path), 12, 2, 12)
    whole = trainer(data, tmp_path, 4)
    whole.run()
    half = trainer(data, tmp_path, 2)
    half.run()
    state = load_state(tmp_path, half.sizes)
    assert state is not None
    assert state.step == half.state.step > 0
    rest = trainer(data, tmp_path, 4, state)
    rest.run()
    assert rest.state.step == whole.state.step
    for name, value in whole.state.params.items():
        assert np.allclose(rest.state.params[name], value, atol=1e-3), name


def test_a_checkpoint_of_another_network_or_a_damaged_one_is_not_used(tmp_path: Path) -> None:
    data = make_dataset(fill(tmp_path), 12, 2, 12)
    run = trainer(data, tmp_path, 1)
    run.run()
    assert load_state(tmp_path, Sizes(3, 8, 16, 4, 0, 12)) is None
    path = tmp_path / "train.npz"
    path.write_bytes(path.read_bytes()[:200])
    assert load_state(tmp_path, run.sizes) is None
    assert load_state(tmp_path / "nowhere", run.sizes) is None


def test_training_stops_early_when_it_only_learns_by_heart(tmp_path: Path) -> None:
    """States and tokens of pure chance: the held-out loss has nothing to fall for."""
    rng = np.random.default_rng(0)
    store = StateStore(tmp_path, 8)
    for group in range(40):
        tokens = rng.integers(0, 12, 20).astype(np.int32)
        store.append(rng.standard_normal((20, 8)).astype(np.float16), tokens, group)
    data = make_dataset(store, 12, 2, 12)
    run = trainer(data, tmp_path, 10_000)
    run.seconds = 6.0
    run.run()
    losses = [loss for _, loss in run.state.history]
    assert run.state.stale >= 1
    assert run.state.best_loss == pytest.approx(min(losses), abs=1e-3)
    assert run.state.best_loss < losses[-1]


def test_a_line_of_json_ends_at_a_newline_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "one\u2028two\x85three"}\n\n{"text": "four"}\n', encoding="utf-8")
    assert read_sources([path]) == [Source(text="one\u2028two\x85three"), Source(text="four")]

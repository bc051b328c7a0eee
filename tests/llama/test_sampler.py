"""The target's distribution is llama.cpp's own; grammars hold, and what they force is drafted without changing it."""

from __future__ import annotations

import ctypes
import json
import math
import re
from typing import Any

import llama_cpp as ll
import numpy as np
import pytest
from numpy.typing import NDArray

from lcspec.errors import GrammarError, SamplingError, UsageError
from lcspec.llama.sampler import Sampler
from lcspec.llama.vocab import Vocab
from lcspec.sampling.distribution import Distribution
from lcspec.sampling.json_schema import schema_to_lark
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session
from tests.running import answer, request

pytestmark = pytest.mark.model

OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "temperature": 1.0}
HISTORY = [5, 9, 5, 70, 33, 5, 9, 200, 70]


@pytest.fixture(scope="module")
def vocab(tiny_session: Session) -> Vocab:
    return tiny_session.model.vocab


def logits_of(seed: int, n: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * 3).astype(np.float32)


class LibraryChain:
    """llama.cpp's own chain: its samplers in its default order, ending in one of its own that draws."""

    def __init__(self, vocab: Vocab, params: SamplingParams, *, xtc_probability: float | None = None) -> None:
        self.n = vocab.n_tokens
        self.chain = ll.llama_sampler_chain_init(ll.llama_sampler_chain_default_params())
        p = params
        bias = (ll.llama_logit_bias * len(p.logit_bias))(*[ll.llama_logit_bias(t, v) for t, v in p.logit_bias])
        samplers = [ll.llama_sampler_init_logit_bias(self.n, len(bias), bias)]
        if p.mirostat == 1:
            samplers.append(ll.llama_sampler_init_temp(p.temperature))
            samplers.append(ll.llama_sampler_init_mirostat(self.n, 1, p.mirostat_tau, p.mirostat_eta, 100))
        elif p.mirostat == 2:
            samplers.append(ll.llama_sampler_init_temp(p.temperature))
            samplers.append(ll.llama_sampler_init_mirostat_v2(1, p.mirostat_tau, p.mirostat_eta))
        else:
            texts = [text.encode() for text in p.dry_sequence_breakers]
            breakers = (ctypes.c_char_p * len(texts))(*texts)
            back = 1000 if p.dry_penalty_last_n < 0 else p.dry_penalty_last_n
            chance = p.xtc_probability if xtc_probability is None else xtc_probability
            samplers += [
                ll.llama_sampler_init_penalties(
                    self.n, p.repeat_last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
                ),
                ll.llama_sampler_init_dry(
                    vocab.handle, p.dry_multiplier, p.dry_base, p.dry_allowed_length, back, breakers, len(texts)
                ),
                ll.llama_sampler_init_top_n_sigma(p.top_n_sigma),
                ll.llama_sampler_init_top_k(p.top_k),
                ll.llama_sampler_init_typical(p.typical_p, 1),
                ll.llama_sampler_init_top_p(p.top_p, 1),
                ll.llama_sampler_init_min_p(p.min_p, 1),
                ll.llama_sampler_init_xtc(chance, p.xtc_threshold, 1, 7),
                ll.llama_sampler_init_temp_ext(p.temperature, p.dynatemp_range, p.dynatemp_exponent),
                ll.llama_sampler_init_adaptive_p(p.adaptive_target, p.adaptive_decay, 1)
                if p.adaptive_target >= 0
                else ll.llama_sampler_init_dist(1),
            ]
        for sampler in samplers:
            ll.llama_sampler_chain_add(self.chain, sampler)

    def accept(self, token: int) -> None:
        ll.llama_sampler_accept(self.chain, token)

    def apply(self, logits: np.ndarray) -> tuple[dict[int, float], int]:
        """The distribution the library draws from, and what it drew."""
        data = (ll.llama_token_data * self.n)(*[ll.llama_token_data(i, float(x), 0.0) for i, x in enumerate(logits)])
        array = ll.llama_token_data_array(data, self.n, -1, False)
        ll.llama_sampler_apply(self.chain, ctypes.byref(array))
        found = {array.data[i].id: array.data[i].p for i in range(array.size)}
        total = sum(found.values())
        return {token: p / total for token, p in found.items() if p > 0}, array.data[array.selected].id

    def close(self) -> None:
        ll.llama_sampler_free(self.chain)


def library_distribution(
    vocab: Vocab, params: SamplingParams, logits: np.ndarray, history: list[int]
) -> dict[int, float]:
    """What llama.cpp draws from after `history`."""
    chain = LibraryChain(vocab, params)
    for token in history:
        chain.accept(token)
    found, _ = chain.apply(logits)
    chain.close()
    return found


def assert_same(ours: Distribution, expected: dict[int, float], tolerance: float = 2e-6) -> None:
    found = {int(i): float(p) for i, p in zip(ours.ids, ours.probs) if p > 1e-12}
    assert set(found) == {t for t, p in expected.items() if p > 1e-12}
    for candidate, p in expected.items():
        assert found.get(candidate, 0.0) == pytest.approx(p, abs=tolerance)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 1.7},
        {"top_k": 1},
        {"top_k": 7},
        {"top_p": 0.5},
        {"min_p": 0.2},
        {"typical_p": 0.6},
        {"repeat_penalty": 1.5},
        {"repeat_penalty": 1.5, "repeat_last_n": 3},
        {"repeat_penalty": 1.5, "repeat_last_n": 0},
        {"frequency_penalty": 0.7},
        {"presence_penalty": -1.2},
        {"logit_bias": ((7, 5.0), (12, -100.0))},
        {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
        {"top_k": 30, "repeat_penalty": 1.5, "frequency_penalty": 0.5, "repeat_last_n": 4},
        {"top_k": 12, "presence_penalty": -1.2, "logit_bias": ((7, 5.0), (12, -100.0), (70, 3.0))},
        {"top_k": 25, "typical_p": 0.7, "top_p": 0.8},
        {"top_k": -1},
        {"top_n_sigma": 1.5},
        {"top_n_sigma": 1.0, "top_k": 40, "min_p": 0.01, "repeat_penalty": 1.3},
        {"dynatemp_range": 0.6},
        {"temperature": 0.8, "dynatemp_range": 0.5, "dynatemp_exponent": 2.0, "top_k": 40},
        {"temperature": 0.0, "dynatemp_range": 0.7},
        {"xtc_probability": 1.0},
        {"xtc_probability": 1.0, "xtc_threshold": 0.03, "top_k": 40, "temperature": 0.7},
        {"xtc_probability": 1.0, "xtc_threshold": 0.6},
        {"dry_multiplier": 0.8},
        {"dry_multiplier": 0.8, "dry_base": 3.0, "dry_allowed_length": 1, "top_k": 40},
        {"dry_multiplier": 2.0, "dry_base": 0.5},
        {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_penalty_last_n": 5},
        {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_sequence_breakers": ()},
        {"temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "repeat_penalty": 1.2, "presence_penalty": 0.4},
    ],
    ids=str,
)
def test_the_distribution_is_the_library_s(vocab: Vocab, changes: dict[str, Any]) -> None:
    params = SamplingParams(**{**OFF, **changes}, seed=1)
    sampler = Sampler(vocab, params, 1)
    history: list[int] = []
    for step, token in enumerate(HISTORY):
        logits = logits_of(step, vocab.n_tokens)
        expected = library_distribution(vocab, params, logits, history)
        assert_same(sampler.distribution(logits, step), expected)
        sampler.accept(token)
        history.append(token)
    sampler.close()


@pytest.mark.parametrize("changes", [{}, {"repeat_penalty": 1.8}, {"logit_bias": ((3, 50.0),)}], ids=str)
def test_temperature_0_takes_the_most_probable(vocab: Vocab, changes: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0.0, **changes)
    sampler = Sampler(vocab, params, 1)
    for token in HISTORY:
        sampler.accept(token)
    for step in range(5):
        logits = logits_of(step, vocab.n_tokens)
        expected = library_distribution(vocab, SamplingParams(**OFF, **changes), logits, HISTORY)
        assert sampler.choose(logits, step) == max(expected, key=expected.__getitem__)
        assert sampler.distribution(logits, step).ids.tolist() == [max(expected, key=expected.__getitem__)]
    sampler.close()


@pytest.mark.parametrize("window", [-1, 2**31 - 1])
def test_penalties_may_look_back_over_everything(vocab: Vocab, window: int) -> None:
    """-1 means the whole text, and no number makes the library allocate gigabytes."""
    logits, text = logits_of(7, vocab.n_tokens), HISTORY + [11] * 100
    found = [
        after(vocab, text, logits, repeat_penalty=1.7, repeat_last_n=last_n, n_ctx=n_ctx)
        for last_n, n_ctx in ((window, None), (window, len(text)), (500, None))
    ]
    for dist in found[1:]:
        assert np.array_equal(found[0].ids, dist.ids) and np.array_equal(found[0].probs, dist.probs)
    assert not np.isclose(found[0].prob_of(200), after(vocab, text, logits).prob_of(200))


@pytest.mark.parametrize("last_n", [None, -1, 2**31 - 1, 1000])
def test_dry_looks_back_over_everything(vocab: Vocab, last_n: int | None) -> None:
    """The library takes -1 for nothing at all; here it is the whole context, also where nobody says so."""
    said = {} if last_n is None else {"dry_penalty_last_n": last_n}
    logits = np.zeros(vocab.n_tokens, dtype=np.float32)
    text = [201, 202, 203, 204, *([11, 12] * 40), 201, 202, 203]  # 204 would go on with what stands at the beginning
    even = 1 / vocab.n_tokens
    for n_ctx in (None, len(text)):
        dist = after(vocab, text, logits, dry_multiplier=0.8, n_ctx=n_ctx, **said)
        assert dist.prob_of(204) < 0.5 * even < dist.prob_of(205)


def test_dry_looks_back_no_further_than_it_is_told(vocab: Vocab) -> None:
    logits = np.zeros(vocab.n_tokens, dtype=np.float32)
    text = [201, 202, 203, 204, *([11, 12] * 40), 201, 202, 203]
    for last_n in (0, 60):
        dist = after(vocab, text, logits, dry_multiplier=0.8, dry_penalty_last_n=last_n)
        assert np.isclose(dist.prob_of(204), dist.prob_of(205))


def after(
    vocab: Vocab, text: list[int], logits: NDArray[np.float32], n_ctx: int | None = None, **changes: Any
) -> Distribution:
    """The distribution for `logits` after `text`."""
    window = {} if n_ctx is None else {"n_ctx": n_ctx}
    sampler = Sampler(vocab, SamplingParams(**OFF, **changes), 1, **window)
    for token in text:
        sampler.accept(token)
    dist = sampler.distribution(logits, 0)
    sampler.close()
    return dist


@pytest.mark.parametrize("temperature", [5e-324, 1e-38, 1e-5])
def test_a_temperature_next_to_nothing_takes_the_most_probable(vocab: Vocab, temperature: float) -> None:
    sampler, logits = (
        Sampler(vocab, SamplingParams(**{**OFF, "temperature": temperature}), 1),
        logits_of(4, vocab.n_tokens),
    )
    assert sampler.choose(logits, 3) == logits.argmax()
    sampler.close()


def test_choices_are_samples_of_the_distribution(vocab: Vocab) -> None:
    params = SamplingParams(temperature=1.0, top_k=5, top_p=1.0, min_p=0.0)
    sampler, logits = Sampler(vocab, params, 11), logits_of(3, vocab.n_tokens)
    dist, n = sampler.distribution(logits, 0), 20_000
    counts = np.zeros(vocab.n_tokens)
    for position in range(n):
        counts[sampler.choose(logits, position)] += 1
    assert counts.sum() == n and np.flatnonzero(counts).size == 5
    # Six standard deviations of a fixed seed.
    assert np.abs(counts[dist.ids] / n - dist.probs).max() < 6 * 0.5 / n**0.5
    sampler.close()


def test_dry_s_options_are_the_library_s(vocab: Vocab) -> None:
    """Values after a text with repetitions, not only that something changes."""
    text = [201, 202, 203, 204, 205, 201, 202, 203, 204, 70, 202, 203, 204, 11, 201, 202, 203, 204]
    logits = np.zeros(vocab.n_tokens, dtype=np.float32)
    word = vocab.text([202])
    seen = []
    for changes in (
        {},
        {"dry_base": 1.2},
        {"dry_allowed_length": 4},
        {"dry_allowed_length": 50},
        {"dry_sequence_breakers": (word,)},
        {"dry_sequence_breakers": (vocab.text([205]), vocab.text([70]))},
        {"dry_sequence_breakers": ()},
    ):
        params = SamplingParams(**OFF, dry_multiplier=0.9, **changes)  # type: ignore[arg-type]
        sampler = Sampler(vocab, params, 1)
        for token in text:
            sampler.accept(token)
        ours = sampler.distribution(logits, len(text))
        assert_same(ours, library_distribution(vocab, params, logits, text))
        seen.append(tuple(sorted(zip(ours.ids.tolist(), ours.probs.round(6).tolist()))))
        sampler.close()
    assert len(set(seen)) > 3, "the options do something in this text"


LEARNING = [
    {"mirostat": 1},
    {"mirostat": 1, "mirostat_tau": 2.0, "mirostat_eta": 0.5, "temperature": 1.3},
    {"mirostat": 2},
    {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.4, "logit_bias": ((7, 5.0),)},
    {"adaptive_target": 0.1},
    {"adaptive_target": 0.5, "adaptive_decay": 0.5, "min_p": 0.05, "temperature": 0.8},
]


@pytest.mark.parametrize("changes", LEARNING, ids=str)
def test_samplers_that_learn_follow_the_library_s(vocab: Vocab, changes: dict[str, Any]) -> None:
    """The library draws and learns; given what it drew, the distribution here is the same at every step."""
    params = SamplingParams(**{**OFF, **changes}, seed=1)
    chain, sampler = LibraryChain(vocab, params), Sampler(vocab, params, 1)
    for token in HISTORY:  # the prompt teaches nothing
        sampler.accept(token, generated=False)
    sizes = set()
    for step in range(40):
        logits = logits_of(step, vocab.n_tokens)
        expected, drawn = chain.apply(logits)
        ours = sampler.distribution(logits, step)
        assert_same(ours, expected, 1e-4)
        sizes.add(round(float(ours.probs.max()), 3))
        sampler.accept(drawn)
        chain.accept(drawn)
    assert len(sizes) > 10
    chain.close()
    sampler.close()


@pytest.mark.parametrize("changes", [*LEARNING, {"dry_multiplier": 0.8}, {"repeat_penalty": 1.3}], ids=str)
def test_looking_changes_nothing_and_a_fork_goes_its_own_way(vocab: Vocab, changes: dict[str, Any]) -> None:
    params = SamplingParams(**{**OFF, **changes}, xtc_probability=0.4, seed=5)
    looked_at, quiet = Sampler(vocab, params, 5), Sampler(vocab, params, 5)
    for step in range(25):
        logits, other = logits_of(step, vocab.n_tokens), logits_of(1000 + step, vocab.n_tokens)
        fork = looked_at.fork()
        for more in range(3):
            fork.accept(fork.choose(other, step + more))
        looked_at.distribution(other, step + 1)
        looked_at.choose(logits, step)
        chosen = looked_at.choose(logits, step)
        assert chosen == quiet.choose(logits, step)
        looked_at.accept(chosen)
        quiet.accept(chosen)
        before = quiet.distribution(logits, step + 1)
        after = looked_at.distribution(logits, step + 1)
        assert np.array_equal(before.ids, after.ids) and np.array_equal(before.probs, after.probs)
    looked_at.close()
    quiet.close()


def test_xtc_acts_as_often_as_it_should_and_by_the_position(vocab: Vocab) -> None:
    on, off = ({**OFF, "xtc_probability": x, "xtc_threshold": 0.05} for x in (0.3, 0.0))
    logits = np.zeros(vocab.n_tokens, dtype=np.float32)
    logits[[3, 4, 5]] = 12.0, 11.5, 11.0
    sampler = Sampler(vocab, SamplingParams(**on), 9)
    acted = [sampler.distribution(logits, at).prob_of(3) == 0.0 for at in range(2_000)]
    assert 0.25 < sum(acted) / len(acted) < 0.35
    assert acted == [sampler.distribution(logits, at).prob_of(3) == 0.0 for at in range(2_000)]
    at = acted.index(True)
    assert_same(
        sampler.distribution(logits, at),
        library_distribution(vocab, SamplingParams(**{**on, "xtc_probability": 1.0}), logits, []),
    )
    assert_same(
        sampler.distribution(logits, acted.index(False)),
        library_distribution(vocab, SamplingParams(**off), logits, []),
    )
    sampler.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"typical_p": 0.3, "top_k": 0},
        {"typical_p": 0.6, "top_k": 40, "top_p": 0.9},
        {"xtc_probability": 1.0, "xtc_threshold": 0.02, "top_k": 40},
        {"top_n_sigma": 1.0, "top_k": 3, "min_p": 0.4},
    ],
    ids=str,
)
def test_at_temperature_0_the_same_samplers_act_as_in_llama_cpp(vocab: Vocab, changes: dict[str, Any]) -> None:
    """Typical-p and XTC may leave the most probable token out: then the best of the others is taken."""
    params = SamplingParams(**{**OFF, **changes, "temperature": 0.0})
    sampler, favourites = Sampler(vocab, params, 1), 0
    for step in range(20):
        logits = logits_of(step, vocab.n_tokens)
        expected = library_distribution(vocab, params, logits, [])
        assert list(expected.values()) == [1.0]
        assert sampler.choose(logits, step) == next(iter(expected))
        assert sampler.distribution(logits, step).ids.tolist() == list(expected)
        favourites += next(iter(expected)) == logits.argmax()
    assert (favourites == 20) == ("top_n_sigma" in changes)
    sampler.close()


@pytest.mark.parametrize("changes", [{"typical_p": 0.5}, {"mirostat": 1}, {"mirostat": 2}], ids=str)
def test_tokens_of_no_probability_do_not_spoil_what_is_computed_from_the_others(
    vocab: Vocab, changes: dict[str, Any]
) -> None:
    """The library takes the logarithm of 0 for them, and everybody's score is not a number."""
    allowed = (5, 6, 7, 8)
    bias = tuple((t, -math.inf) for t in range(vocab.n_tokens) if t not in allowed)
    sampler = Sampler(vocab, SamplingParams(**{**OFF, **changes}, logit_bias=bias), 1)
    logits = np.zeros(vocab.n_tokens, dtype=np.float32)
    logits[list(allowed)] = 1.0, 0.9, 0.8, 0.7
    found = sampler.distribution(logits, 0)
    assert set(found.ids.tolist()) <= set(allowed) and np.isfinite(found.probs).all() and found.ids.size > 1
    sampler.close()


def test_a_dynamic_temperature_next_to_nothing_takes_the_most_probable(vocab: Vocab) -> None:
    logits = np.full(vocab.n_tokens, -100.0, dtype=np.float32)
    logits[[4, 9]] = 80.0, 20.0
    for temperature in (0.0, 0.3):
        sampler = Sampler(vocab, SamplingParams(**{**OFF, "temperature": temperature}, dynatemp_range=0.3), 1)
        assert sampler.distribution(logits, 0).prob_of(4) == pytest.approx(1.0)
        sampler.close()


@pytest.mark.parametrize(
    "changes", [{}, {"adaptive_target": 0.5}, {"temperature": 0.0}, {"dynatemp_range": 0.5}], ids=str
)
@pytest.mark.filterwarnings("error")
def test_a_repeat_penalty_next_to_nothing_repeats(vocab: Vocab, changes: dict[str, Any]) -> None:
    """Positive logits divided by it are infinite: those tokens are all that is left, not the only ones left out."""
    logits = np.linspace(1.0, 2.0, vocab.n_tokens, dtype=np.float32)
    sampler = Sampler(vocab, SamplingParams(**{**OFF, **changes}, repeat_penalty=1e-300, repeat_last_n=64), 1)
    assert set(sampler.distribution(logits, 0).ids.tolist()) > {5, 9} or changes == {"temperature": 0.0}
    for token in (5, 9):
        sampler.accept(token)
    found = sampler.distribution(logits, 0)
    assert set(found.ids.tolist()) <= {5, 9} and found.probs.sum() == pytest.approx(1.0)
    if not changes:
        assert found.probs.tolist() == [0.5, 0.5]
    assert sampler.choose(logits, 0) in (5, 9)
    sampler.close()


@pytest.mark.parametrize(
    "changes", [{}, {"adaptive_target": 0.5}, {"temperature": 0.0}, {"dynatemp_range": 0.5}], ids=str
)
@pytest.mark.filterwarnings("error")
def test_a_penalty_that_overflows_bans_nothing(vocab: Vocab, changes: dict[str, Any]) -> None:
    """Where the only token that is not banned has been repeated, it comes again, whatever DRY takes off."""
    bias = tuple((t, -math.inf) for t in range(vocab.n_tokens) if t != 5)
    dry = {"dry_multiplier": 100.0, "dry_base": 100.0, "dry_allowed_length": 1, "dry_penalty_last_n": -1}
    sampler = Sampler(vocab, SamplingParams(**{**OFF, **changes}, **dry, logit_bias=bias), 1, 512)
    for _ in range(60):
        sampler.accept(5)
    logits = logits_of(1, vocab.n_tokens)
    assert sampler.distribution(logits, 0).ids.tolist() == [5] and sampler.choose(logits, 0) == 5
    sampler.close()


def test_the_most_probable_is_left_where_a_temperature_takes_logits_out_of_range(vocab: Vocab) -> None:
    logits = np.full(vocab.n_tokens, -100.0, dtype=np.float32)
    logits[:9] = -90.0
    logits[7] = -89.99
    # Nine tokens alike have 0.39 of the largest entropy, and 0.39 ** 100 is no normal float: all logits become -inf.
    dynamic = SamplingParams(**{**OFF, "temperature": 0.5}, dynatemp_range=0.5, dynatemp_exponent=100.0)
    sampler = Sampler(vocab, dynamic, 1)
    assert sampler.distribution(logits, 0).ids.tolist() == [7]
    sampler.close()

    logits[4] = 8.0
    # 8e37 is a float, 8e37 / 0.1 is none.
    sampler = Sampler(vocab, SamplingParams(**{**OFF, "temperature": 0.1}, repeat_penalty=1e-37, repeat_last_n=64), 1)
    sampler.accept(4)
    assert sampler.distribution(logits, 0).ids.tolist() == [4]
    sampler.close()


def test_seeds_are_whole_numbers_of_64_bits(vocab: Vocab) -> None:
    """XTC used to be given half of the seed, and 2^32 - 1 meant a random one to the library."""
    seed, logits = 2**40 + 2**32 - 1, logits_of(3, vocab.n_tokens)
    params = SamplingParams(**OFF, xtc_probability=0.5, xtc_threshold=0.02, seed=seed)
    texts = []
    for _ in range(2):
        sampler = Sampler(vocab, params, seed)
        texts.append([sampler.choose(logits, at) for at in range(50)])
        sampler.close()
    assert texts[0] == texts[1]


@pytest.mark.parametrize("strategy", ["ngram:min_n=1", "model:p_min=0", "model:branch=3:nodes=12:p_min=0"])
@pytest.mark.parametrize(
    "changes",
    [
        {"mirostat": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.3},
        {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.3},
        {"adaptive_target": 0.3},
        {"xtc_probability": 0.5, "xtc_threshold": 0.05},
        {"top_n_sigma": 1.0, "dynatemp_range": 0.4},
    ],
    ids=str,
)
def test_samplers_with_a_state_give_the_same_text_with_speculation(
    tiny_session: Session, strategy: str, changes: dict[str, Any]
) -> None:
    prompt = tiny_session.prompt_ids("the cat and the dog and the cat and the ")
    drafted = 0
    for temperature, seed in ((0.0, 3), (0.7, 3), (0.7, 4)):
        sampling = SamplingParams(temperature=temperature, seed=seed, **changes)
        plain = answer(tiny_session.engine, request(prompt, "off", 40, sampling=sampling))
        found = answer(tiny_session.engine, request(prompt, strategy, 40, sampling=sampling))
        assert found.ids == plain.ids
        drafted += found.finished.stats.drafted - found.finished.stats.accepted
    assert drafted > 0, "no draft was rejected, so nothing was tested"


@pytest.mark.parametrize("verifier", ["typical", "lenient", "typical:epsilon=0:delta=0"])
@pytest.mark.parametrize("changes", [{}, {"mirostat": 2}, {"repeat_penalty": 1.4, "dry_multiplier": 0.8}], ids=str)
def test_lossy_verifiers_keep_to_the_sampling_parameters(
    tiny_session: Session, verifier: str, changes: dict[str, Any]
) -> None:
    """They looked at the model's own distribution, and so accepted what a bias forbids."""
    prompt = tiny_session.prompt_ids("the cat and the dog and the ")
    engine, never = tiny_session.engine, ord("a")
    for temperature in (0.0, 0.8):
        free = answer(engine, request(prompt, "off", 30, sampling=SamplingParams(temperature, seed=3, **changes))).ids
        never = free[2]
        sampling = SamplingParams(temperature, seed=3, logit_bias=((never, -math.inf),), **changes)
        wanted = request(
            prompt, "model:branch=3:nodes=8:p_min=0,ngram:min_n=1", 30, sampling=sampling, verifier=verifier
        )
        found = answer(engine, wanted)
        assert never not in found.ids and len(found.ids) == 30
        assert found.ids == answer(engine, wanted).ids
        if temperature == 0.0 and verifier.startswith("typical") and not changes:
            assert found.ids == answer(engine, request(prompt, "off", 30, sampling=sampling)).ids


@pytest.mark.parametrize("strategy", ["ngram:min_n=1", "model:p_min=0", "model:branch=3:nodes=12:p_min=0"])
@pytest.mark.parametrize(
    "changes",
    [{"repeat_penalty": 1.4}, {"frequency_penalty": 0.5, "presence_penalty": 0.5}, {"dry_multiplier": 0.8}],
    ids=str,
)
def test_penalties_advance_along_the_accepted_path_only(
    tiny_session: Session, strategy: str, changes: dict[str, Any]
) -> None:
    prompt = tiny_session.prompt_ids("the cat and the dog and the cat and the ")
    for temperature in (0.0, 0.8):
        sampling = SamplingParams(temperature=temperature, seed=3, **changes)
        plain = answer(tiny_session.engine, request(prompt, "off", 50, sampling=sampling))
        found = answer(tiny_session.engine, request(prompt, strategy, 50, sampling=sampling))
        assert found.ids == plain.ids


# --- grammars ---------------------------------------------------------------------------------------------------------

GRAMMARS = {
    'root ::= ("yes" | "no" | "maybe")': r"yes|no|maybe",
    'root ::= [a-f]{4} "-" [0-9]+ "."': r"[a-f]{4}-[0-9]+\.",
    'root ::= item ("," item){3}\nitem ::= "<" [A-Z]{2,5} ">"': r"<[A-Z]{2,5}>(,<[A-Z]{2,5}>){3}",
    'root ::= "🙂"{2} [é漢]': r"🙂🙂[é漢]",
}
STRATEGIES = ("off", "ngram:min_n=1", "model:p_min=0", "forced", "forced,model:branch=3", "auto")


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_the_text_always_matches_the_grammar(tiny_session: Session, grammar: str) -> None:
    prompt = tiny_session.prompt_ids("answer: ")
    for seed in range(3):
        sampling = SamplingParams(temperature=1.0 if seed else 0.0, seed=seed, grammar=grammar)
        plain = answer(tiny_session.engine, request(prompt, "off", 80, sampling=sampling, ignore_end=False))
        if plain.reason == "stop":
            assert re.fullmatch(GRAMMARS[grammar], plain.text)
        else:  # a random model may like digits too much to ever stop
            assert re.match(r"[a-f]{4}-[0-9]+$", plain.text)
        for strategy in STRATEGIES[1:]:
            wanted = request(prompt, strategy, 80, sampling=sampling, ignore_end=False, has_grammar=True)
            assert answer(tiny_session.engine, wanted).text == plain.text, strategy


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind_of_drink": {"enum": ["coffee", "tea"]},
        "with_milk": {"type": "boolean"},
    },
    "required": ["name", "kind_of_drink", "with_milk"],
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_schema_gives_json_that_parses(demo_session: Session, temperature: float) -> None:
    grammar = schema_to_lark(SCHEMA)
    ids, _ = demo_session.chat_ids([{"role": "user", "content": "I would like a coffee. My name is Ann."}])
    sampling = SamplingParams(temperature=temperature, seed=4, grammar=grammar)
    plain = answer(demo_session.engine, request(ids, "off", 200, sampling=sampling, ignore_end=False, exact=True))
    assert plain.reason == "stop"
    told = json.loads(plain.text)
    assert set(told) == set(SCHEMA["properties"])  # type: ignore[call-overload]
    assert told["kind_of_drink"] in ("coffee", "tea") and isinstance(told["with_milk"], bool)
    for strategy in ("forced", "forced,ngram,model", "auto"):
        wanted = request(ids, strategy, 200, sampling=sampling, ignore_end=False, exact=True, has_grammar=True)
        found = answer(demo_session.engine, wanted)
        assert found.ids == plain.ids
        if strategy == "forced":
            assert found.finished.stats.by_drafter["forced"]["drafted"] > 5
            assert found.finished.stats.accepted > 0


def test_what_a_grammar_forces(vocab: Vocab) -> None:
    grammar = 'root ::= "{" [ab] "the only way" ("x" | "y") "end"'
    sampler = Sampler(vocab, SamplingParams(grammar=grammar), 1)

    def accept(text: str) -> None:
        for token in vocab.tokenize(text, special=False):
            sampler.accept(token)

    assert sampler.forced_text(100) == "{"
    accept("{")
    assert sampler.forced_text(100) == ""
    accept("a")
    assert sampler.forced_text(100) == "the only way"
    assert sampler.forced_text(5) == "the o"
    assert sampler.forced_text(100) == "the only way"  # asking changes nothing
    accept("the only way")
    assert sampler.forced_text(100) == ""
    accept("y")
    assert sampler.forced_text(100) == "end"
    accept("end")
    assert sampler.forced_text(100) == ""  # the end of the text is not forced text
    sampler.close()


def test_the_forced_drafter_drafts_that(tiny_session: Session) -> None:
    sampling = SamplingParams(temperature=0.0, grammar='root ::= "this is entirely determined from the beginning"')
    prompt = tiny_session.prompt_ids("x")
    plain = answer(tiny_session.engine, request(prompt, "off", 80, sampling=sampling, ignore_end=False))
    found = answer(tiny_session.engine, request(prompt, "forced", 80, sampling=sampling, ignore_end=False))
    assert plain.text == found.text == "this is entirely determined from the beginning"
    assert found.ids == plain.ids
    assert found.finished.stats.drafted > 0


@pytest.mark.parametrize("grammar", ["", "   ", "nonsense", 'root ::= "a', 'other ::= "a"', "root ::= missing"])
def test_bad_grammars(vocab: Vocab, grammar: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(GrammarError, match="grammar") as error:
        Sampler(vocab, SamplingParams(grammar=grammar), 1)
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_the_message_says_what_the_parser_stumbled_over(vocab: Vocab) -> None:
    with pytest.raises(GrammarError, match="Rule 'missing' not found"):
        Sampler(vocab, SamplingParams(grammar="root ::= missing"), 1)


@pytest.mark.parametrize("schema", ["{", "[1]", '"text"', '{"type": "nonsense"}', '{"$ref": "#/nope"}'])
def test_bad_schemas(schema: str) -> None:
    with pytest.raises(GrammarError, match="schema") as error:
        schema_to_lark(schema)
    assert "\n" not in str(error.value)


# --- logit bias -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("strategy", ["off", "ngram:min_n=1", "model:p_min=0"])
def test_a_forbidden_token_never_comes_and_speculation_changes_nothing(
    tiny_session: Session, strategy: str, temperature: float
) -> None:
    prompt = tiny_session.prompt_ids("the cat and the dog and the ")
    free = answer(tiny_session.engine, request(prompt, "off", 40, sampling=SamplingParams(temperature, seed=3))).ids
    never = SamplingParams(temperature, seed=3, logit_bias=((free[0], -math.inf), (free[5], -100.0)))
    found = answer(tiny_session.engine, request(prompt, strategy, 40, sampling=never)).ids
    assert free[0] not in found and free[5] not in found
    assert found == answer(tiny_session.engine, request(prompt, "off", 40, sampling=never)).ids
    always = SamplingParams(temperature, seed=3, logit_bias=((free[0], 100.0),))
    assert set(answer(tiny_session.engine, request(prompt, strategy, 12, sampling=always)).ids) == {free[0]}


def test_when_everything_is_forbidden_the_text_ends(tiny_session: Session) -> None:
    vocab = tiny_session.model.vocab
    nothing = tuple((token, -math.inf) for token in range(vocab.n_tokens))
    for temperature in (0.0, 0.8):
        sampling = SamplingParams(temperature, logit_bias=nothing)
        found = answer(tiny_session.engine, request((5, 6), "off", 9, sampling=sampling, ignore_end=False))
        assert (found.reason, found.ids) == ("stop", [])


def test_ids_outside_the_vocabulary_are_refused_before_the_request_waits(tiny_session: Session) -> None:
    n = tiny_session.model.n_vocab
    with pytest.raises(SamplingError, match="vocabulary"):
        tiny_session.engine.submit(request((5,), sampling=SamplingParams(logit_bias=((n, 1.0),))))
    with pytest.raises(UsageError, match="vocabulary"):
        tiny_session.engine.submit(request((5, n)))
    assert not tiny_session.engine.busy

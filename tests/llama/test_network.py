"""Small networks computed by the library give what numpy gives."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from lcspec.llama.network import Network

pytestmark = pytest.mark.model

# The largest error, as a share of the largest result.
ERRORS = {"f32": 1e-5, "f16": 2e-3, "q8_0": 3e-2}
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> NDArray[np.float32]:
    """Random numbers; sums of a row's products are near 1 in size."""
    return (RANDOM.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ERRORS)
def test_a_network_computes_what_numpy_does(kind: str, threads: int) -> None:
    heads, state, hidden, vocab = 3, 96, 64, 50
    into, bias, out, up = (
        normal(heads * hidden, state),
        normal(heads * hidden),
        normal(heads, state, hidden),
        normal(vocab, state),
    )
    network = Network(threads)
    x, beside = network.input(1, state), network.input(state)
    before = network.sum(network.product(network.weights(into, kind), x), network.weights(bias))
    silu = network.reshaped(network.silu(before), heads, 1, hidden)
    rows = network.sum(network.product(network.weights(out, kind), silu), beside)
    rows = network.product(network.weights(up, kind), network.reshaped(rows, heads, state))
    network.finish(rows)
    for _ in range(3):
        given, added = normal(1, state) * 10, normal(state) * 10
        inner = (into @ given[0] + bias).reshape(heads, hidden, 1)
        wanted = ((out @ (inner / (1 + np.exp(-inner))))[..., 0] + added) @ up.T
        found = network(given, added)
        assert found.shape == (heads, vocab) and np.abs(found - wanted).max() < ERRORS[kind] * np.abs(wanted).max()
    network.close()
    network.close()


def test_inputs_of_another_shape_are_refused() -> None:
    network = Network(1)
    network.finish(network.product(network.weights(normal(4, 8)), network.input(1, 8)))
    with pytest.raises(AssertionError, match="instead of"):
        network(normal(1, 9))
    with pytest.raises(ValueError):
        network(normal(1, 8), normal(1, 8))
    network.close()

"""Files with the layers of published models are models that the library runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lcspec.llama import Context, Model
from scripts import shape_model
from tests.running import options

pytestmark = pytest.mark.model


@pytest.mark.parametrize("name", sorted(shape_model.SHAPES))
def test_the_layers_of_a_model_can_be_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrower than they are: the files would have hundreds of megabytes."""
    shape = shape_model.SHAPES[name]
    experts = min(shape.experts, 8)
    small = replace(shape, width=256, ff=256, heads=4, kv_heads=2, vocab=320 * shape.layers, experts=experts)
    monkeypatch.setitem(shape_model.SHAPES, name, small)
    file = tmp_path / "layers.gguf"
    shape_model.write_shape(name, file, "Q4_K_M")
    usual = options(file, gpu_layers=0, ctx=64)
    with Model.load(usual) as model, Context(model, usual) as context:
        assert model.header.architecture == shape.architecture and model.vocab.n_tokens == 320 * shape.taken
        context.batch.clear()
        for i in range(8):
            context.batch.add(i, i, (0,), logits=True)
        context.decode()
        assert np.isfinite(context.logits()).all() and context.logits().std() > 0

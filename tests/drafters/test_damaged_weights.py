"""Draft models and heads whose weights are damaged, which no header tells: the request ends with the file's name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lcspec.config import DraftFiles
from lcspec.errors import DecodeError
from lcspec.modelfiles.companions import sort_drafts
from lcspec.session import open_session
from tests.running import GREEDY, SEEDED, answer, options, request
from tests.tiny_families import Net, write_family
from tests.tiny_heads import write_assistant, write_eagle, write_mtp_part

pytestmark = pytest.mark.model


def damage(net: Net) -> None:
    """One bit of an exponent."""
    name = next(name for name in net.tensors if name.endswith("ffn_up.weight"))
    net.tensors[name][0, 0] = np.float32(np.inf)


@pytest.mark.parametrize("kind", ["eagle", "assistant", "part", "model"])
def test_numbers_that_are_none(tmp_path: Path, kind: str) -> None:
    family = {"eagle": "llama", "assistant": "gemma4", "part": "qwen35", "model": "llama"}[kind]
    target, path = write_family(family, tmp_path / "target.gguf"), tmp_path / "damaged.gguf"
    if kind == "eagle":
        write_eagle(path, change=damage)
    elif kind == "assistant":
        write_assistant(path, change=damage)
    elif kind == "part":
        write_mtp_part("qwen35", path, change=damage)
    else:
        write_family("llama", path, change=damage)
    files = sort_drafts(target, DraftFiles((path,)))
    name = next(name for name in files.drafters if name != "mtp" or files.mtp == path)
    with open_session(options(target, ctx=256), files) as session:
        prompt = session.prompt_ids("the cat and the dog and the cat and the ")
        for sampling in (GREEDY, SEEDED):
            for strategy in (f"{name}:branch=1", f"{name}:branch=3:nodes=8"):
                wanted = request(prompt, strategy, 8, sampling=sampling, draft=files)
                with pytest.raises(DecodeError, match="damaged.gguf computes NaN or infinity"):
                    answer(session.engine, wanted)
        plain = answer(session.engine, request(prompt, "off", 8, draft=files))
        assert len(plain.ids) == 8

"""EAGLE-3 heads trained on a model that PyTorch computes: the same model, the same head, and a file that drafts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs PyTorch (lcspec[train])")

from lcspec.config import DraftFiles  # noqa: E402
from lcspec.llama import Context, Model  # noqa: E402
from lcspec.modelfiles.companions import sort_drafts  # noqa: E402
from lcspec.modelfiles.gguf_header import read_gguf  # noqa: E402
from lcspec.session import open_session  # noqa: E402
from lcspec.training.eagle.network import Head, HeadSizes, Rows  # noqa: E402
from scripts.wide_eagle.batch import NEVER, Batch  # noqa: E402
from scripts.wide_eagle.target import Target  # noqa: E402
from scripts.wide_eagle.texts import Read  # noqa: E402
from scripts.wide_eagle.train import WideHead  # noqa: E402
from tests.running import GREEDY, answer, options, request  # noqa: E402

pytestmark = [pytest.mark.model, pytest.mark.slow]
LAYERS = (0, 1)


def test_the_head_is_the_one_that_lcspec_draft_eagle_trains() -> None:
    rng, lengths = np.random.default_rng(0), (12, 9)
    sizes = HeadSizes(vocab=50, width=32, heads=4, kv_heads=2, head_dim=8, feed_forward=64)
    weights = {
        name: (0.3 * rng.standard_normal(shape) + (len(shape) == 1)).astype(np.float32)
        for name, shape in sizes.shapes().items()
    }
    features, embeddings = torch.randn(2, 12, 96), torch.randn(2, 12, 32)
    none = torch.zeros(0)
    rows = Rows(
        features=torch.cat([features[i, :n] for i, n in enumerate(lengths)]),
        embeddings=torch.cat([embeddings[i, :n] for i, n in enumerate(lengths)]),
        positions=torch.cat([torch.arange(n) for n in lengths]),
        shares=none,
        ids=none,
        top=none,
        learn=torch.ones(21, dtype=torch.bool),
        reached=none,
        starts=[0, 12, 21],
    )
    head = WideHead(sizes, weights)
    with torch.no_grad():
        steps = Head(sizes, weights).unroll(rows, 4)
        states = list(head.unroll_all(Read(features, embeddings, none, none, none, none), 4))
        for step, state in zip(steps, states, strict=True):
            said = torch.cat([part[:n] for part, n in zip(head.say(state), lengths)])[step.base]
            assert len(step.base) and torch.allclose(said, step.logits, atol=1e-4)


def test_torch_computes_what_llama_cpp_does(llama: Path) -> None:
    """All at once and a token at a time, in rows that are at different places."""
    target, tokens = Target(llama), np.random.default_rng(0).integers(3, 250, 24)
    found = options(llama, ctx=64)
    with Model.load(found) as model, Context(model, found) as context:
        context.want_states(LAYERS)
        context.batch.clear()
        context.batch.add_run(tokens.tolist(), 0, 0)
        context.decode()
        wanted = context.states(LAYERS).reshape(24, -1)
    features, last = target.read(torch.from_numpy(tokens)[None], LAYERS)
    assert np.abs(features[0].numpy() - wanted).max() < 2e-2 * np.abs(wanted).max()
    choices = torch.nn.functional.linear(last, target.output)[0].argmax(-1)
    batch = Batch(target, 2, 40, end=-1)
    given = torch.from_numpy(np.concatenate([tokens, tokens[:20]]))
    places = torch.cat([torch.arange(24), 40 + torch.arange(20)])
    batch.give(
        torch.arange(2), torch.zeros(2, dtype=torch.int64), given, places, torch.tensor([24, 20]), torch.zeros(2)
    )
    for _ in range(30):
        batch.step()
    assert batch.texts[0, 24] == choices[23] and batch.texts[1, 20] == choices[19]
    said = torch.nn.functional.linear(target.read(batch.texts[:, :31], LAYERS)[1], target.output).argmax(-1)
    assert (said[0, 23:30] == batch.texts[0, 24:31]).all() and (said[1, 19:30] == batch.texts[1, 20:31]).all()
    assert (batch.ended == NEVER).all()


def test_the_commands_run_one_after_the_other(llama: Path, tmp_path: Path) -> None:
    chats = [{"messages": [{"role": "user", "content": f"{i} the cat"}]} for i in range(40)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chats))
    prompts, trained, out = (str(tmp_path / name) for name in ("prompts.npz", "trained.npz", "head.gguf"))
    script = str(Path(__file__).parents[2] / "scripts" / "train_wide_eagle.py")

    def run(*args: str) -> str:
        done = subprocess.run([sys.executable, script, *args], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "questions to begin with" in run(
        "prompts", str(llama), prompts, "--text", str(tmp_path / "chats.jsonl"), "--code", "20"
    )
    small = ["--rows", "16", "--length", "640", "--vocab", "64", "--size", "4000"]
    told = run("train", str(llama), prompts, trained, "--write-seconds", "20", "--train-seconds", "5", *small)
    assert "held out: right at each depth" in told
    run("export", str(llama), trained, out, "--sources", "chats")
    facts = read_gguf(Path(out)).metadata
    assert facts["lcspec.eagle.text"] == "chats" and facts["lcspec.eagle.steps"] > 0
    files = sort_drafts(llama, DraftFiles((Path(out),)))
    assert files.eagle == Path(out)
    with open_session(options(llama, ctx=256), files) as session:
        prompt = session.prompt_ids("the cat and the dog")
        plain = answer(session.engine, request(prompt, "off", 16, sampling=GREEDY))
        drafted = answer(session.engine, request(prompt, "eagle:nodes=4", 16, sampling=GREEDY))
    assert drafted.ids == plain.ids

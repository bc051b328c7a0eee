"""The small hybrid that is trained for measuring: torch and llama.cpp compute the same, training, a file, drafts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs PyTorch (lcspec[train])")

from lcspec.training.distil.initial import RANDOM  # noqa: E402
from scripts.hybrid.check import draft, logit_differences  # noqa: E402
from scripts.hybrid.delta_net import gated_delta_rule  # noqa: E402
from scripts.hybrid.export import write_hybrid  # noqa: E402
from scripts.hybrid.network import Hybrid  # noqa: E402
from scripts.hybrid.shape import HybridShape  # noqa: E402
from scripts.hybrid.texts import Texts, held, tokenize  # noqa: E402
from scripts.hybrid.train import LENGTH, STEPS, Trainer, initial_weights, measure  # noqa: E402

pytestmark = [pytest.mark.model, pytest.mark.slow]
SHAPE = HybridShape(288, width=64, layers=4, heads=2, kv_heads=1, head_dim=32, feed_forward=96)


def loud_weights(vocabulary: Path) -> dict[str, np.ndarray]:
    """Weights under which every part counts."""
    rng, weights = np.random.default_rng(3), dict(initial_weights(SHAPE, vocabulary, 0))
    weights["token_embd.weight"] = weights["token_embd.weight"] / RANDOM / 4
    for name, value in weights.items():
        if value.ndim == 1 and not name.endswith(("ssm_a", "ssm_dt.bias")):
            weights[name] = (value * rng.uniform(0.5, 1.5, value.shape)).astype(np.float32)
        elif name.endswith(("attn_output.weight", "ffn_down.weight", "ssm_out.weight")):
            weights[name] = 3 * value
    return weights


def test_pieces_of_a_text_give_what_the_recurrence_gives() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 70, 3, 8) for _ in range(3))
    k = torch.nn.functional.normalize(k, dim=-1)
    g, beta = -torch.rand(2, 70, 3), torch.rand(2, 70, 3)
    state, wanted = torch.zeros(2, 3, 8, 8), []
    for t in range(70):
        state = state * g[:, t].exp()[..., None, None]
        moved = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * moved[:, :, None]
        wanted.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    for piece in (16, 64):
        assert torch.allclose(gated_delta_rule(q, k, v, g, beta, piece), torch.stack(wanted, 1), atol=1e-4)


def test_llama_cpp_computes_what_torch_does(llama: Path, tmp_path: Path) -> None:
    """The model at every token, and its layer for multi-token prediction in unrolled branches."""
    weights, path = loud_weights(llama), tmp_path / "hybrid.gguf"
    write_hybrid(path, llama, SHAPE, weights, {"text": "none"})
    tokens = np.random.default_rng(0).integers(0, 280, 24).tolist()
    model, head = logit_differences(path, Hybrid(SHAPE, weights), tokens)
    assert model.rows == 24 and model.largest < 2e-3
    assert head.rows == 12 * STEPS and head.largest < 2e-3
    weights["blk.4.nextn.eh_proj.weight"] = weights["blk.4.nextn.eh_proj.weight"][:, ::-1].copy()
    assert logit_differences(path, Hybrid(SHAPE, weights), tokens)[1].largest > 0.1


def test_training_learns_goes_on_and_leaves_a_file_that_drafts(llama: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    verse = rng.integers(3, 250, 23)
    documents = [np.tile(np.roll(verse, i), 14)[:LENGTH].astype(np.int32) for i in range(24)]
    texts = Texts(documents[:16], documents[16:])

    def trainer(seconds: float) -> Trainer:
        return Trainer(texts, SHAPE, llama, seconds, 1, tmp_path)

    before = measure(trainer(0.0).network, texts)
    trainer(6.0).run(lambda share: None)
    first = trainer(12.0)
    assert first.progress.step > 3 and first.progress.seconds >= 6.0
    first.run(lambda share: None)
    after = measure(Hybrid(SHAPE, first.best), texts)
    assert first.progress.history[-1][1] < first.progress.history[0][1]
    assert after.rows > before.rows and after.length > 1.5
    path = tmp_path / "hybrid.gguf"
    write_hybrid(path, llama, SHAPE, first.best, {"steps": first.progress.step})
    found = draft(path, ["the cat and the dog"], 24)
    assert found.same == found.prompts == 1 and 1.0 <= found.length <= 1.0 + STEPS


def test_conversations_are_held_out_by_their_text(llama: Path, tmp_path: Path) -> None:
    from lcspec.training.prompts import read_sources

    said = [f"What is {i} and {i}?" for i in range(200)]
    rows = [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": "Two."}]} for q in said]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts, prompts = tokenize(llama, read_sources([path]))
    assert 0 < len(prompts) == len(texts.held_out) < 20 and len(texts.train) == 200 - len(prompts)
    assert all(any(q in prompt for q in said) and "Two." not in prompt for prompt in prompts)
    again, _ = tokenize(llama, read_sources([path]))
    texts.save(tmp_path / "texts.npz")
    for found in (again, Texts.load(tmp_path / "texts.npz")):
        assert [d.tolist() for d in found.held_out] == [d.tolist() for d in texts.held_out]
        assert [d.tolist() for d in found.train] == [d.tolist() for d in texts.train]
    assert not all(held(q) for q in said)


def test_the_commands_run_one_after_the_other(llama: Path, tmp_path: Path) -> None:
    import subprocess

    chat = {
        "messages": [{"role": "user", "content": "the cat " * 40}, {"role": "assistant", "content": "the dog " * 40}]
    }
    rows = [{"messages": [{**m, "content": f"{i} {m['content']}"} for m in chat["messages"]]} for i in range(120)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    work, out = str(tmp_path / "work"), str(tmp_path / "hybrid.gguf")
    script = str(Path(__file__).parents[2] / "scripts" / "train_hybrid.py")

    def run(*args: str) -> str:
        done = subprocess.run([sys.executable, script, *args, "--work", work], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    text = ["--text", str(tmp_path / "chats.jsonl"), "--vocabulary", str(llama)]
    assert "tokens to train on" in run("train", *text, "--minutes", "0.05")
    assert "written" in run("export", out)
    told = run("check", out, "--prompts", "1", "-n", "8")
    assert "in 160 of 160 rows" in told and "the same for 1 of 1 prompts" in told

"""Figures of the exported demo pair, measured through llama.cpp on the quantized files. Needs no torch."""

from __future__ import annotations

import json
from pathlib import Path

import demo_card
import demo_data
import llama_cpp
import numpy as np

HALF = 512  # half of the context the models were trained with
VALIDATION_ROWS = 64  # at most, of each kind
MAX_ANSWER = 96
PROMPTS_PER_SOURCE = 16
CHAIN = 4  # length of the draft in the simulated acceptance length
IM_START, IM_END, END_OF_TEXT = (
    demo_data.SPECIAL_TOKENS.index(t) for t in (demo_data.IM_START, demo_data.IM_END, demo_data.END_OF_TEXT)
)

CHATS = (
    ("Hi! Can I get a large iced latte with oat milk?", "Yes, that looks good.", "Thank you!"),
    ("Hi, how are you?", "What do you do for a living?", "That sounds fun. Do you have any pets?"),
    ("Tom has 3 boxes with 12 pencils each. He gives 6 pencils to Ann. How many pencils does he have left?",),
    ("Write a python function to find the maximum of a list of numbers.",),
    ("Who are you?",),
)
CODE_PROMPTS = (
    'def read_lines(path):\n    """Return the lines of a file as a list."""\n    with open(',
    'class Queue:\n    """A simple first-in first-out queue."""\n\n    def __init__(self',
)


class Model:
    """A GGUF model that gives logits for whole rows and greedy continuations."""

    def __init__(self, path: Path, context: int = 2 * HALF) -> None:
        self.llama = llama_cpp.Llama(
            str(path),
            n_ctx=context,
            n_batch=HALF,
            n_gpu_layers=0,
            n_threads=1,
            n_threads_batch=1,
            logits_all=True,
            verbose=False,
        )

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """Logits at every position of one row."""
        self.llama.reset()
        self.llama.eval([int(t) for t in tokens])
        return self.llama.scores[: len(tokens)]

    def greedy(self, prompt: np.ndarray, limit: int, stop: tuple[int, ...] = (IM_END, END_OF_TEXT)) -> np.ndarray:
        """The greedy continuation of a prompt, with the stop token."""
        answer: list[int] = []
        token = int(self.logits(prompt)[-1].argmax())
        while True:
            answer.append(token)
            if token in stop or len(answer) == limit:
                return np.array(answer)
            self.llama.eval([token])
            token = int(self.llama.scores[self.llama.n_tokens - 1].argmax())

    def encode(self, text: str) -> np.ndarray:
        return np.array(self.llama.tokenize(text.encode(), add_bos=False, special=True))

    def decode(self, tokens: np.ndarray) -> str:
        return self.llama.detokenize([int(t) for t in tokens]).decode(errors="replace")


def token_losses(model: Model, row: np.ndarray) -> np.ndarray:
    """Next-token loss at every position of one row, in nats."""
    logits = model.logits(row[:-1]).astype(np.float32)
    top = logits.max(-1, keepdims=True)
    norm = np.log(np.exp(logits - top).sum(-1)) + top[:, 0]
    return norm - logits[np.arange(len(logits)), row[1:]]


def validation_figures(model: Model, sets: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Mean validation loss by kind, over the first and the second half of long rows."""
    figures = {}
    for kind, tokens in sets.items():
        losses = np.stack([token_losses(model, row) for row in demo_data.cut_rows(tokens, 2 * HALF, VALIDATION_ROWS)])
        figures[kind] = {
            "tokens": losses.size,
            f"positions 0 to {HALF - 1}": round(float(losses[:, :HALF].mean()), 3),
            f"positions {HALF} to {2 * HALF - 1}": round(float(losses[:, HALF:].mean()), 3),
        }
    return figures


def dialogue_prompts(work: Path) -> dict[str, list[np.ndarray]]:
    """Held-out dialogues by source, each cut after the header of its first or second assistant turn."""
    prompts: dict[str, list[np.ndarray]] = {}
    with np.load(work / "valid-dialogue.npz") as saved:
        documents, sources = np.split(saved["tokens"], saved["ends"][:-1]), saved["sources"]
    for i, (document, source) in enumerate(zip(documents, sources, strict=True)):
        turns = np.flatnonzero(document == IM_START)[1::2]
        chosen = prompts.setdefault(str(source), [])
        if len(chosen) < PROMPTS_PER_SOURCE:
            chosen.append(document[: turns[i % min(2, len(turns))] + 3])  # <|im_start|>, "assistant", newline
    return prompts


def code_prompts(work: Path, count: int = 24, length: int = 128) -> list[np.ndarray]:
    """Evenly spaced pieces of the held-out source files."""
    with np.load(work / "valid-code.npz") as saved:
        tokens = saved["tokens"]
    return [tokens[start : start + length] for start in np.linspace(0, len(tokens) - length, count).astype(int)]


def agreement(target: Model, draft: Model, prompts: list[np.ndarray]) -> tuple[np.ndarray, list[int]]:
    """For every token of the target's greedy answers, whether it is the draft's argmax; and tokens emitted per step.

    The second list replays greedy speculation with chains of `CHAIN` drafted tokens along the same answers.
    """
    matches, emitted = [], []
    for prompt in prompts:
        answer = target.greedy(prompt, MAX_ANSWER)
        context = np.concatenate([prompt, answer])[:-1]
        match = draft.logits(context)[len(prompt) - 1 :].argmax(-1) == answer
        matches.append(match)
        at = 0
        while at < len(match):
            window = match[at : at + CHAIN]
            accepted = len(window) if window.all() else int(window.argmin())
            emitted.append(min(accepted + 1, len(match) - at))
            at += accepted + 1
    return np.concatenate(matches), emitted


def agreement_figures(target: Model, draft: Model, work: Path) -> dict[str, object]:
    """Greedy agreement and simulated mean acceptance length on dialogue (also by source) and on code."""
    by_source = {source: agreement(target, draft, p) for source, p in dialogue_prompts(work).items()}
    code = agreement(target, draft, code_prompts(work))
    dialogue = np.concatenate([m for m, _ in by_source.values()]), [n for _, e in by_source.values() for n in e]

    def figures(result: tuple[np.ndarray, list[int]]) -> dict[str, float]:
        matches, emitted = result
        return {
            "tokens": len(matches),
            "agreement": round(float(matches.mean()), 3),
            "mean_acceptance_length": round(float(np.mean(emitted)), 2),
        }

    return {
        "chain": CHAIN,
        "dialogue": figures(dialogue),
        "code": figures(code),
        "dialogue_by_source": {source: figures(result) for source, result in sorted(by_source.items())},
    }


def chat_samples(target: Model) -> list[list[dict[str, str]]]:
    """Greedy answers to the fixed chats above."""
    chats = []
    for questions in CHATS:
        messages: list[dict[str, str]] = []
        for question in questions:
            messages.append({"role": "user", "content": question})
            answer = target.greedy(target.encode(demo_data.render_chat(messages, prompt=True)), MAX_ANSWER)
            messages.append({"role": "assistant", "content": target.decode(answer[answer != IM_END]).strip()})
        chats.append(messages)
    return chats


def tokenizer_parity(target: Model, work: Path) -> bool:
    """Whether llama.cpp splits the probe texts exactly as the tokenizer that was trained."""
    probes = json.loads((work / "probes.json").read_text())
    return all(target.encode(probe["text"]).tolist() == probe["ids"] for probe in probes)


def report(work: Path, out: Path) -> None:
    """Measure the pair, write `figures.json` and render the model card from it."""
    paths = {name: out / f"demo-{name}-q8_0.gguf" for name in ("target", "draft")}
    models = {name: Model(path) for name, path in paths.items()}
    sets = {}
    for kind in ("dialogue", "code"):
        with np.load(work / f"valid-{kind}.npz") as saved:
            sets[kind] = saved["tokens"].astype(np.int64)
    figures: dict[str, object] = {}
    for name, model in models.items():
        with np.load(work / f"{name}-weights.npz") as saved:
            facts, shape = json.loads(str(saved["facts"])), json.loads(str(saved["shape"]))
            exact = Model(work / f"demo-{name}-f32.gguf")
            difference = float(np.abs(exact.logits(saved["probe_tokens"]) - saved["probe_logits"]).max())
            parameters = sum(saved[key].size for key in saved.files if key.endswith(".weight"))
        figures[name] = {
            "file": paths[name].name,
            "bytes": paths[name].stat().st_size,
            "parameters": parameters,
            "shape": shape,
            "context": model.llama._model.n_ctx_train(),
            "training": {**facts, "minutes": round(facts["minutes"], 1)},
            "largest_logit_difference_from_torch": round(difference, 5),
            "validation_loss": validation_figures(model, sets),
        }
    target, draft = models["target"], models["draft"]
    figures["greedy_agreement"] = agreement_figures(target, draft, work)
    figures["tokenizer_matches_llama_cpp"] = tokenizer_parity(target, work)
    figures["samples"] = {
        "chats": chat_samples(target),
        "code": [
            {"prompt": prompt, "continuation": target.decode(target.greedy(target.encode(prompt), 80, (END_OF_TEXT,)))}
            for prompt in CODE_PROMPTS
        ],
    }
    (out / "figures.json").write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (out / "README.md").write_text(demo_card.render(figures), encoding="utf-8")
    print(json.dumps({key: value for key, value in figures.items() if key != "samples"}, indent=1))

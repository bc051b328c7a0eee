"""Train, export and measure the demo model pair bundled with lcspec.

    python scripts/train_demo.py all --data DIR --out models --work WORK --llama-python .venv/bin/python

Stages, each resumable and each reading only what the one before left in the work folder:

    tokenizer   a byte-level BPE tokenizer; tokenized texts
    target      the target, trained on the texts            (torch)
    draft       the draft, distilled from the target        (torch)
    export      GGUF files, quantized by llama.cpp          (llama_cpp, gguf; no torch)
    report      figures measured on the GGUF files          (llama_cpp; no torch)

Training needs `torch`, `tokenizers` and `numpy`. Schedules run by the clock: the learning rate follows the share of the
given minutes that has passed, so a run ends on time on any machine and is only better or worse for it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import demo_data
import numpy as np

PEAK_RATE, DRAFT_PEAK_RATE = 2e-3, 3e-3
SHARES = {"dialogue": 0.74, "code": 0.24, "prose": 0.02}
ROWS, LENGTH = 8, 512
# The last part of the training uses rows twice as long, so that the models know positions up to 1024.
LONG_FROM, LONG_ROWS, LONG_LENGTH = 0.8, 4, 1024
SAMPLED_SHARE = 0.5  # of the draft's rows: text the target sampled itself

PROBE_TEXTS = (
    "Hi, can I get a large iced latte with oat milk, please?",
    "What's 12 * 34 + 5,678? I'd say it's 6086!",
    "def add(a: int, b: int = 10) -> int:\n    return a + b\n\n\nclass Foo:\n\tpass\n",
    "Grüße aus Köln, “naïve” café — 日本語, русский, हिन्दी, العربية",
    "emoji 😀👩‍👩‍👧🏽 and spaces   at the end   \n\n  ",
    "<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n",
    "WE'RE DON'T I'LL they'd _private __init__ foo_bar2 3.14159 x==y!=z //comment\r\nCRLF\r\n",
)


def tokenizer_stage(args: argparse.Namespace) -> None:
    """Train the tokenizer, tokenize the corpus, and keep probes for the parity check against llama.cpp."""
    from tokenizers import Tokenizer

    corpus = demo_data.load_corpus(args.data)
    path = args.work / "tokenizer.json"
    demo_data.train_tokenizer(corpus, path)
    tokenizer = Tokenizer.from_file(str(path))
    probes = [{"text": text, "ids": tokenizer.encode(text).ids} for text in PROBE_TEXTS]
    (args.work / "probes.json").write_text(json.dumps(probes))
    for split, parts in (("train", corpus.train), ("valid", corpus.valid)):
        for kind, documents in parts.items():
            encoded = demo_data.encode_documents(documents, path)
            save_documents(args.work / f"{split}-{kind}.npz", encoded, [d.source for d in documents])
            characters = sum(len(d.text) for d in documents)
            tokens = sum(map(len, encoded))
            density = characters / max(tokens, 1)
            print(f"{split} {kind}: {len(documents)} documents, {tokens} tokens, {density:.2f} characters a token")


def save_documents(path: Path, documents: list[np.ndarray], sources: list[str]) -> None:
    """Token documents in one file: all tokens, and where each document ends."""
    ends = np.cumsum([len(d) for d in documents])
    np.savez(path, tokens=np.concatenate(documents), ends=ends, sources=np.array(sources))


def load_documents(path: Path) -> list[np.ndarray]:
    """The reverse of `save_documents`, without the sources."""
    with np.load(path) as saved:
        return np.split(saved["tokens"], saved["ends"][:-1])


def decks(work: Path, seed: int) -> dict[str, demo_data.Deck]:
    """The shuffled training texts by kind. Code is read on and on; half the other rows start with a new document."""
    fresh = {"dialogue": 0.5, "code": 0.05, "prose": 0.5}
    return {kind: demo_data.Deck(load_documents(work / f"train-{kind}.npz"), seed, fresh[kind]) for kind in SHARES}


def validation(work: Path) -> dict[str, np.ndarray]:
    """A fixed set of validation rows by kind."""
    return {
        kind: demo_data.cut_rows(np.concatenate(load_documents(work / f"valid-{kind}.npz")), LENGTH, 64)
        for kind in ("dialogue", "code")
    }


def dealt_mixture(args: argparse.Namespace, name: str) -> demo_data.Mixture:
    """The training rows of one model. A resumed run must not deal the same rows again, so its seed is another."""
    checkpoint = args.work / f"{name}.pt"
    seed = args.seed + (int(checkpoint.stat().st_mtime) if checkpoint.exists() else 0)
    return demo_data.Mixture(decks(args.work, seed), SHARES, seed)


def row_plan(progress: float) -> tuple[int, int]:
    """Rows of a batch and their length, at a share of the training time."""
    return (ROWS, LENGTH) if progress < LONG_FROM else (LONG_ROWS, LONG_LENGTH)


def target_stage(args: argparse.Namespace) -> None:
    """Train the target on dialogues, code and a little prose."""
    import torch
    from demo_model import TARGET_SHAPE, DemoModel
    from demo_training import cross_entropy, evaluate_losses, train

    torch.manual_seed(args.seed)
    model = DemoModel(TARGET_SHAPE)
    mixture = dealt_mixture(args, "target")
    sets = validation(args.work)

    def batch_of(progress: float) -> np.ndarray:
        return mixture.batch(*row_plan(progress))

    def loss_of(rows: np.ndarray):
        return cross_entropy(model, rows)

    def evaluate() -> dict[str, float]:
        return evaluate_losses(model, sets)

    train(model, "target", args.target_minutes, PEAK_RATE, batch_of, loss_of, evaluate, args.work, args.threads)


def load_model(path: Path, shape):
    """A model from a training checkpoint, for inference."""
    import torch
    from demo_model import DemoModel

    model = DemoModel(shape)
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
    return model.eval().requires_grad_(False)


def sampled_texts(target, work: Path, seed: int, count: int) -> list[np.ndarray]:
    """Text the target samples from the openings of training documents, half of it greedily; kept in the work folder."""
    import torch
    from demo_model import sample_texts

    path = work / "sampled.npy"
    if path.exists():
        return list(np.load(path))
    random = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    dialogues, code = (load_documents(work / f"train-{kind}.npz") for kind in ("dialogue", "code"))
    batches = []
    for _ in range(max(1, count // 256)):
        prompts = [opening(dialogues[i], random) for i in random.integers(len(dialogues), size=208)]
        prompts += [code[i][: random.integers(16, 200)] for i in random.integers(len(code), size=48)]
        heat = np.where(random.random(256) < 0.5, 0.0, random.uniform(0.5, 1.0, 256))
        batches.append(sample_texts(target, prompts, LENGTH // 2 + 1, heat, generator))
        print(f"sampled {len(batches) * 256} texts")
    np.save(path, np.concatenate(batches))
    return list(np.load(path))


def opening(document: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A dialogue up to and including the header of one of its first assistant turns, at most 128 tokens."""
    starts = np.flatnonzero(document == demo_data.SPECIAL_TOKENS.index(demo_data.IM_START))
    turns = starts[1::2]
    if not len(turns):
        return document[:32]
    header = turns[random.integers(min(3, len(turns)))] + 3  # <|im_start|>, "assistant", newline
    return document[: min(header, 128)]


def draft_stage(args: argparse.Namespace) -> None:
    """Distil the draft from the target: KL divergence on data and on text the target sampled itself (DistillSpec)."""
    import torch
    from demo_model import DRAFT_SHAPE, TARGET_SHAPE, DemoModel
    from demo_training import evaluate_losses, train

    torch.manual_seed(args.seed)
    target = load_model(args.work / "target.pt", TARGET_SHAPE)
    mixture = dealt_mixture(args, "draft")
    sampled = np.stack(sampled_texts(target, args.work, args.seed, args.samples)).astype(np.int64)
    random = np.random.default_rng(mixture.random.randrange(2**32))
    draft = DemoModel(DRAFT_SHAPE)
    draft.start_from(target)
    sets = validation(args.work)

    def divergence(rows: np.ndarray):
        tokens = torch.from_numpy(rows)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            teacher = torch.log_softmax(target(tokens).float().flatten(0, 1), -1)
        with torch.autocast("cpu", torch.bfloat16):
            student = torch.log_softmax(draft(tokens).float().flatten(0, 1), -1)
        return torch.nn.functional.kl_div(student, teacher, reduction="batchmean", log_target=True)

    def batch_of(progress: float) -> np.ndarray:
        if random.random() < SAMPLED_SHARE:
            return sampled[random.integers(len(sampled), size=ROWS * LENGTH // sampled.shape[1]), :-1]
        return mixture.batch(*row_plan(progress))[:, :-1]

    def evaluate() -> dict[str, float]:
        return evaluate_losses(draft, sets)

    train(draft, "draft", args.draft_minutes, DRAFT_PEAK_RATE, batch_of, divergence, evaluate, args.work, args.threads)


def export_stage(args: argparse.Namespace) -> None:
    """Write F32 GGUF files to the work folder and Q8_0 ones to the output folder."""
    import demo_export

    demo_export.export_pair(args.work, args.out, args.models)


def report_stage(args: argparse.Namespace) -> None:
    """Measure the exported pair through llama.cpp and write figures.json and the model card."""
    import demo_report

    demo_report.report(args.work, args.out)


STAGES = {
    "tokenizer": tokenizer_stage, "target": target_stage, "draft": draft_stage,
    "export": export_stage, "report": report_stage,
}  # fmt: skip
LLAMA_STAGES = ("export", "report")

# glibc returns large blocks to the system at once and faults their pages in again at every step, which costs a quarter
# of the speed; these settings, read when a process starts, make it keep them.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**33), "MALLOC_TRIM_THRESHOLD_": str(2**33)}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train, export and measure the demo model pair.")
    parser.add_argument("stage", choices=[*STAGES, "all"])
    parser.add_argument("--data", type=Path, help="folder with train/dialogues.jsonl and train/tinyshakespeare.txt")
    parser.add_argument("--out", type=Path, default=Path("models"), help="where the finished GGUF files go")
    parser.add_argument("--work", type=Path, required=True, help="checkpoints and other intermediate files")
    parser.add_argument("--target-minutes", type=float, default=55)
    parser.add_argument("--draft-minutes", type=float, default=14)
    parser.add_argument("--samples", type=int, default=1024, help="texts sampled from the target to distil from")
    parser.add_argument("--models", nargs="+", choices=["target", "draft"], default=["target", "draft"],
                        help="what to export")  # fmt: skip
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--llama-python", help="interpreter with llama_cpp for the stages export and report")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.stage in ("tokenizer", "all") and args.data is None:
        sys.exit("train_demo.py: the tokenizer stage needs --data")
    if args.stage in ("target", "draft", "all") and set(KEEP_MEMORY) - set(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_MEMORY})
    for stage in STAGES if args.stage == "all" else [args.stage]:
        if stage in LLAMA_STAGES and args.llama_python:
            command = [args.llama_python, __file__, stage, "--work", args.work, "--out", args.out]
            subprocess.run([*map(str, command), "--models", *args.models], check=True)
            continue
        if stage in ("target", "draft"):
            import torch

            torch.set_num_threads(args.threads)
        STAGES[stage](args)


if __name__ == "__main__":
    main()

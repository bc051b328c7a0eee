"""The training loop of the demo models: a schedule by the clock, and gradients by threads that share out a batch."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from demo_model import DemoModel

FINAL_SHARE, WARMUP_STEPS = 0.02, 100
PART_TOKENS = 1024  # of a batch, given to a thread at a time
CHECKPOINT_SECONDS, EVALUATE_SECONDS = 120, 600


def log(message: str) -> None:
    """One line with the time of day."""
    print(time.strftime("%H:%M:%S"), message, flush=True)


@dataclass
class Clock:
    """Training time, counted over resumed runs."""

    total: float
    before: float = 0.0

    def __post_init__(self) -> None:
        self.started = time.monotonic()

    @property
    def elapsed(self) -> float:
        return self.before + time.monotonic() - self.started

    @property
    def progress(self) -> float:
        return min(1.0, self.elapsed / self.total)


def learning_rate(peak: float, step: int, progress: float) -> float:
    """Linear warm-up by steps, then a cosine by the share of the time that has passed."""
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return peak * min(1.0, (step + 1) / WARMUP_STEPS) * (FINAL_SHARE + (1 - FINAL_SHARE) * cosine)


def gradients(model: DemoModel, batch: np.ndarray, loss_of: Callable, pool: ThreadPoolExecutor, threads: int) -> float:
    """Set the gradients of the mean loss of a batch, and return the loss.

    Every thread takes small parts of the batch until none is left. Compared with threads inside each operation, a core
    that other work keeps busy then does fewer parts instead of holding up the other cores.
    """
    parameters = list(model.parameters())
    count = max(1, batch.size // PART_TOKENS)
    parts = iter([part for part in np.array_split(batch, min(count, len(batch))) if len(part)])
    lock = threading.Lock()

    def work() -> tuple[list, float]:
        torch.set_num_threads(1)  # of this thread only
        sums, total = [], 0.0
        while True:
            with lock:
                part = next(parts, None)
            if part is None:
                return sums, total
            loss = loss_of(part) * (len(part) / len(batch))
            found = torch.autograd.grad(loss, parameters)
            total += loss.item()
            if sums:
                torch._foreach_add_(sums, found)
            else:
                sums = list(found)

    results = [job.result() for job in [pool.submit(work) for _ in range(threads)]]
    shares = [sums for sums, _ in results if sums]
    for other in shares[1:]:
        torch._foreach_add_(shares[0], other)
    for parameter, gradient in zip(parameters, shares[0], strict=True):
        parameter.grad = gradient
    return sum(total for _, total in results)


def train(
    model: DemoModel,
    name: str,
    minutes: float,
    peak: float,
    batch_of: Callable[[float], np.ndarray],
    loss_of: Callable[[np.ndarray], torch.Tensor],
    evaluate: Callable[[], dict[str, float]],
    work: Path,
    threads: int,
) -> None:
    """The loop both models share: AdamW, clipping, clock-driven schedule, resumable checkpoints.

    `batch_of(progress)` gives a fresh batch of rows, `loss_of(rows)` the mean loss of some of them, and `evaluate()` a
    dict of figures.
    """
    matrices = [p for p in model.parameters() if p.dim() == 2]
    norms = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=True)
    path = work / f"{name}.pt"
    pool = ThreadPoolExecutor(threads)
    clock, step, tokens = Clock(minutes * 60), 0, 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        clock, step, tokens = Clock(minutes * 60, state["elapsed"]), state["step"], state["tokens"]
        log(f"{name}: resumed at step {step}, {clock.elapsed / 60:.1f} minutes")

    def save(**facts: object) -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        temporary = path.with_suffix(".tmp")
        torch.save(state | {"elapsed": clock.elapsed, "step": step, "tokens": tokens}, temporary)
        temporary.replace(path)
        model.save_weights(work / f"{name}-weights.npz", steps=step, tokens=tokens, minutes=clock.elapsed / 60, **facts)

    saved = evaluated = clock.elapsed
    while (progress := clock.progress) < 1:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(peak, step, progress)
        batch = batch_of(progress)
        loss = gradients(model, batch, loss_of, pool, threads)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, tokens = step + 1, tokens + batch.size
        if step % 50 == 0:
            speed = tokens / clock.elapsed
            log(f"{name} step {step} {clock.elapsed / 60:.1f} min loss {loss:.3f} {speed:.0f} tokens/s")
        if clock.elapsed - evaluated > EVALUATE_SECONDS:
            log(f"{name} {evaluate()}")
            evaluated = clock.elapsed
        if clock.elapsed - saved > CHECKPOINT_SECONDS:
            save(finished=False)
            saved = clock.elapsed
    save(finished=True)
    log(f"{name} finished: {evaluate()}")


def cross_entropy(model: DemoModel, rows: np.ndarray) -> torch.Tensor:
    """Mean next-token loss of a batch of rows, in nats."""
    tokens = torch.from_numpy(rows)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def evaluate_losses(model: DemoModel, sets: dict[str, np.ndarray]) -> dict[str, float]:
    """Validation loss by kind."""
    with torch.no_grad():
        return {
            kind: round(float(np.mean([cross_entropy(model, part).item() for part in np.array_split(rows, 8)])), 4)
            for kind, rows in sets.items()
        }

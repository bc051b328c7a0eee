"""Short texts about answers, figures and sizes (no Textual)."""

from __future__ import annotations

from pathlib import Path

from lcspec.tui.store import Message

REASONS = {
    "stop": "finished",
    "length": "cut at the token limit (/continue goes on)",
    "context": "ended: the context is full",
    "cancelled": "stopped by you",
    "interrupted": "interrupted: the program ended while this was written (/continue goes on)",
    "edited": "edited by you",
}
# Of answers that can be continued.
UNFINISHED = ("length", "context", "cancelled", "interrupted", "edited")
GAUGE = 8


def outcome(message: Message) -> str:
    """The line below an answer: why it ended, and its figures."""
    if message.state == "failed":
        return "failed"
    parts = [REASONS.get(message.stop_reason or "", message.stop_reason or "")]
    if message.tokens:
        parts.append(f"{message.tokens} tokens")
    elif message.tokens == 0 and not message.text:
        parts.append("an empty answer")
    rate = message.stats.get("tokens_per_second")
    if isinstance(rate, (int, float)) and rate > 0:
        parts.append(f"{rate:.1f} tokens/s")
    length = message.stats.get("mean_acceptance_length")
    if isinstance(length, (int, float)):
        parts.append(steps(length))
    if message.seed is not None:
        parts.append(f"seed {message.seed}")
    return " · ".join(p for p in parts if p)


def size(n_bytes: float) -> str:
    """Bytes for people: 668 MB."""
    for unit in ("B", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" or n_bytes >= 10 else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} GB"


def gauge(fraction: float, width: int = GAUGE) -> str:
    """A bar that needs no colour."""
    filled = round(min(1.0, max(0.0, fraction)) * width)
    return "█" * filled + "░" * (width - filled)


def seconds(value: float) -> str:
    """A signed time: +1.2 s, -340 ms."""
    return f"{value:+.1f} s" if abs(value) >= 1 else f"{value * 1e3:+.0f} ms"


def saved(value: float) -> str:
    """What drafting brought: `saved 1.2 s`, or `lost 340 ms`."""
    return f"{'saved' if value >= 0 else 'lost'} {seconds(abs(value)).lstrip('+')}"


def name_of(path: Path, inside: str | None) -> str:
    """What people call a model: its file's name, which is how they find it. Ollama names files by their digests: there
    it is the name `inside` the file."""
    return inside if inside and path.name.startswith("sha256-") else path.name.removesuffix(".gguf")


def sentence(text: str) -> str:
    """An error as a sentence of its own; names of files and settings at its beginning stay as they are."""
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    return text[:1].upper() + text[1:] if first.rstrip(",:;").isalpha() else text


def steps(value: float) -> str:
    """`1.85 tokens a step`; "" where that is one, more or less (the end of an answer takes a step and is no token)."""
    return f"{value:.2f} tokens a step" if value > 1.005 else ""


def words(text: str) -> str:
    """`12 words`."""
    n = len(text.split())
    return f"{n} word{'' if n == 1 else 's'}"

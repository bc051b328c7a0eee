"""Prompt files: JSON lines with `id`, `category` and `turns` (ours), or `question_id` (Spec-Bench)."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path


class PromptError(Exception):
    """The prompt file cannot be used; the message says why."""


@dataclass(frozen=True)
class Prompt:
    """One prompt; `text` is what every program gets, `n_tokens` its length for the target."""

    id: str
    category: str
    text: str
    n_tokens: int = 0


def read_prompts(path: Path, categories: tuple[str, ...] = ()) -> list[Prompt]:
    """The first turn of every prompt in `path`, of the given categories if any are given.

    Raises:
        PromptError: the file cannot be read, a line is malformed, or nothing is left.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"cannot read the prompts in {path}: {error}") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            name = str(row["id"] if "id" in row else row["question_id"])
            prompt = Prompt(name, str(row.get("category") or row.get("set") or "all"), str(row["turns"][0]))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise PromptError(
                f"{path}, line {number} is not a prompt ({error}): each line is a JSON object with id, category, turns"
            ) from error
        if not categories or prompt.category in categories:
            prompts.append(prompt)
    if not prompts:
        raise PromptError(f"{path} holds no prompts" + (f" of {', '.join(categories)}" if categories else ""))
    return prompts


def balanced(prompts: list[Prompt]) -> list[Prompt]:
    """The same prompts with the categories taking turns, so that any beginning of the list is balanced."""
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    rounds = itertools.zip_longest(*groups.values())
    return [prompt for turn in rounds for prompt in turn if prompt is not None]

"""Prompts for the target, as token ids: written where llama-cpp-python is, read where the GPU is."""

from __future__ import annotations

import ast
import itertools
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lcspec.llama import Model
from lcspec.llama.template import ChatTemplate
from lcspec.training.prompts import MARK, Source

from .prompt_file import Prompts

# The longest prompt, in tokens.
LONGEST = 320
REPLY = "\ue001"  # stands for an answer in a rendered template
ABOUT_CODE = (
    "Complete this Python function.\n\n{head}",
    "Explain what this code does.\n\n```python\n{code}\n```",
    "Refactor this function so that it is easier to read. Answer with the whole function.\n\n```python\n{code}\n```",
    "Add type hints and a docstring to this function.\n\n```python\n{code}\n```",
    "Write a unit test for this function.\n\n{code}",
    "{head}",
)
LATER = (
    "Summarize that in one sentence.",
    "Summarize your answer in three bullet points.",
    "Translate that to German.",
    "Translate that to French.",
    "Translate your last answer to Spanish.",
    "Rewrite it in simpler words.",
    "Rewrite that as a formal email.",
    "Give me an example.",
    "Give me another example, step by step.",
    "Explain the second point in more detail.",
    "Why?",
    "Are you sure? Check it again step by step.",
    "Turn that into a table.",
    "Write it as a short story.",
    "Write a Python program for that.",
    "Can you fix the mistakes in it and show the whole corrected version?",
    "List the most important words in it.",
    'Answer as JSON with the keys "title", "summary" and "points".',
    "What are the advantages and disadvantages?",
    "Who would disagree, and what would they say?",
    "Make it shorter.",
    "Make it longer and add more details.",
    "Rewrite it as a dialogue between two friends.",
    "What is the conclusion?",
    "Repeat your answer, but replace every number by a word.",
    "Extract all names, places and numbers from it.",
    "Write a title and a headline for it.",
    "Write three questions about that with their answers.",
    "Thank you! What should I read next?",
    "Explain it to a child of five years.",
)
PASSAGE = "Summarize:\n{text}", "Continue this text.\n\n{text}", "Rewrite this in modern English:\n\n{text}"


def make(model: Model, sources: list[Source], plain: list[str], code: int, seed: int) -> Prompts:
    """Prompts for a chat model.

    Args:
        sources: conversations, whose first question is answered.
        plain: texts, of which pieces are asked about.
        code: how many questions about functions.
    """
    rng = np.random.default_rng(seed)
    template, vocab = ChatTemplate(model), model.vocab
    user, assistant = {"role": "user", "content": MARK}, {"role": "assistant", "content": REPLY}
    opening, between, _ = template.render([user, assistant, user]).split(MARK)
    asked, rest = between.split(REPLY)

    def ids(text: str) -> list[int]:
        return list(template.ids(vocab, text))

    def questions() -> Iterator[str]:
        for source in sources:  # later ones make no sense alone
            yield from [str(m["content"]) for m in source.messages if m["role"] == "user"][:1]
        yield from itertools.islice(_about_code(rng), code)
        for text in plain:
            pieces = [text[i : i + 700] for i in range(0, len(text), 700)]
            yield from (PASSAGE[i % len(PASSAGE)].format(text=piece) for i, piece in enumerate(pieces))

    first = [ids(text) for text in questions() if text.strip()]
    first = [tokens for tokens in first if 3 <= len(tokens) <= LONGEST]
    end, *answered = ids(rest)
    return Prompts(end, ids(opening), ids(asked), answered, first, [ids(text) for text in LATER])


def _about_code(rng: np.random.Generator) -> Iterator[str]:
    """Questions about functions of the interpreter's own library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [p for p in sorted(root.rglob("*.py")) if "site-packages" not in p.parts and "test" not in p.parts]
    made = 0
    for at in rng.permutation(len(files)).tolist():
        try:
            text = files[at].read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or not 4 <= len(node.body) + 3 <= 40:
                continue
            code = ast.get_source_segment(text, node) or ""
            if not 80 <= len(code) <= 1000:
                continue
            lines = code.splitlines()
            head = "\n".join(lines[: 2 + len(ast.get_docstring(node, clean=False) or "") // 60])
            yield ABOUT_CODE[made % len(ABOUT_CODE)].format(code=code, head=head)
            made += 1

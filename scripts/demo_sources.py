"""The texts the demo models were trained on, for the model card and the metadata of the files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A text the models were trained on."""

    name: str
    author: str
    licence: str
    url: str
    part: str


SOURCES = (
    Source(
        "Taskmaster-4", "Google", "CC BY 4.0", "https://github.com/google-research-datasets/Taskmaster", "coffee orders"
    ),
    Source(
        "Synthetic-Persona-Chat",
        "Google",
        "CC BY 4.0",
        "https://github.com/google-research-datasets/Synthetic-Persona-Chat",
        "test and valid splits",
    ),
    Source(
        "MBPP",
        "Google Research",
        "CC BY 4.0",
        "https://github.com/google-research/google-research/tree/master/mbpp",
        "train and prompt splits",
    ),
    Source("GSM8K", "OpenAI", "MIT", "https://github.com/openai/grade-school-math", "train split"),
    Source(
        "Self-Instruct", "Yizhong Wang et al.", "Apache-2.0", "https://github.com/yizhongw/self-instruct", "seed tasks"
    ),
    Source(
        "Python standard library",
        "Python Software Foundation",
        "PSF-2.0",
        "https://github.com/python/cpython",
        "source files, without tests",
    ),
    Source(
        "tinyshakespeare", "William Shakespeare", "public domain", "https://github.com/karpathy/char-rnn", "all of it"
    ),
)

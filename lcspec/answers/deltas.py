"""What a reader finds in an answer, piece by piece."""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True)
class Content:
    """Text for the user. `at`: where it stands in what the reader was fed, in characters."""

    text: str
    at: int = -1


@dataclass(frozen=True)
class Reasoning:
    """What the model thinks before it answers. `at` as in Content."""

    text: str
    at: int = -1


@dataclass(frozen=True)
class CallStart:
    """The `index`-th call of the answer begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """More of the `index`-th call's arguments (JSON text)."""

    index: int
    text: str


Delta = Union[Content, Reasoning, CallStart, CallArguments]

LETTERS = string.ascii_letters + string.digits
# Mistral's templates refuse ids of another length.
MISTRAL_ID = 9


def new_call_id(short: bool = False) -> str:
    """An id for a call; `short`: nine letters and digits, as Mistral's models write them."""
    if short:
        return "".join(secrets.choice(LETTERS) for _ in range(MISTRAL_ID))
    return f"call_{secrets.token_hex(12)}"

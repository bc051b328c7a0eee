"""What llama-server's own endpoints answer, for /openapi.json (see schemas_answers)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from lcspec.server.schemas_answers import Answer, Timings


class NativeAnswer(Answer):
    """llama-server's answer to a prompt."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    prompt: str
    truncated: bool
    stop_type: Literal["none", "eos", "limit", "word"]
    stopping_word: str
    tokens_cached: int
    timings: Timings


class Props(Answer):
    """What is served."""

    default_generation_settings: dict[str, Any]
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    modalities: dict[str, bool]
    build_info: str


class SlotState(Answer):
    """What a slot does."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool = Field(description="Whether it runs a request.")


class NativeEmbedded(Answer):
    """A text's vector, alone in a list: llama-server may have one for every token."""

    index: int
    embedding: list[list[float]]


class TeiRanked(Answer):
    """A text's place, in the form of Text Embeddings Inference."""

    index: int
    score: float
    text: str | None = None


class LoraAdapter(Answer):
    """An adapter and how much it changes."""

    id: int
    path: str
    scale: float

"""What the OpenAI endpoints answer, for /openapi.json. Answers are written by hand where they are made; these models
only describe them (tests hold the two together)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

STREAM = "text/event-stream"
# What a stream's events consist of; `data` is JSON, or `[DONE]`.
EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}


class Answer(BaseModel):
    """A JSON object; it may hold more than is listed."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


def answered(model: Any, stream: str | None = None) -> dict[int | str, dict[str, Any]]:
    """The `responses` of an endpoint that answers with `model`, or with a stream of this media type."""
    said: dict[str, Any] = {"model": model, "description": "The answer."}
    if stream is not None:
        said["content"] = {stream: {"schema": EVENT if stream == STREAM else {"type": "string"}}}
    return {200: said}


class Timings(Answer):
    """How the time went, and what speculation did."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int
    by_drafter: dict[str, dict[str, int]]
    target_steps: int
    mean_acceptance_length: float
    seed: int
    lossless: bool


class PromptDetails(Answer):
    """Of the prompt's tokens."""

    cached_tokens: int


class CompletionDetails(Answer):
    """Of the answer's tokens."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Spent(Answer):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class CalledFunction(Answer):
    """A function's name and its arguments as JSON text."""

    name: str
    arguments: str


class Called(Answer):
    """A call."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(Answer):
    """What the model said."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[Called] | None = None


class ChatChoice(Answer):
    """One of the answers."""

    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(Answer):
    """The answer to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Spent
    timings: Timings


class TextChoice(Answer):
    """One of the texts."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]


class TextCompletion(Answer):
    """What comes after a text."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Spent
    timings: Timings


class ResponseObject(Answer):
    """The Responses API's answer."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "in_progress"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None


class Counted(Answer):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class Embedded(Answer):
    """A vector: numbers, or base64 of float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(Answer):
    """Vectors."""

    object: Literal["list"]
    data: list[Embedded]
    model: str
    usage: Counted


class Ranked(Answer):
    """A document's place."""

    index: int
    relevance_score: float


class Ranking(Answer):
    """Documents, the best first."""

    model: str
    results: list[Ranked]
    usage: Counted


class ModelStatus(Answer):
    """What state a model is in."""

    value: Literal["unloaded", "loading", "loaded", "unloading", "failed", "restarting"]
    pinned: bool
    progress: float | None = None
    error: str | None = None


class ModelObject(Answer):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    status: ModelStatus
    meta: dict[str, Any]


class ModelObjects(Answer):
    """All models."""

    object: Literal["list"]
    data: list[ModelObject]


class Done(Answer):
    """It was done."""

    success: bool


class Health(Answer):
    """Whether the server serves, and how busy it is."""

    status: Literal["ok"]
    slots: int
    running: int
    waiting: int
    restarts: int | None = None
    last_restart: str | None = None
    models: dict[str, str] | None = None


class TokenPiece(Answer):
    """A token and its text, or its bytes where they are a part of a character."""

    id: int
    piece: str | list[int]


class Tokenized(Answer):
    """Token ids, with their texts if asked for."""

    tokens: list[int | TokenPiece]


class Detokenized(Answer):
    """A text."""

    content: str


class Prompted(Answer):
    """A prompt."""

    prompt: str


class AnthropicMessageObject(Answer):
    """Anthropic's answer."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    usage: dict[str, int]


class TokenCount(Answer):
    """Tokens of a prompt."""

    input_tokens: int


class InputTokens(TokenCount):
    """Tokens of a prompt, as the Responses API says it."""

    object: Literal["response.input_tokens"]


class OllamaEnd(Answer):
    """What the last line of Ollama's answers says."""

    model: str
    created_at: str
    done: bool
    done_reason: str
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class OllamaChatAnswer(OllamaEnd):
    """Ollama's answer to a conversation."""

    message: dict[str, Any]


class OllamaGenerateAnswer(OllamaEnd):
    """Ollama's answer to a prompt."""

    response: str
    thinking: str | None = None


class OllamaEmbedAnswer(Answer):
    """Vectors."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaVersion(Answer):
    """A version."""

    version: str


class OllamaModel(Answer):
    """A model as Ollama describes it."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: dict[str, Any]
    expires_at: str | None = None
    size_vram: int | None = None
    context_length: int | None = None


class OllamaModels(Answer):
    """Models as Ollama describes them."""

    models: list[OllamaModel]


class OllamaShown(Answer):
    """What a model can do."""

    modelfile: str
    parameters: str
    template: str
    details: dict[str, Any]
    model_info: dict[str, Any]
    capabilities: list[str]

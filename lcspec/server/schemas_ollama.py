"""Bodies of Ollama's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from lcspec.server.schemas import INT32, Echoed, Int, Sampling, Steered, Stop, Strict, Tokens
from lcspec.server.schemas_chat import ToolChoice, Tools


class Options(Sampling):
    """Sampling and limits."""

    num_predict: Annotated[Int, Field(ge=-2, le=INT32)] | None = None
    stop: Stop | None = None


class OllamaFunction(Echoed):
    """A call's function; its arguments are an object."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class OllamaCall(Echoed):
    """A call the assistant made earlier."""

    function: OllamaFunction
    id: str | None = None


class OllamaMessage(Echoed):
    """A message of the conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: Annotated[list[OllamaCall], Field(max_length=4096)] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaAsking(Steered):
    """What /api/chat and /api/generate share. Both stream unless told otherwise."""

    idle = ("keep_alive",)
    stream: bool | None = True
    options: Options | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None
    keep_alive: str | float | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="Given to the model's template.")

    @property
    def unloads(self) -> bool:
        """Whether the model is to go."""
        return self.keep_alive in (0, "0", "0s", "0m", "0h")


class OllamaChatBody(OllamaAsking):
    """POST /api/chat."""

    messages: Annotated[list[OllamaMessage], Field(max_length=4096)] = Field(default_factory=list)
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None  # as in the OpenAI API


class OllamaGenerateBody(OllamaAsking):
    """POST /api/generate."""

    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    images: list[str] | None = None
    context: Tokens | None = None


class OllamaEmbedBody(Strict):
    """POST /api/embed and /api/embeddings."""

    idle = ("keep_alive",)
    model: str | None = None
    input: str | Annotated[list[str], Field(max_length=2048)] | None = None
    prompt: str | None = None
    dimensions: Annotated[Int, Field(ge=1, le=INT32)] | None = None
    truncate: bool | None = None
    keep_alive: str | float | None = None
    options: Options | None = None


class OllamaShowBody(Strict):
    """POST /api/show."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None

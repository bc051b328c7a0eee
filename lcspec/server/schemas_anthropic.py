"""The body of POST /v1/messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from lcspec.server.schemas import INT32, Echoed, Int, Steered, Stops, Strict
from lcspec.server.schemas_chat import MAX_TOOLS, ContentPart, Thinking, unread


class Source(Echoed):
    """What a document holds."""

    type: str | None = None
    data: str | None = None
    content: str | Annotated[list[ContentPart], Field(max_length=4096)] | None = None


class Block(Echoed):
    """A part of a message."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    source: str | Source | None = None
    title: str | None = None
    context: str | None = None

    @property
    def readable(self) -> bool:
        """Whether there is text in it."""
        if self.type == "document":
            return isinstance(self.source, Source) and self.source.type in ("text", "content")
        return self.type in ("text", "search_result")


Blocks = Annotated[list[Block], Field(max_length=4096)]


class AnthropicMessage(Echoed):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Blocks

    def left_out(self) -> tuple[str, ...]:
        """See Strict."""
        if not self.has_results:
            return ()
        assert isinstance(self.content, list)
        parts = [block for block in self.content if block.type != "tool_result"]
        for block in self.content:
            parts += block.content if block.type == "tool_result" and isinstance(block.content, list) else []
        return unread("content", parts)

    @property
    def has_results(self) -> bool:
        """Whether it is what tools gave back. Claude Code puts a PDF that a tool has read beside the result."""
        return isinstance(self.content, list) and any(block.type == "tool_result" for block in self.content)


class AnthropicTool(Echoed):
    """A tool with a schema; those that the API has of its own (a search, a shell) are left out."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None

    def left_out(self) -> tuple[str, ...]:
        """See Strict."""
        return () if self.type in (None, "custom") or self.input_schema is not None else ("type",)


class AnthropicChoice(Echoed):
    """Which tools may or must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class AnthropicFormat(Strict):
    """What the answer has to look like."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Strict):
    """How to answer."""

    effort: Annotated[str, Field(max_length=32)] | None = None
    format: AnthropicFormat | None = None


class CountBody(Steered):
    """POST /v1/messages/count_tokens."""

    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=4096)]
    system: str | Blocks | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: AnthropicFormat | None = Field(default=None, description="The older place of output_config.format.")
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="Given to the model's template.")
    # Known to the API and without a meaning here.
    betas: list[str] | None = None
    context_management: dict[str, Any] | None = None


class AnthropicBody(CountBody):
    """POST /v1/messages."""

    max_tokens: Annotated[Int, Field(ge=0, le=INT32)] = Field(description="0 only reads the prompt.")
    stop_sequences: Stops | None = None


class Usage(Strict):
    """Tokens of an answer."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0

"""The body of POST /v1/responses."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal, NamedTuple, Union

from pydantic import Field

from lcspec.server.schemas import INT32, Echoed, Int, Steered, Strict
from lcspec.server.schemas_chat import LONGEST_NAME, MAX_TOOLS, ContentPart, Name, unread

# Items that are read; an `item_reference` is first replaced by its item (`remembered.Remembered`).
CALLS, RESULTS = ("function_call", "custom_tool_call"), ("function_call_output", "custom_tool_call_output")
KINDS = ("message", "reasoning", "item_reference", *CALLS, *RESULTS)


class Item(Echoed):
    """An item of the input: a message, a call the model made, or what a call gave back. Others are left out."""

    type: str | None = None
    role: Literal["developer", "system", "user", "assistant"] | None = None
    content: str | Annotated[list[ContentPart], Field(max_length=1024)] | None = None
    summary: Annotated[list[ContentPart], Field(max_length=1024)] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = Field(default=None, description="What a custom tool was called with.")
    output: str | Annotated[list[ContentPart], Field(max_length=1024)] | None = None
    id: str | None = None
    status: str | None = None

    @property
    def kind(self) -> str:
        """Its type, which a message may leave out."""
        return self.type or "message"

    def left_out(self) -> tuple[str, ...]:
        """See Strict."""
        if self.kind in RESULTS:
            return unread("output", self.output)
        return () if self.kind in KINDS else ("type",)


class FlatFunction(Strict):
    """A function the model may call, in this endpoint's flat form. Other types of tools are left out."""

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def left_out(self) -> tuple[str, ...]:
        """See Strict."""
        return () if self.type == "function" else ("type",)


class FlatTool(FlatFunction):
    """A function, or a `namespace` of some (Codex sends one for each MCP server)."""

    tools: Annotated[list[FlatFunction], Field(max_length=MAX_TOOLS)] | None = None

    def left_out(self) -> tuple[str, ...]:
        """See Strict."""
        return () if self.type == "namespace" else super().left_out()


class Function(NamedTuple):
    """`tool` of `namespace` (None: of none), which the model is told to call by the name `told`."""

    told: str
    namespace: str | None
    tool: FlatFunction


class FlatToolChoice(Strict):
    """This very tool."""

    type: Literal["function"]
    name: str


class FlatAllowedTools(Strict):
    """Some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FlatToolChoice], Field(min_length=1, max_length=MAX_TOOLS)]


class FlatText(Strict):
    """Plain text."""

    type: Literal["text"]


class FlatJsonObject(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class FlatJsonSchema(Strict):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextOptions(Strict):
    """How the text is to look."""

    format: Annotated[Union[FlatText, FlatJsonObject, FlatJsonSchema], Field(discriminator="type")] | None = None
    verbosity: str | None = None


class ResponseBody(Steered):
    """POST /v1/responses, without anything stored on the server."""

    input: str | Annotated[list[Item], Field(min_length=1, max_length=4096)]
    instructions: str | None = None
    max_output_tokens: Annotated[Int, Field(ge=0, le=INT32)] | None = None
    tools: Annotated[list[FlatTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatToolChoice | FlatAllowedTools | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    include: Annotated[list[str], Field(max_length=16)] | None = None
    top_logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="Given to the model's template.")
    # Known to the OpenAI API and without a meaning here.
    truncation: Literal["auto", "disabled"] | None = None
    reasoning: dict[str, Any] | None = None
    stream_options: dict[str, Any] | None = None
    max_tool_calls: Int | None = None
    client_metadata: dict[str, Any] | None = None

    @property
    def functions(self) -> list[Function]:
        """What can be called here: by its name, with the namespace in front where two have the same."""
        found: list[tuple[str | None, FlatFunction]] = []
        for tool in self.tools or ():
            found += [(tool.name, one) for one in tool.tools or ()] if tool.type == "namespace" else [(None, tool)]
        found = [(space, one) for space, one in found if one.type == "function"]
        often = Counter(one.name for _, one in found)

        def told(space: str | None, name: str) -> str:
            return f"{space}__{name}"[-LONGEST_NAME:] if space and often[name] > 1 else name

        return [Function(told(space, one.name or ""), space, one) for space, one in found]

    @property
    def summary(self) -> str | None:
        """Which summary of the reasoning is asked for (older clients: `generate_summary`)."""
        given = self.reasoning or {}
        asked = given.get("summary") or given.get("generate_summary")
        return asked if isinstance(asked, str) and asked != "none" else None

    def limit(self, default: Int | None = None) -> int | None:
        """Tokens to generate at most; None = no limit."""
        return super().limit(default) if self.max_output_tokens is None else self.max_output_tokens

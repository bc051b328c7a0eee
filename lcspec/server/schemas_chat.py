"""The body of POST /v1/chat/completions: messages, tools, response format."""

from __future__ import annotations

from typing import Annotated, Any, Iterable, Literal, Protocol, Union

from pydantic import BeforeValidator, Field, model_validator

from lcspec.server.schemas import INT32, Echoed, Generating, Int, Strict

# Longer than OpenAI's: tools of MCP servers have the server's name in theirs, and Ollama's may have a colon.
LONGEST_NAME = 128
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, pattern=r"^[a-zA-Z0-9_.:-]+$")]
MAX_TOOLS = 256
# What a choice that names no function is called elsewhere, and here.
CHOICES = {"auto": "auto", "none": "none", "required": "required", "any": "required"}


class ContentPart(Echoed):
    """A part of a message; only text can be read here."""

    type: str
    text: str | None = None
    refusal: str | None = None

    @property
    def readable(self) -> bool:
        """Whether it is text."""
        return self.type in ("text", "refusal", "input_text", "output_text")


class Part(Protocol):
    """A part of a message, in any API."""

    @property
    def type(self) -> str: ...

    @property
    def readable(self) -> bool: ...


def unread(field: str, content: str | Iterable[Part] | None) -> tuple[str, ...]:
    """`content.image_url` for what cannot be read of a tool's result."""
    parts: Iterable[Part] = () if content is None or isinstance(content, str) else content
    return tuple(dict.fromkeys(f"{field}.{part.type}" for part in parts if not part.readable))


class FunctionCall(Echoed):
    """A function's name and its arguments as JSON text; some clients send the object, or nothing."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(Echoed):
    """A call the assistant made earlier."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Echoed):
    """A message of the conversation."""

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[ContentPart], Field(max_length=4096)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=4096)] | None = None
    function_call: FunctionCall | None = Field(default=None, description="The older form of tool_calls.")
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None

    def left_out(self) -> tuple[str, ...]:
        """See Strict."""
        return unread("content", self.content) if self.role in ("tool", "function") else ()


class Function(Strict):
    """A function the model may call; `parameters` is a JSON schema."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A function the model may use. Other types of tools are left out."""

    type: str
    function: Function | None = None

    @model_validator(mode="after")
    def _described(self) -> Tool:
        if self.type == "function" and self.function is None:
            raise ValueError("a tool of type `function` needs its `function`")
        return self

    def left_out(self) -> tuple[str, ...]:
        """See Strict."""
        return () if self.type == "function" else ("type",)


class ChosenFunction(Strict):
    """The function that must be called."""

    name: str


class ToolChoice(Strict):
    """This very tool."""

    type: Literal["function"]
    function: ChosenFunction


class AllowedTools(Strict):
    """Those of the tools that may be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolChoice], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolChoice(Strict):
    """Some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class JsonSchema(Strict):
    """A named JSON schema."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextFormat(Strict):
    """Plain text."""

    type: Literal["text"]


class JsonObjectFormat(Strict):
    """Any JSON object. llama.cpp's `schema` beside it is read as well."""

    type: Literal["json_object"]
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class JsonSchemaFormat(Strict):
    """JSON that follows a schema. llama.cpp's `schema` beside the type is read as well."""

    type: Literal["json_schema"]
    json_schema: JsonSchema = Field(default_factory=JsonSchema)
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


ResponseFormat = Annotated[Union[TextFormat, JsonObjectFormat, JsonSchemaFormat], Field(discriminator="type")]


def _form(given: Any) -> Any:
    """An empty format as none, as llama.cpp reads it."""
    return None if given == {} else given


def _choice(given: Any) -> Any:
    """A choice of tools as Anthropic's or the Responses API write it, in the words of this one."""
    if not isinstance(given, dict):
        return given
    kind, name = given.get("type"), given.get("name")
    named = kind in ("function", "tool") and isinstance(name, str) and "function" not in given
    if named:
        return {"type": "function", "function": {"name": name}}
    return CHOICES.get(kind, given) if isinstance(kind, str) else given


# More than any API's own: a message of Anthropic's may become several.
Messages = Annotated[list[Message], Field(min_length=1, max_length=16384)]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]
Choice = Literal["none", "auto", "required"] | ToolChoice | AllowedToolChoice


class Thinking(Echoed):
    """Whether the model reasons before it answers, and for how many tokens (Anthropic's form)."""

    type: str | None = None
    budget_tokens: Annotated[Int, Field(ge=0, le=INT32)] | None = None
    display: str | None = None


class ReasoningOptions(Strict):
    """How the model reasons (OpenRouter's form, and that of OpenAI's Responses)."""

    effort: Annotated[str, Field(max_length=32)] | None = None
    enabled: bool | None = None
    max_tokens: Annotated[Int, Field(ge=0, le=INT32)] | None = None


class ChatBody(Generating):
    """POST /v1/chat/completions."""

    messages: Messages
    logprobs: bool | None = None
    top_logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None
    post_sampling_probs: bool | None = Field(
        default=None, description="Beside logprobs: the probabilities that were sampled from, as `prob`."
    )
    response_format: Annotated[ResponseFormat | None, BeforeValidator(_form)] = None
    tools: Tools | None = None
    tool_choice: Annotated[Choice | None, BeforeValidator(_choice)] = None
    parallel_tool_calls: bool | None = None
    parse_tool_calls: bool | None = Field(default=None, description="`false` leaves tool calls in the text.")
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="Given to the model's template.")
    think: bool | Literal["low", "medium", "high"] | None = Field(
        default=None, description="Ollama's name for the template's enable_thinking."
    )
    add_generation_prompt: bool | None = None
    continue_final_message: bool | str | None = Field(
        default=None, description="Go on with the last message, the assistant's; done unless it is false."
    )
    reasoning_effort: Annotated[str, Field(max_length=32)] | None = Field(
        default=None, description="Told to the template; `none` switches reasoning off."
    )
    reasoning_format: Literal["auto", "deepseek", "deepseek-legacy", "none"] | None = Field(
        default=None, description="`none` leaves reasoning in the text; the others give it by itself."
    )
    enable_thinking: bool | None = Field(default=None, description="Told to the template.")
    reasoning_budget_tokens: Annotated[Int, Field(ge=-1, le=INT32)] | None = Field(
        default=None, description="Tokens of reasoning, then it is closed; 0 is none, -1 no limit."
    )
    thinking_budget_tokens: Annotated[Int, Field(ge=-1, le=INT32)] | None = Field(default=None, description="The same.")
    reasoning_budget: Annotated[Int, Field(ge=-1, le=INT32)] | None = Field(default=None, description="The same.")
    thinking_budget: Annotated[Int, Field(ge=-1, le=INT32)] | None = Field(default=None, description="The same.")
    thinking: Thinking | bool | None = Field(default=None, description="Anthropic's form of enable_thinking.")
    reasoning: ReasoningOptions | None = Field(default=None, description="OpenRouter's form of reasoning_effort.")
    # Known to the OpenAI API and without a meaning here.
    verbosity: str | None = None
    modalities: list[Literal["text"]] | None = None

    @model_validator(mode="after")
    def _of_other_apis(self) -> ChatBody:
        """Read what other APIs say about reasoning where nothing is said in our words."""
        enable, effort, budget = None, None, None
        if isinstance(self.thinking, Thinking):
            kind, budget = self.thinking.type, self.thinking.budget_tokens
            enable = None if kind is None else kind != "disabled"
        elif self.thinking is not None:
            enable = self.thinking
        if self.reasoning is not None:
            given = self.reasoning
            enable = given.enabled if given.enabled is not None else enable
            effort, budget = given.effort, given.max_tokens if given.max_tokens is not None else budget
        if self.enable_thinking is None and self.think is None:
            self.enable_thinking = enable
        if self.reasoning_effort is None:
            self.reasoning_effort = effort
        if self.reasoning_budget_tokens is None:
            self.reasoning_budget_tokens = budget
        return self

    def left_out(self) -> tuple[str, ...]:
        """See Strict."""
        return ("reasoning_format",) if self.reasoning_format == "deepseek-legacy" else ()  # it gives it twice

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """What the template is given; `think` is under the name that templates have for it."""
        given: dict[str, Any] = {}
        if self.think is not None:
            given["enable_thinking"] = bool(self.think)
        if isinstance(self.think, str):
            given["reasoning_effort"] = self.think
        return given | (self.chat_template_kwargs or {})


class TemplateBody(ChatBody):
    """POST /apply-template: a conversation as it is sent to be answered."""

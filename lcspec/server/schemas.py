"""Request bodies: what every generating endpoint takes. Types are strict, as the OpenAI API's are."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Union

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from lcspec.config import MAX_DRAFT

INT32 = 2**31 - 1


def _whole(value: Any) -> Any:
    """6.0 as 6: some JSON libraries write every number with a point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _given(values: Any) -> Any:
    """A list without nulls, which is what a client's unset setting becomes in a list."""
    return [value for value in values if value is not None] if isinstance(values, list) else values


Int = Annotated[int, BeforeValidator(_whole)]
Token = Annotated[int, Field(ge=0, le=INT32)]
Tokens = Annotated[list[Token], Field(max_length=1_000_000)]
# Texts and token ids that follow each other.
Mixed = Annotated[list[Union[str, Token]], Field(max_length=1_000_000)]
# Role-play clients name everybody who may speak next.
Stops = Annotated[list[str], BeforeValidator(_given), Field(max_length=128)]
Stop = Union[str, Stops]


class Strict(BaseModel):
    """A JSON object with checked types. What it does not know is kept aside (see `unknown.unknown`).

    Attributes:
        idle: fields that are checked and do nothing, which the client is told.
    """

    idle: ClassVar[tuple[str, ...]] = ()
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())

    def left_out(self) -> tuple[str, ...]:
        """Fields that ask for what is not here: the request is served without it, which the client is told."""
        return ()


class Echoed(Strict):
    """A part of the conversation. Clients send back what they were sent, with whatever their library adds to it, so
    what is not known here is ignored."""


class Speculation(Strict):
    """How to speculate for this request; what is left out is as the server was started."""

    drafters: str | Annotated[list[str], Field(max_length=16)] | None = Field(
        default=None,
        description="`auto`, `off`, or drafters as for --speculate: `ngram`, `ngram,model:nodes=5`, or a list.",
    )
    max_draft: Annotated[Int, Field(ge=0, le=MAX_DRAFT)] | None = Field(
        default=None, description="Drafted tokens a step."
    )
    verifier: Annotated[str, Field(max_length=64)] | None = Field(default=None, description="coupled, rejection, ...")
    off: bool | None = Field(default=None, description="Plain decoding.")
    exact: bool | None = Field(
        default=None, description="The same bits as without speculation, where that is certified."
    )
    name_drafters: bool | None = Field(
        default=None, description="In a chat's stream: each chunk's `drafter` says who drafted its text (null: nobody)."
    )


class TextPart(Strict):
    """A piece of text."""

    type: Literal["text"] = "text"
    text: str


class Prediction(Strict):
    """The text the caller expects (OpenAI's predicted outputs)."""

    type: Literal["content"] = "content"
    content: str | Annotated[list[TextPart], Field(max_length=1024)]

    @property
    def text(self) -> str:
        """All of it."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class StreamOptions(Strict):
    """What a stream contains."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Sampling(Strict):
    """How the target samples; defaults are llama.cpp's."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Int, Field(ge=-INT32 - 1, le=INT32)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=100)] | None = Field(
        default=None, validation_alias=AliasChoices("repeat_penalty", "repetition_penalty")
    )
    repeat_last_n: Annotated[Int, Field(ge=-1, le=INT32)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    dry_multiplier: Annotated[float, Field(ge=0, le=100)] | None = None
    dry_base: Annotated[float, Field(ge=0, le=100)] | None = None
    dry_allowed_length: Annotated[Int, Field(ge=0, le=INT32)] | None = None
    dry_penalty_last_n: Annotated[Int, Field(ge=-1, le=INT32)] | None = None
    xtc_probability: Annotated[float, Field(ge=0, le=1)] | None = None
    xtc_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    dry_sequence_breakers: (
        Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=64)] | None
    ) = None
    top_n_sigma: Annotated[float, Field(ge=-100, le=100)] | None = None
    dynatemp_range: Annotated[float, Field(ge=0, le=100)] | None = None
    dynatemp_exponent: Annotated[float, Field(ge=0, le=100)] | None = None
    mirostat: Annotated[Int, Field(ge=0, le=2)] | None = None
    mirostat_tau: Annotated[float, Field(ge=0, le=100)] | None = None
    mirostat_eta: Annotated[float, Field(ge=0, le=1)] | None = None
    adaptive_target: Annotated[float, Field(ge=-100, le=1)] | None = None
    adaptive_decay: Annotated[float, Field(ge=0, le=0.99)] | None = None
    samplers: Annotated[str, Field(max_length=32)] | Annotated[list[str], Field(max_length=32)] | None = Field(
        default=None, description="The steps of sampling to take, as llama.cpp names them; the others are off."
    )
    seed: Annotated[Int, Field(ge=-(2**63), le=2**63 - 1)] | None = Field(
        default=None, description="One seed gives one text. Without one, or with -1, one is drawn."
    )


class Asking(Sampling):
    """What all text endpoints share."""

    model: str | None = None
    stream: bool | None = None
    user: str | None = None
    speculation: Speculation | None = None
    prediction: Prediction | None = None
    # Known to the OpenAI API and without a meaning here.
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @property
    def followed(self) -> bool:
        """Whether the answer says how far it is while it is made."""
        return False


class Steered(Asking):
    """What steers a text, in whichever API it is asked for."""

    max_tokens: Annotated[Int, Field(ge=-1, le=INT32)] | None = Field(default=None, description="-1: no limit.")
    n_predict: Annotated[Int, Field(ge=-1, le=INT32)] | None = Field(
        default=None, description="llama.cpp's name for max_tokens."
    )
    stop: Stop | None = None
    logit_bias: (
        dict[str, Annotated[float, Field(ge=-100, le=100)]] | Annotated[list[list[Any]], Field(max_length=4096)] | None
    ) = Field(default=None, description="By token id, or llama.cpp's pairs of a token (or text) and a number or false.")
    grammar: Annotated[str, Field(max_length=65536)] | None = Field(default=None, description="GBNF or Lark.")
    ignore_eos: bool | None = None

    def limit(self, default: Int | None = None) -> int | None:
        """Tokens to generate at most; None = no limit."""
        given = next((n for n in (self.max_tokens, self.n_predict) if n is not None), default)
        return None if given == -1 else given

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class Generating(Steered):
    """What /v1/chat/completions and /v1/completions share."""

    n: Annotated[Int, Field(ge=1, le=128)] | None = None
    max_completion_tokens: Annotated[Int, Field(ge=-1, le=INT32)] | None = Field(
        default=None, description="The newer name of max_tokens."
    )
    json_schema: dict[str, Any] | None = Field(default=None, description="llama.cpp's form of response_format.")
    stream_options: StreamOptions | None = None
    timings_per_token: bool | None = Field(default=None, description="In a stream, `timings` with every piece of text.")
    return_progress: bool | None = Field(
        default=None, description="In a stream, `prompt_progress` while the prompt is read."
    )
    # llama.cpp's name for what always happens here.
    cache_prompt: bool | None = None

    def limit(self, default: Int | None = None) -> int | None:
        """Tokens to generate at most; None = no limit."""
        if self.max_completion_tokens is None:
            return super().limit(default)
        return None if self.max_completion_tokens == -1 else self.max_completion_tokens

    @property
    def followed(self) -> bool:
        """Whether the answer says how far it is while it is made."""
        return bool(self.stream and (self.timings_per_token or self.return_progress))


class CompletionBody(Generating):
    """POST /v1/completions."""

    prompt: str | Tokens | Annotated[list[str], Field(max_length=128)] | Annotated[list[Tokens], Field(max_length=128)]
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[Int, Field(ge=1, le=128)] | None = None
    logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None


class EmbeddingBody(Strict):
    """POST /v1/embeddings."""

    model: str | None = None
    input: str | Tokens | Annotated[list[str], Field(max_length=2048)] | Annotated[list[Tokens], Field(max_length=2048)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[Int, Field(ge=1, le=INT32)] | None = None
    user: str | None = None


class TokenizeBody(Strict):
    """POST /tokenize."""

    content: Union[str, Mixed] = Field(description="A text, or a list of texts and token ids.")
    add_special: bool | None = Field(default=None, description="Add what the model wants around a text (usually BOS).")
    parse_special: bool | None = Field(default=None, description="Read <|...|> and the like as special tokens.")
    with_pieces: bool | None = Field(default=None, description="Also give each token's text.")
    model: str | None = None


class NamedBody(Strict):
    """POST /models/load and /models/unload."""

    model: str


class DetokenizeBody(Strict):
    """POST /detokenize."""

    tokens: Tokens
    model: str | None = None

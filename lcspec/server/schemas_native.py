"""Bodies of llama-server's own endpoints: /completion and /infill."""

from __future__ import annotations

from typing import Annotated, Any, Union

from pydantic import AliasChoices, Field

from lcspec.server.schemas import INT32, Echoed, Generating, Int, Mixed, Strict, Tokens

# Alternatives of a token that may be asked for: more of them would make answers of megabytes.
MAX_PROBS = 1000


class Quoted(Strict):
    """A prompt as an object, which may hold images elsewhere."""

    prompt_string: str
    multimodal_data: Annotated[list[Any], Field(max_length=0)] | None = None


Prompt = Union[str, Mixed, Quoted, Annotated[list[Union[str, Tokens, Mixed, Quoted]], Field(max_length=128)]]
Bias = Union[dict[str, float], Annotated[list[tuple[Union[int, str], Union[float, bool]]], Field(max_length=4096)]]


class NativeBody(Generating):
    """What /completion and /infill share."""

    logit_bias: Any = None  # in this API a list of pairs as well, see `native.bias`
    n_probs: Annotated[Int, Field(ge=0, le=MAX_PROBS)] | None = Field(
        default=None, validation_alias=AliasChoices("n_probs", "logprobs")
    )
    post_sampling_probs: bool | None = Field(
        default=None, description="Probabilities are those that were sampled from, after all samplers."
    )
    return_tokens: bool | None = None
    n_indent: Annotated[Int, Field(ge=0, le=INT32)] | None = Field(
        default=None, description="The text ends before a line that is indented less; not in streams."
    )
    n_cmpl: Annotated[Int, Field(ge=1, le=128)] | None = Field(
        default=None, description="Texts for each prompt; with more than one text in all the answer is a list."
    )
    response_fields: Annotated[list[str], Field(max_length=128)] | None = Field(
        default=None, description="Fields that the answer has, no others; `timings/prompt_n` is a field in another."
    )
    t_max_predict_ms: Annotated[Int, Field(ge=-1, le=INT32)] | None = Field(
        default=None, description="The text ends with the first line that ends after so long; 0 or -1 is no limit."
    )
    # Known to the API and without a meaning here.
    id_slot: Int | None = None
    n_keep: Int | None = None
    n_discard: Int | None = None
    t_max_prompt_ms: Int | None = None


class NativeCompletionBody(NativeBody):
    """POST /completion."""

    prompt: Prompt


Embeddable = Union[str, Tokens, Annotated[list[Union[str, Tokens]], Field(max_length=2048)]]


class NativeEmbeddingBody(Strict):
    """POST /embedding."""

    model: str | None = None
    content: Embeddable | None = None
    input: Embeddable | None = Field(default=None, description="Another name of content.")
    embd_normalize: Annotated[Int, Field(ge=-1, le=INT32)] | None = Field(
        default=None, description="The norm in which a vector has length 1 (2); -1: none; 0: by its largest number."
    )


class Extra(Echoed):
    """A piece of another file."""

    text: str
    filename: str | None = None


class InfillBody(NativeBody):
    """POST /infill: the text between a prefix and a suffix."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[Extra], Field(max_length=256)] | None = None
    prompt: str | None = None

"""A model's own chat template (Jinja), rendered in a sandbox; with a fallback for models that have none."""

from __future__ import annotations

import datetime
import json
from typing import Any, Mapping, Sequence

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lcspec.errors import TemplateError
from lcspec.llama.model import Model

# For models without a template: ChatML if the vocabulary has its markers, else a plain transcript.
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRANSCRIPT = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}\n\n"
    "{% elif m['role'] == 'user' %}User: {{ m['content'] }}\n{% else %}Assistant: {{ m['content'] }}\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
TRANSCRIPT_STOP = "\nUser:"

Message = Mapping[str, Any]


class ChatTemplate:
    """Renders messages into the prompt a model expects.

    Attributes:
        source: `model` (its own template), `chatml` or `transcript` (fallbacks).
        stop: strings that end an answer when the model has no token for it.
    """

    def __init__(self, model: Model) -> None:
        """Compile the template.

        Raises:
            TemplateError: the model's own template is not valid Jinja.
        """
        vocab = model.vocab
        text = model.header.chat_template
        self.stop: tuple[str, ...] = ()
        self.source = "model"
        if not text:
            if len(vocab.tokenize("<|im_start|>", special=False)) == 1:
                text, self.source = CHATML, "chatml"
            else:
                text, self.source, self.stop = TRANSCRIPT, "transcript", (TRANSCRIPT_STOP,)
        self.tokens = {
            "bos_token": vocab.text([vocab.bos], special=True) if vocab.bos >= 0 else "",
            "eos_token": vocab.text([vocab.eos], special=True) if vocab.eos >= 0 else "",
        }
        env = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        env.filters["tojson"] = _tojson
        env.globals["raise_exception"] = _raise_exception
        env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            self._template = env.from_string(text)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template of {model.options.path.name} is not valid: {error}") from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **extra: Any) -> str:
        """The prompt text for `messages`; `extra` (tools, documents ...) is passed to the template.

        Raises:
            TemplateError: the template refuses the messages (a role it does not know, say).
        """
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **self.tokens, **extra
            )
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template refused the messages: {error}") from error
        except (TypeError, ValueError, KeyError, ArithmeticError) as error:
            raise TemplateError(f"the model's chat template failed on the messages: {error}") from error

    def has_bos(self, text: str) -> bool:
        """Whether the rendered text begins with BOS already, so that tokenizing must not add another."""
        return bool(self.tokens["bos_token"]) and text.startswith(self.tokens["bos_token"])


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    # Jinja's own filter escapes HTML, which templates for models do not expect.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)

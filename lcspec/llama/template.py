"""A model's own chat template, rendered; with a fallback for models that have none."""

from __future__ import annotations

import copy
import datetime
import re
from typing import TYPE_CHECKING, Any, Mapping, Protocol, Sequence

import jinja2

from lcspec.answers.formats import THINK, format_of
from lcspec.answers.openings import SWITCHES, closed, opened_by
from lcspec.errors import TemplateError
from lcspec.llama.jinja import Clock, TemplateEnvironment, to_json, variables

if TYPE_CHECKING:
    from lcspec.config import ModelOptions
    from lcspec.modelfiles.modelfile import ModelHeader

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
# Stands for a text in trial renderings; no template does anything with it.
MARK = "@@lcspec-mark-7c1e@@"
Message = Mapping[str, Any]
Messages = Sequence[Message]
# What a template may raise besides Jinja's own errors.
FAILURES = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)


class TemplateVocab(Protocol):
    """What a template asks of a vocabulary."""

    bos: int
    eos: int

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of `text`."""

    def text(self, tokens: list[int], *, special: bool = False) -> str:
        """Text of `tokens`."""


class TemplateModel(Protocol):
    """What a template asks of a model, wherever that is loaded."""

    @property
    def vocab(self) -> TemplateVocab:
        """Its vocabulary."""

    @property
    def header(self) -> ModelHeader:
        """Its description."""

    @property
    def options(self) -> ModelOptions:
        """How it was loaded."""


class ChatTemplate:
    """Renders messages into the prompt a model expects.

    Attributes:
        source: `given` (by the user), `model` (its own template), `chatml` or `transcript` (fallbacks).
        text: the template itself; `tool_text` is the one for requests with tools, where the model has two.
        stop: strings that end an answer when the model has no token for it.
    """

    def __init__(self, model: TemplateModel, given: str | None = None, clock: Clock = datetime.datetime.now) -> None:
        """Compile the template.

        Args:
            model: whose template it is.
            given: use this one instead: Jinja, or `chatml`.
            clock: what time it is, for templates that show the date.

        Raises:
            TemplateError: the template is not valid Jinja.
        """
        vocab, header = model.vocab, model.header
        self.stop: tuple[str, ...] = ()
        self.text, self.tool_text, self.source = header.chat_template or "", "", "model"
        if given is not None:
            self.text, self.source = CHATML if given.strip() == "chatml" else given, "given"
        elif not self.text:
            if len(vocab.tokenize("<|im_start|>", special=False)) == 1:
                self.text, self.source = CHATML, "chatml"
            else:
                self.text, self.source, self.stop = TRANSCRIPT, "transcript", (TRANSCRIPT_STOP,)
        else:
            tool_text = header.metadata.get("tokenizer.chat_template.tool_use")
            self.tool_text = tool_text if isinstance(tool_text, str) else ""
        self.tokens = {
            "bos_token": vocab.text([vocab.bos], special=True) if vocab.bos >= 0 else "",
            "eos_token": vocab.text([vocab.eos], special=True) if vocab.eos >= 0 else "",
        }
        self.name = "--chat-template" if given is not None else f"the chat template of {model.options.path.name}"
        self.renderer = Renderer(self.text, self.tokens, clock, self.name)
        self.tool_renderer = Renderer(self.tool_text, self.tokens, clock, self.name) if self.tool_text else None

    @property
    def takes_parts(self) -> frozenset[str]:
        """Roles whose messages it can be given as lists of text parts."""
        return self.renderer.takes_parts

    def render(
        self, messages: Messages, *, add_generation_prompt: bool = True, continue_final: bool = False, **extra: Any
    ) -> str:
        """The prompt text for `messages`; `extra` (tools, documents ...) is passed to the template.

        A system message that the template refuses, or leaves out, is put before the next message. With
        `continue_final` the last message, which must be the assistant's, is left open, for the model to write on.
        Models that can think do so unless `extra` says otherwise.

        Raises:
            TemplateError: the template refuses the messages (a role it does not know, say).
        """
        extra = {"enable_thinking": True, **extra}  # as llama-server and Ollama have it; many templates do not
        renderer = self.tool_renderer if self.tool_renderer is not None and extra.get("tools") else self.renderer
        if continue_final and messages and messages[-1]["role"] == "assistant":
            return renderer.continued(messages, extra)
        return renderer.folded(messages, dict(extra, add_generation_prompt=add_generation_prompt))

    def has_bos(self, text: str) -> bool:
        """Whether the rendered text begins with BOS already, so that tokenizing must not add another."""
        return bool(self.tokens["bos_token"]) and text.startswith(self.tokens["bos_token"])

    def ids(self, vocab: TemplateVocab, text: str) -> list[int]:
        """Token ids of a rendered text."""
        return vocab.tokenize(text, special=not self.has_bos(text))


class Renderer:
    """One compiled template and what it can take, found out by trial.

    Attributes:
        only_parts: texts must be lists of parts: a plain text is refused or left out.
        takes_parts: roles whose messages can be lists of parts.
    """

    def __init__(
        self, text: str, tokens: Mapping[str, str], clock: Clock = datetime.datetime.now, name: str = "the template"
    ) -> None:
        """Compile it.

        Raises:
            TemplateError: it is not valid Jinja.
        """
        self.text, self.tokens, self.clock = text, dict(tokens), clock
        try:
            self._template = TemplateEnvironment(clock).from_string(text)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(f"{name} is not valid: {error}") from error
        names = variables(text)
        self._wants_functions = "functions" in names and "tools" not in names  # firefunction's name for tools
        roles = ("system", "user", "assistant", "tool")
        self.only_parts, self.takes_parts = False, frozenset(roles)
        part = {"type": "text", "text": MARK}
        only = not self._shows("user", MARK) and self._shows("user", [part])
        self.takes_parts = frozenset(role for role in roles if self._shows(role, [part, part], 2))
        self.only_parts = only

    def plain(self, messages: Messages, extra: Mapping[str, Any]) -> str:
        """The template's text for exactly these messages.

        Raises:
            TemplateError: it refuses them.
        """
        # A template may append to the lists it is given, so it gets copies.
        given = [self._fitted(copy.deepcopy(dict(message))) for message in messages]
        today = self.clock()
        names = {"datetime": today.strftime("%b %d %Y"), "date_string": today.strftime("%d %b %Y"), **self.tokens}
        if self._wants_functions:
            tools = extra.get("tools")
            names["functions"] = to_json(tools, indent=2) if tools else ""
        try:
            return self._template.render({**names, **copy.deepcopy(dict(extra)), "messages": given})
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template refused the messages: {_line(error)}") from error
        except FAILURES as error:
            raise TemplateError(f"the model's chat template failed on the messages: {_line(error)}") from error

    def folded(self, messages: Messages, extra: Mapping[str, Any]) -> str:
        """As `plain`, but no system message is lost: one that is refused or left out goes into the next message.

        Raises:
            TemplateError: the template refuses the messages either way.
        """
        systems = [text.strip() for m in messages if m["role"] == "system" for text in _texts(m)]
        try:
            text, problem = self.plain(messages, extra), None
            if all(system in text for system in systems):
                return text
        except TemplateError as error:
            if not systems:
                raise
            text, problem = "", error
        # Those in the middle first: many templates take a system message only at the beginning.
        for keep_first in (True, False):
            fewer = fold_system(messages, keep_first)
            if fewer == list(messages):
                continue
            try:
                other = self.plain(fewer, extra)
            except TemplateError:
                continue
            if all(system in other for system in systems):
                return other
        if problem is not None:
            raise problem
        return text  # the template writes it in other words

    def continued(self, messages: Messages, extra: Mapping[str, Any]) -> str:
        """The prompt up to where the last message, the assistant's, ends so far.

        Raises:
            TemplateError: the template refuses the messages.
        """
        *before, last = messages
        content, reasoning = _text(last), str(last.get("reasoning_content") or "")
        opening = dict(extra, add_generation_prompt=True)
        if not content and not reasoning:
            return self.folded(before, opening)
        # The template writes a message with a mark in it, and what it writes after the mark is cut off.
        field, rest = ("content", content) if content else ("reasoning_content", reasoning)
        try:
            whole = self.folded([*before, {**last, field: MARK}], dict(extra, add_generation_prompt=False))
        except TemplateError:
            whole = ""
        head, mark, _ = whole.rpartition(MARK)
        if mark and (field == "reasoning_content" or not reasoning or reasoning.strip() in head):
            return head + rest
        # It does not take an answer as the last message: the answer follows what opens one.
        return self._after_opening(self.folded(before, opening), content, reasoning)

    def _after_opening(self, head: str, content: str, reasoning: str) -> str:
        pairs = [(tags.literal.rstrip(), tags.end) for tags in format_of(self.text).reasoning or THINK]
        opened = next((pair for pair in pairs if head.rstrip().endswith(pair[0])), None)
        begin, end = opened or next((pair for pair in pairs if pair[0] in self.text), pairs[0])
        if opened is None and not reasoning:
            return head + content
        if opened is None:
            head = re.sub(rf"({re.escape(begin)})?\s*{re.escape(end)}\s*$", "", head)  # an empty reasoning
            head = f"{head}{begin}\n"
        return f"{head}{reasoning}\n{end}\n\n{content}" if content else head + reasoning

    def _fitted(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message in the form that this template reads."""
        content = message.get("content")
        if isinstance(content, str) and self.only_parts:
            message["content"] = [{"type": "text", "text": content}]
        elif isinstance(content, list) and message["role"] not in self.takes_parts:
            message["content"] = _text(message)
        thought = message.get("reasoning_content")
        # The name for it in gpt-oss and LFM2; gpt-oss takes either this or a content beside calls.
        taken = message.get("content") and message.get("tool_calls")
        if thought and "thinking" not in message and "message.thinking" in self.text and not taken:
            message["thinking"] = thought
        return message

    def _shows(self, role: str, content: Any, times: int = 1) -> bool:
        user = {"role": "user", "content": [{"type": "text", "text": "-"}] if isinstance(content, list) else "-"}
        talk: Messages = [{"role": role, "content": content}]
        if role == "system":
            talk = [*talk, user]
        elif role == "assistant":
            talk = [user, *talk, user]
        elif role == "tool":
            call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {}}}
            asked = {"role": "assistant", "content": "", "tool_calls": [call]}
            talk = [user, asked, {**talk[0], "tool_call_id": "call00001", "name": "f"}]
        try:
            text = self.plain(talk, {"add_generation_prompt": True})
        except TemplateError:
            return False
        return text.count(MARK) == times and "'type'" not in text and '"type"' not in text


def fold_system(messages: Messages, keep_first: bool) -> list[dict[str, Any]]:
    """Messages without system messages: each is put before the next one, which becomes the user's if need be.

    `keep_first` leaves those at the beginning, joined into one.
    """
    out: list[dict[str, Any]] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            if keep_first and not out:
                out.append(dict(message))
            elif keep_first and len(out) == 1 and out[0]["role"] == "system" and not waiting:
                out[0]["content"] = f"{_text(out[0])}\n\n{_text(message)}"
            else:
                waiting.append(_text(message))
            continue
        if waiting and message["role"] == "user":
            message = {**message, "content": "\n".join([*waiting, _text(message)])}
            waiting = []
        elif waiting and message["role"] == "assistant":
            _user_says(out, waiting)
            waiting = []
        out.append(dict(message))
    if waiting:
        _user_says(out, waiting)
    return out


def _user_says(out: list[dict[str, Any]], texts: Sequence[str]) -> None:
    """Texts that no message of the user's follows, as the end of the one before them or as one of their own: the same
    when the answer is wanted as when it is there, so that what was read of the prompt can be used again."""
    if out and out[-1]["role"] == "user":
        out[-1]["content"] = "\n".join([_text(out[-1]), *texts])
    else:
        out.append({"role": "user", "content": "\n".join(texts)})


def _texts(message: Message) -> list[str]:
    content = message.get("content")
    return [str(p.get("text") or "") for p in content] if isinstance(content, list) else [str(content or "")]


def _text(message: Message) -> str:
    return "\n".join(_texts(message))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def chat_ids(model: TemplateModel, messages: Messages, think: bool = True) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Token ids of a conversation ready for the assistant's answer, and the template's stop strings.

    `think`: whether the answer may begin with reasoning, if the model can.
    """
    template = ChatTemplate(model)
    text = template.render(messages, **({} if think else dict.fromkeys(SWITCHES, False)))
    if not think:
        form = format_of(template.renderer.text)
        text = closed(text, opened_by(form, text)) + form.answer
    return tuple(template.ids(model.vocab, text)), template.stop

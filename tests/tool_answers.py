"""What a model of each family would write in a conversation of twenty turns with tools."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lcspec.answers.formats import FORMATS, GENERIC, Format, Tags

FORMS = {form.name: form for form in (*FORMATS, GENERIC)}
TURNS = 20
Call = tuple[str, dict[str, Any]]
TOOLS: tuple[dict[str, Any], ...] = (
    {
        "name": "weather",
        "description": "The weather of the next days",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
    {
        "name": "python",
        "description": "Runs Python",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
)


@dataclass(frozen=True)
class Turn:
    """An answer: what of it is there, in this order."""

    number: int
    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def own(self) -> str:
        """What stands in each of its parts and in no other answer."""
        return f"nr{self.number:02d}."


def turns(form: Format, thinking: bool = True) -> list[Turn]:
    """What is answered: text, calls and several at once, each with reasoning and without, as far as the family has it.

    The first half and the second are alike, so that both can be streamed and not.
    """
    out = []
    for number in range(TURNS):
        own, kind = f"nr{number:02d}.", number % 10
        weather = ("weather", {"city": f'Łódź "{own}" \\ [x]', "days": number})
        code = ("python", {"code": f'# {own}\nfor c in "{{}}<":\n\tprint(c, \'é\', "</a>")'})
        calls: tuple[Call, ...] = {1: (weather,), 3: (code,), 4: (weather, code), 6: (code,), 7: (weather, code)}.get(
            kind, ()
        )
        if form.name in ONE:
            calls = calls[:1]
        thinks = thinking and kind in (2, 3, 5, 7, 8) and (form.reasoning or form.channels)
        speaks = not calls or (kind in (6, 7) and form.name not in ALONE)
        reasoning = f"Hm {own} <b>so</b>\n\nand then?" if thinks and form.name not in DUMB else ""
        out.append(Turn(number, reasoning, f"Look: {own} A `<tag>`, {{}} & é." if speaks else "", calls))
    return out


# Families that write one call, that write nothing beside calls, and that do not reason.
ONE = ("llama-3", "generic", "gigachat-3", "gigachat-3.1", "gpt-oss")
ALONE = ("llama-3", "generic", "firefunction", "command-r")
DUMB = ("functionary-3.2",)


def written(form: Format, turn: Turn, opened: Tags | None = None) -> str:
    """How the family writes it; `opened`: the prompt has opened reasoning."""
    if form.name in WHOLE:
        return WHOLE[form.name](turn)
    text = ""
    if opened is not None:
        text = f"{turn.reasoning}\n{opened.end}\n\n"
    elif turn.reasoning:
        tags = form.reasoning[0]
        text = f"{tags.literal}\n{turn.reasoning}\n{tags.end}\n\n"
    calls = CALLS[form.name](turn.calls) if turn.calls else ""
    return text + turn.content + calls


def controls(form: Format) -> list[str]:
    """Tokens of the family that its vocabulary would have as control tokens."""
    return list(CONTROLS.get(form.name, ()))


def _j(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _j(value)


def _each(make: Callable[[str, dict[str, Any]], str], before: str = "", after: str = "", between: str = "") -> Any:
    def write(calls: Sequence[Call]) -> str:
        return before + between.join(make(name, arguments) for name, arguments in calls) + after

    return write


def _tagged(
    head: str, parameter: str, end: str, tail: str, before: str = "", after: str = "", string: bool = False
) -> Any:
    """Calls between tags. `head` and `parameter` have a name in them, and with `string` whether it is a string."""

    def make(name: str, arguments: dict[str, Any]) -> str:
        out = head.format(name)
        for key, value in arguments.items():
            out += parameter.format(key, "true" if isinstance(value, str) else "false") + _text(value) + end
        return out + tail

    assert string == ("{1}" in parameter)
    return _each(make, before, after)


def _list(name: str = "name", arguments: str = "arguments") -> Callable[[Sequence[Call]], str]:
    return lambda calls: _j([{name: n, arguments: a} for n, a in calls])


def _with(before: str, inner: Callable[[Sequence[Call]], str], after: str = "") -> Callable[[Sequence[Call]], str]:
    return lambda calls: before + inner(calls) + after


def _gemma(name: str, arguments: dict[str, Any]) -> str:
    inner = ",".join(f'{k}:<|"|>{v}<|"|>' if isinstance(v, str) else f"{k}:{_j(v)}" for k, v in arguments.items())
    return f"<|tool_call>call:{name}{{{inner}}}<tool_call|>"


def _kimi3(calls: Sequence[Call]) -> str:
    out = "<|open|>tools<|sep|>"
    for i, (name, arguments) in enumerate(calls, 1):
        out += f'<|open|>call tool="{name}" index="{i}"<|sep|>'
        for key, value in arguments.items():
            kind = "string" if isinstance(value, str) else "number"
            out += f'<|open|>argument key="{key}" type="{kind}"<|sep|>{_text(value)}<|close|>argument<|sep|>'
        out += "<|close|>call<|sep|>"
    return out + "<|close|>tools<|sep|>"


def _minimax3(calls: Sequence[Call]) -> str:
    mark, out = "]<]minimax[>[", ""
    for name, arguments in calls:
        out += f'{mark}<invoke name="{name}">'
        out += "".join(f"{mark}<{key}>{_text(value)}{mark}</{key}>" for key, value in arguments.items())
        out += f"{mark}</invoke>\n"
    return f"{mark}<tool_call>\n{out}{mark}</tool_call>"


def _python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _count(arguments: dict[str, Any]) -> int:
    """A number that no other call of the conversation has."""
    return 2 * int(re.findall(r"nr(\d\d)\.", _j(arguments))[0]) + ("code" in arguments)


DSML = "｜DSML｜"
HERMES = _each(lambda n, a: f"<tool_call>\n{_j({'name': n, 'arguments': a})}\n</tool_call>", between="\n")
LLAMA = _each(lambda n, a: _j({"name": n, "parameters": a}))
CALLS: dict[str, Callable[[Sequence[Call]], str]] = {
    "hermes": HERMES,
    "generic": LLAMA,
    "llama-3": LLAMA,
    "qwen-xml": _tagged(
        "<tool_call>\n<function={0}>\n", "<parameter={0}>\n", "\n</parameter>\n", "</function>\n</tool_call>"
    ),
    "mistral": _each(lambda n, a: f"[TOOL_CALLS]{n}[ARGS]{_j(a)}"),
    "deepseek": _each(
        lambda n, a: f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{_j(a)}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek-dsml": _tagged(
        f'<{DSML}invoke name="{{0}}">\n',
        f'<{DSML}parameter name="{{0}}" string="{{1}}">',
        f"</{DSML}parameter>\n",
        f"</{DSML}invoke>\n",
        f"<{DSML}function_calls>\n",
        f"</{DSML}function_calls>",
        string=True,
    ),
    "glm": _tagged("<tool_call>{0}\n", "<arg_key>{0}</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>\n"),
    "hunyuan": _tagged(
        "<tool_call:opensource>{0}<tool_sep:opensource>\n",
        "<arg_key:opensource>{0}</arg_key:opensource>\n<arg_value:opensource>",
        "</arg_value:opensource>\n",
        "</tool_call:opensource>\n",
        "<tool_calls:opensource>\n",
        "</tool_calls:opensource>",
    ),
    "kimi-k2": _each(
        lambda n, a: (
            f"<|tool_call_begin|>functions.{n}:{_count(a)}<|tool_call_argument_begin|>{_j(a)}<|tool_call_end|>"
        ),
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ),
    "kimi-k3": _kimi3,
    "gemma4": _each(_gemma),
    "lfm2": _each(_python, "<|tool_call_start|>[", "]<|tool_call_end|>", ", "),
    "minimax-m2": _tagged(
        '<invoke name="{0}">\n',
        '<parameter name="{0}">',
        "</parameter>\n",
        "</invoke>\n",
        "<minimax:tool_call>\n",
        "</minimax:tool_call>",
    ),
    "minimax-m3": _minimax3,
    "granite-3": _with("<|tool_call|>", _list()),
    "command-r7b": _with("<|START_ACTION|>", _list("tool_name", "parameters"), "<|END_ACTION|>"),
    "command-r": _with("Action:\n```json\n", _list("tool_name", "parameters"), "\n```"),
    "functionary-3.1": _each(lambda n, a: f"<function={n}>{_j(a)}</function>"),
    "nemotron-2": _with("<TOOLCALL>", _list(), "</TOOLCALL>"),
    "seed": _tagged(
        "<seed:tool_call>\n<function={0}>\n",
        "<parameter={0}>",
        "</parameter>\n",
        "</function>\n</seed:tool_call>",
    ),
    "apertus": _each(lambda n, a: _j({n: a}), "<|tools_prefix|>[", "]<|tools_suffix|>", ", "),
    "firefunction": _with(" functools", _list()),
    "gigachat-3": _with("<|message_sep|>\n\nfunction call<|role_sep|>\n", LLAMA),
    "gigachat-3.1": _with("<|function_call|>", LLAMA),
    "minicpm5": _tagged('<function name="{0}">', '<param name="{0}"><![CDATA[', "]]></param>", "</function>\n"),
    "apriel": _with("<tool_calls>", _list(), "</tool_calls>"),
    "solar": _each(
        lambda n, a: (
            f"<|tool_call:begin|>a1b2c3d{_count(a):03}<|tool_call:name|>{n}<|tool_call:args|>{_j(a)}<|tool_call:end|>"
        ),
        "<|begin|>assistant<|tool_calls|>",
        "<|calls|>",
    ),
}


def _harmony(turn: Turn) -> str:
    start, out = "<|start|>assistant", list[str]()
    if turn.reasoning:
        out.append(f"<|channel|>analysis<|message|>{turn.reasoning}<|end|>")
    if turn.content and turn.calls:
        out.append(f"<|channel|>commentary<|message|>{turn.content}<|end|>")
    elif turn.content:
        out.append(f"<|channel|>final<|message|>{turn.content}<|return|>")
    for name, arguments in turn.calls:
        to = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        out.append(f"{to}{_j(arguments)}<|call|>")
    return start.join(out)


def _muse(turn: Turn) -> str:
    start, out = "<|start|>assistant", list[str]()
    if turn.reasoning:
        out.append(f" to=self<|message|>{turn.reasoning}<|eom|>")
    if turn.content:
        out.append(
            f" to=user<|message|>{turn.content}<|eom|>" if turn.calls else f" to=user<|message|>{turn.content}<|eot|>"
        )
    for name, arguments in turn.calls:
        inner = "".join(f'<atem:parameter name="{k}">{_text(v)}</atem:parameter>\n' for k, v in arguments.items())
        call = f'<atem:function_calls>\n<atem:invoke name="{name}">\n{inner}</atem:invoke>\n</atem:function_calls>'
        out.append(f" to={name}<|message|>{call}")
    return start.join(out)


def _recipients(turn: Turn) -> str:
    out = [f"all\n{turn.content}"] if turn.content else []
    out += [f"{name}\n{_j(arguments)}" for name, arguments in turn.calls]
    return ">>>".join(out)


WHOLE: dict[str, Callable[[Turn], str]] = {"gpt-oss": _harmony, "muse": _muse, "functionary-3.2": _recipients}
_THINK = ("<think>", "</think>")
CONTROLS: dict[str, tuple[str, ...]] = {
    "hermes": (*_THINK, "<tool_call>", "</tool_call>"),
    "llama-3": ("<|python_tag|>",),
    "mistral": ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]"),
    "deepseek": (*_THINK, "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁calls▁end｜>"),
    "deepseek-dsml": (*_THINK,),
    "glm": (*_THINK, "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "hunyuan": ("<tool_calls:opensource>", "</tool_calls:opensource>"),
    "kimi-k2": ("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_calls_section_end|>"),
    "gemma4": ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'),
    "lfm2": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "minimax-m2": (*_THINK, "<minimax:tool_call>", "</minimax:tool_call>"),
    "minimax-m3": ("]<]minimax[>[",),
    "granite-3": ("<|tool_call|>",),
    "command-r7b": ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>", "<|END_ACTION|>"),
    "seed": ("<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"),
    "apertus": ("<|inner_prefix|>", "<|inner_suffix|>", "<|tools_prefix|>", "<|tools_suffix|>"),
    "gigachat-3.1": ("<|function_call|>",),
    "solar": (
        "<|think|>",
        "<|end|>",
        "<|tool_calls|>",
        "<|tool_call:begin|>",
        "<|tool_call:name|>",
        "<|calls|>",
        "<|flush|>",
    ),
    "gpt-oss": ("<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|constrain|>"),
    "muse": ("<|message|>", "<|eom|>", "<|eot|>", "<|start|>"),
}

"""How the families of models write reasoning and calls, and which of them a chat template belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lcspec.answers.calls import CodeCalls, JsonCalls, NamedCalls, Syntax
from lcspec.answers.channels import Channels, Messages, Recipients
from lcspec.answers.literals import GemmaCalls, PythonCalls
from lcspec.answers.source import escaped
from lcspec.answers.tagged import ElementCalls, KimiCalls, TaggedCalls


@dataclass(frozen=True)
class Tags:
    """What stands around reasoning.

    Attributes:
        literal: the opening tag as prompts write it; end: the closing one as it must be written to end it.
        opening, closing: patterns for both.
        anywhere: it is a token of its own, so it opens reasoning wherever it stands.
    """

    literal: str
    end: str
    opening: str
    closing: str
    anywhere: bool = False


def tags(opening: str, closing: str, anywhere: bool = False) -> Tags:
    """Tags that are patterns of themselves."""
    return Tags(opening, closing, escaped(opening), escaped(closing), anywhere)


@dataclass(frozen=True)
class Format:
    """How a family writes.

    Attributes:
        name: the family.
        signs: a template with all strings of one of these groups belongs to it.
        reasoning: tags around reasoning.
        calls: how it writes calls.
        dropped: a pattern for what is neither text nor anything else.
        channels: reads the whole answer, where tags are not enough.
        short_ids: calls have ids of nine characters.
        answer: what an answer without reasoning begins with, where that is not nothing.
    """

    name: str
    signs: tuple[tuple[str, ...], ...] = ()
    reasoning: tuple[Tags, ...] = ()
    calls: tuple[Syntax, ...] = ()
    dropped: str = ""
    channels: Channels | None = None
    short_ids: bool = False
    answer: str = ""

    def knows(self, token: str) -> bool:
        """Whether a control token means something in this format."""
        return bool(token.strip()) and escaped(token) in self._literals

    @cached_property
    def _literals(self) -> str:
        parts = [t.opening + t.closing for t in self.reasoning]
        for call in self.calls:
            parts += [str(getattr(call, name, "")) for name in ("opener", "head", "parameter")]
            ends = [getattr(call, name, "") for name in ("closer", "value_end", "call_end", "section_end")]
            parts += [escaped(e) for end in ends for e in ([end] if isinstance(end, str) else end)]
        extra = escaped('<|"|>') if self.name == "gemma4" else ""
        return "\n".join([*parts, self.dropped, extra, self.channels.literals if self.channels else ""])


THINK = (tags("<think>", "</think>"), tags("<thinking>", "</thinking>"), tags("<reasoning>", "</reasoning>"))
FUNCTION = TaggedCalls(
    r"<tool_call>|<function=",
    r"(?:<tool_call>\s*)?<function=(?P<name>[^>\n{]+)>\s*(?=<parameter=|</function>|</tool_call>)",
    r"<parameter=(?P<key>[^>\n]+)>",
    "</parameter>",
    ("</function>",),
    ("</tool_call>",),
)
# Hunyuan's tags have a suffix.
ARG_KEY = TaggedCalls(
    r"<tool_calls?(?::\w+)?>",
    r"(?:<tool_calls(?::\w+)?>\s*)?<tool_call(?::\w+)?>\s*(?P<name>[^\s<>{}]+)\s*(?:<tool_sep(?::\w+)?>)?\s*"
    r"(?=<arg_key(?::\w+)?>|</tool_call(?::\w+)?>)",
    r"<arg_key(?::\w+)?>(?P<key>[^<]+)</arg_key(?::\w+)?>\s*<arg_value(?::\w+)?>",
    "</arg_value>",
    ("</tool_call>",),
    ("</tool_calls>",),
)
HERMES = JsonCalls("<tool_call>", ("</tool_call>",))
MISTRAL = (
    NamedCalls(
        escaped("[TOOL_CALLS]"),
        r"\[TOOL_CALLS\]\s*(?P<name>[\w.:-]+)(?:\[CALL_ID\](?P<id>\w+))?(?:\[ARGS\])?\s*",
    ),
    JsonCalls(escaped("[TOOL_CALLS]"), id_after=True),
)
LLAMA = (JsonCalls(escaped("<|python_tag|>")), CodeCalls())
DSML = "｜DSML｜"


def _hunyuan(call: TaggedCalls) -> TaggedCalls:
    mark = ":opensource"
    return TaggedCalls(
        call.opener, call.head, call.parameter, f"</arg_value{mark}>", (f"</tool_call{mark}>",),
        (f"</tool_calls{mark}>",),
    )  # fmt: skip


GENERIC = Format(
    "generic",
    reasoning=(*THINK, tags("[THINK]", "[/THINK]", True)),
    calls=(FUNCTION, ARG_KEY, HERMES, *MISTRAL, *LLAMA),
)
# The first whose signs are in the template is taken.
FORMATS = (
    Format(
        "gpt-oss",
        (("<|channel|>", "<|start|>", "analysis"),),
        reasoning=(tags("<|channel|>analysis<|message|>", "<|end|>"),),
        channels=Messages(("<|end|>", "<|call|>", "<|return|>"), "analysis", ("final", "commentary")),
        answer="<|channel|>final<|message|>",
    ),
    Format(
        "muse",
        (("<atem:function_calls>",),),
        reasoning=(tags(" to=self<|message|>", "<|eom|>"),),
        channels=Messages(
            ("<|eom|>", "<|eot|>"),
            "self",
            ("user",),
            TaggedCalls(
                "<atem:function_calls>",
                r'(?:<atem:function_calls>\s*)?<atem:invoke name="(?P<name>[^"]+)">',
                r'<atem:parameter name="(?P<key>[^"]+)">',
                "</atem:parameter>",
                ("</atem:invoke>",),
            ),
        ),
        answer=" to=user<|message|>",
    ),
    Format("functionary-3.2", ((">>>all",),), channels=Recipients(), answer="all\n"),
    Format(
        "gemma4",
        (("<|tool_call>", "<|channel>"),),
        reasoning=(
            Tags(
                "<|channel>thought",
                "<channel|>",
                escaped("<|channel>") + r"thought(?:\n|(?=[^\n]))",
                escaped("<channel|>"),
                True,
            ),
        ),
        calls=(GemmaCalls(),),
        dropped=r"<\|channel>(?=[^t])|<channel\|>",
    ),
    Format(
        "kimi-k3",
        (("<|open|>", "<|end_of_msg|>"),),
        reasoning=(
            Tags(
                "<|open|>think<|sep|>",
                "<|close|>think<|sep|>",
                escaped("<|open|>think<|sep|>"),
                r"<\|close\|>think<\|sep\|>|(?=<\|open\|>(?:response|tools)<\|sep\|>)",
                True,
            ),
        ),
        calls=(
            KimiCalls(
                r"<\|open\|>call ",
                r'<\|open\|>call tool="(?P<name>[^"]+)"[^<]*<\|sep\|>',
                r'<\|open\|>argument key="(?P<key>[^"]+)"(?: type="(?P<string>\w+)")?[^<]*<\|sep\|>',
                "<|close|>argument<|sep|>",
                ("<|close|>call<|sep|>",),
            ),
        ),
        dropped=r"<\|(?:open|close)\|>(?:response|tools|message)<\|sep\|>|<\|end_of_msg\|>",
    ),
    Format(
        "kimi-k2",
        (("<|tool_call_argument_begin|>",), ("<|tool_calls_section_begin|>",)),
        reasoning=(*THINK, tags("◁think▷", "◁/think▷")),
        calls=(
            NamedCalls(
                r"<\|tool_calls_section_begin\|>|<\|tool_call_begin\|>",
                r"(?:<\|tool_calls_section_begin\|>\s*)?<\|tool_call_begin\|>\s*"
                r"(?P<id>(?:functions\.)?(?P<name>[\w.:-]+?)(?::\d+)?)\s*<\|tool_call_argument_begin\|>\s*",
                ("<|tool_call_end|>", "<|tool_calls_section_end|>"),
            ),
        ),
        dropped=r"<\|tool_calls_section_(?:begin|end)\|>",
    ),
    Format(
        "deepseek-dsml",
        ((DSML,),),
        reasoning=THINK,
        calls=(
            TaggedCalls(
                rf"<{DSML}(?:function_calls|tool_calls|invoke)",
                rf'(?:<{DSML}(?:function|tool)_calls>\s*)?<{DSML}invoke name="(?P<name>[^"]+)">',
                rf'<{DSML}parameter name="(?P<key>[^"]+)"(?: string="(?P<string>\w+)")?>',
                f"</{DSML}parameter>",
                (f"</{DSML}invoke>",),
                (f"</{DSML}function_calls>", f"</{DSML}tool_calls>"),
            ),
        ),
    ),
    Format(
        "deepseek",
        (("<｜tool▁calls▁begin｜>",),),
        reasoning=THINK,
        calls=(
            NamedCalls(
                "<｜tool▁calls▁begin｜>|<｜tool▁call▁begin｜>",
                r"(?:<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>\s*(?:function<｜tool▁sep｜>(?P<name>[\w.:-]+)\s*"
                r"(?:```(?:json)?)?\s*|(?!function<)(?P<name>[\w.:-]+)\s*<｜tool▁sep｜>\s*)",
                ("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
            ),
        ),
        dropped="<｜tool▁calls▁(?:begin|end)｜>",
    ),
    Format(
        "lfm2",
        (("<|tool_list_start|>",), ("<|tool_call_start|>",), ("List of tools: [",)),
        reasoning=THINK,
        calls=(PythonCalls(escaped("<|tool_call_start|>"), "<|tool_call_end|>"),),
    ),
    Format(
        "minimax-m3",
        (("]<]minimax[>[",),),
        reasoning=(tags("<mm:think>", "</mm:think>"),),
        calls=(ElementCalls(),),
    ),
    Format(
        "minimax-m2",
        (("<minimax:tool_call>",),),
        reasoning=THINK,
        calls=(
            TaggedCalls(
                r"<minimax:tool_call>|<invoke name=",
                r'(?:<minimax:tool_call>\s*)?<invoke name="(?P<name>[^"]+)">',
                r'<parameter name="(?P<key>[^"]+)">',
                "</parameter>",
                ("</invoke>",),
                ("</minimax:tool_call>",),
            ),
        ),
    ),
    Format(
        "seed",
        (("<seed:tool_call>",),),
        reasoning=(tags("<seed:think>", "</seed:think>"),),
        calls=(
            TaggedCalls(
                r"<seed:tool_call>|<function=",
                r"(?:<seed:tool_call>\s*)?<function=(?P<name>[^>\n{]+)>",
                r"<parameter=(?P<key>[^>\n]+)>",
                "</parameter>",
                ("</function>",),
                ("</seed:tool_call>",),
            ),
        ),
    ),
    Format(
        "command-r7b",
        (("<|START_ACTION|>",),),
        reasoning=(tags("<|START_THINKING|>", "<|END_THINKING|>", True),),
        calls=(JsonCalls(escaped("<|START_ACTION|>"), ("<|END_ACTION|>",)),),
        dropped=r"<\|(?:START|END)_(?:RESPONSE|TEXT)\|>|<\|END_THINKING\|>",
    ),
    Format(
        "command-r",
        (("<|CHATBOT_TOKEN|>", "Action:"),),
        calls=(JsonCalls(r"Action:(?=\s*(?:```|\[))"),),
        dropped=r"<\|CHATBOT_TOKEN\|>|<\|END_OF_TURN_TOKEN\|>",
    ),
    Format(
        "hunyuan",
        (("hy_Assistant",),),
        reasoning=(tags("<think:opensource>", "</think:opensource>"), *THINK),
        calls=(_hunyuan(ARG_KEY), ARG_KEY),
    ),
    Format(
        "solar",
        (("<|tool_call:begin|>",),),
        reasoning=(tags("<|think|>", "<|end|>", True),),
        calls=(
            NamedCalls(
                escaped("<|tool_call:begin|>"),
                r"<\|tool_call:begin\|>(?P<id>[\w-]*)<\|tool_call:name\|>(?P<name>[\w.:-]+)<\|tool_call:args\|>\s*",
                ("<|tool_call:end|>",),
            ),
        ),
        dropped=r"<\|begin\|>assistant|<\|(?:content|end|tool_calls|calls|flush)\|>",
    ),
    Format(
        "mistral",
        (("[TOOL_CALLS]",),),
        reasoning=(tags("[THINK]", "[/THINK]", True), *THINK),
        calls=MISTRAL,
        short_ids=True,
    ),
    Format(
        "functionary-3.1",
        (("<function=", "python_tag", "</function>"), ("<function=example_function_name>{",)),
        calls=(
            NamedCalls(r"<function=", r"<function=(?P<name>[\w.:-]+)>\s*", ("</function>",)),
            *LLAMA,
        ),
    ),
    Format(
        "minicpm5",
        (('<function name="',),),
        reasoning=THINK,
        calls=(
            TaggedCalls(
                r"<function name=",
                r'<function name="(?P<name>[^"]+)">',
                r'<param name="(?P<key>[^"]+)">',
                "</param>",
                ("</function>",),
            ),
        ),
    ),
    Format(
        "qwen-xml",
        (("<function=", "<parameter="),),
        reasoning=THINK,
        calls=(FUNCTION, HERMES),
    ),
    Format("glm", (("<arg_key>",),), reasoning=THINK, calls=(ARG_KEY, HERMES), dropped=escaped("<|role_end|>")),
    Format(
        "nemotron-2",
        (("<TOOLCALL>",),),
        reasoning=THINK,
        calls=(JsonCalls("<TOOLCALL>", ("</TOOLCALL>",)),),
    ),
    Format(
        "apertus",
        (("<|tools_prefix|>",),),
        reasoning=(tags("<|inner_prefix|>", "<|inner_suffix|>", True),),
        calls=(JsonCalls(escaped("<|tools_prefix|>"), ("<|tools_suffix|>",), name_as_key=True),),
    ),
    Format("firefunction", ((" functools[",),), calls=(JsonCalls(r"\s?functools(?=\s*\[)"),)),
    Format("gigachat-3.1", (("<|function_call|>",),), calls=(JsonCalls(escaped("<|function_call|>")),)),
    Format(
        "gigachat-3",
        (("<|role_sep|>", "function call"),),
        calls=(JsonCalls(r"<\|message_sep\|>\s*function call<\|role_sep\|>"),),
    ),
    Format(
        "granite-3",
        (("<|tool_call|>", "<|start_of_role|>"),),
        reasoning=THINK,
        calls=(JsonCalls(escaped("<|tool_call|>")), HERMES),
        dropped="</?response>",
    ),
    Format(
        "apriel",
        (("<tool_calls>",),),
        reasoning=(tags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"), *THINK),
        calls=(JsonCalls("<tool_calls>", ("</tool_calls>",)),),
        dropped=r"\[END FINAL RESPONSE\]",
    ),
    Format("llama-3", (("<|python_tag|>",),), reasoning=THINK, calls=LLAMA),
    Format("hermes", (("<tool_call>",),), reasoning=THINK, calls=(HERMES, FUNCTION)),
)


def format_of(template: str) -> Format:
    """The format of the models that a chat template belongs to."""
    for form in FORMATS:
        if any(all(sign in template for sign in group) for group in form.signs):
            return form
    return GENERIC

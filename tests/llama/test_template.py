"""Chat templates: the model's own, in a sandbox, or a fallback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lcspec.config import ModelOptions
from lcspec.errors import TemplateError
from lcspec.llama import Model
from lcspec.llama.template import TRANSCRIPT_STOP, ChatTemplate, chat_ids
from lcspec.session import Session
from tests import tiny_gguf as tiny
from tests.running import answer, options, request

pytestmark = pytest.mark.model

HELLO = [{"role": "user", "content": "Hello!"}]
TALK = [{"role": "system", "content": "Be brief."}, *HELLO, {"role": "assistant", "content": "Hi."}, *HELLO]


class _Templates:
    """Tiny models with a template of your choice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models: list[Model] = []

    def __call__(self, text: str | None, *, spm: bool = False) -> ChatTemplate:
        path = self.folder / f"{len(self.models)}.gguf"
        tiny.write_llama(path, vocab=tiny.spm_vocab() if spm else None, chat_template=text)
        self.models.append(Model.load(ModelOptions(path)))
        return ChatTemplate(self.models[-1])


@pytest.fixture
def templates(tmp_path: Path) -> Iterator[_Templates]:
    made = _Templates(tmp_path)
    yield made
    for model in made.models:
        model.close()


def test_the_bundled_model_speaks_chatml(demo_session: Session) -> None:
    template = ChatTemplate(demo_session.model)
    assert template.source == "model"
    assert template.render(TALK) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHello!<|im_end|>\n"
        "<|im_start|>assistant\nHi.<|im_end|>\n"
        "<|im_start|>user\nHello!<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert template.render(HELLO, add_generation_prompt=False) == "<|im_start|>user\nHello!<|im_end|>\n"
    ids, stop = demo_session.chat_ids(HELLO)
    assert stop == ()
    vocab = demo_session.model.vocab
    assert len(vocab.tokenize("<|im_start|>", special=False)) == 1
    assert vocab.text(list(ids), special=True) == template.render(HELLO)


def test_an_answer_ends_with_the_turn(demo_session: Session) -> None:
    ids, stop = demo_session.chat_ids(HELLO)
    found = answer(demo_session.engine, request(ids, "auto", 300, stop=stop, ignore_end=False))
    assert "<|im_" not in found.text


def test_without_a_template_chatml_if_its_markers_are_there(templates: _Templates) -> None:
    template = templates(None)
    assert (template.source, template.stop) == ("chatml", ())
    assert template.render(HELLO) == "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"


def test_without_template_and_markers_a_transcript(templates: _Templates) -> None:
    template = templates(None, spm=True)
    assert (template.source, template.stop) == ("transcript", (TRANSCRIPT_STOP,))
    assert template.render(TALK) == "Be brief.\n\nUser: Hello!\nAssistant: Hi.\nUser: Hello!\nAssistant:"


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__globals__['datetime'] }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.clear() }}",
        "{{ messages[0].update({}) }}",
        "{{ '%s' | format(raise_exception.__code__.co_consts) }}",
        "{{ '{0.__class__.__base__}'.format(messages) }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(templates: _Templates, attack: str) -> None:
    with pytest.raises(TemplateError):
        templates(attack).render(HELLO)


def test_what_a_template_may_not_see_is_empty(templates: _Templates) -> None:
    assert templates("[{{ raise_exception.__globals__ }}{{ messages.__class__ }}]").render(HELLO) == "[]"


def test_a_template_may_refuse(templates: _Templates) -> None:
    template = templates("{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}ok")
    assert template.render(HELLO) == "ok"
    with pytest.raises(TemplateError, match="no system role"):
        template.render(TALK)


@pytest.mark.parametrize(
    "text", ["{% for m in messages %}", "{{ messages[0]['content'] + 3 }}", "{{ messages[9].content }}", "{{ 1 / 0 }}"]
)
def test_broken_templates_are_template_errors(templates: _Templates, text: str) -> None:
    with pytest.raises(TemplateError, match="template") as error:
        templates(text).render(HELLO)
    assert "\n" not in str(error.value)


def test_a_model_thinks_unless_it_is_told_not_to(templates: _Templates) -> None:
    """Many templates have it the other way round: Gemma 4's, DeepSeek's from V3.1 on."""
    template = templates("{% if enable_thinking %}<think>{% endif %}")
    assert template.render(HELLO) == template.render(HELLO, continue_final=True) == "<think>"
    assert template.render(HELLO, enable_thinking=False) == ""


@pytest.mark.parametrize("opening", ["{% if enable_thinking %}<think>\n{% endif %}", "{{ '<think>\\n' }}"])
def test_an_answer_without_reasoning(templates: _Templates, opening: str) -> None:
    templates(opening)
    model = templates.models[-1]

    def prompt(think: bool) -> str:
        ids, _ = chat_ids(model, HELLO, think)
        return model.vocab.text(list(ids), special=True).removeprefix("<s>")

    assert prompt(True) == "<think>\n"
    assert prompt(False) == ("" if "if" in opening else "<think>\n\n</think>\n\n")


def test_what_templates_use(templates: _Templates) -> None:
    text = (
        "{{ tools | tojson }}|{{ {'a': '<é>'} | tojson(indent=None) }}|{{ strftime_now('%Y')[:2] }}|"
        "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}"
    )
    assert templates(text).render(HELLO * 2, tools=[{"name": "f"}]) == '[{"name": "f"}]|{"a": "<é>"}|20|Hello!'


@pytest.mark.parametrize("text", ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"])
def test_bos_is_there_once(templates: _Templates, text: str) -> None:
    from lcspec.session import make_engine

    template = templates(text, spm=True)
    model = templates.models[-1]
    assert model.vocab.add_bos
    with make_engine(model, options(model.options.path)) as engine:
        ids, _ = Session(model, engine).chat_ids(HELLO)
        assert ids.count(model.vocab.bos) == 1 and ids[0] == model.vocab.bos
        raw = Session(model, engine).prompt_ids("Hello!")
        assert raw.count(model.vocab.bos) == 1
    assert template.has_bos(template.render(HELLO)) is ("bos_token" in text)

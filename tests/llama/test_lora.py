"""LoRA adapters: they change the text, a scale of 0 does not, and what was measured without them is not theirs."""

from __future__ import annotations

import json
from pathlib import Path

import click.testing
import pytest

from lcspec.cli import cli
from lcspec.config import Lora, ModelOptions
from lcspec.engine.request import Request
from lcspec.errors import LcspecError, ModelFileError, UsageError
from lcspec.profiles.step_cost import curve_key
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import open_session, parse_speculation
from tests import tiny_gguf as tiny

pytestmark = pytest.mark.model

PROMPT = "the same prompt"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llama(tmp_path_factory.mktemp("lora") / "model.gguf")


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_lora(tmp_path_factory.mktemp("lora") / "adapter.gguf")


def tokens(options: ModelOptions, speculate: str = "off") -> list[int]:
    found: list[int] = []
    with open_session(options, history=False) as session:
        request = Request(
            session.prompt_ids(PROMPT),
            sampling=SamplingParams(temperature=0),
            speculation=parse_speculation(speculate, exact=True),
            max_tokens=32,
            ignore_end=True,
        )
        for event in session.engine.run(request):
            found += [info.id for info in getattr(event, "tokens", ())]
    return found


def test_it_changes_the_text_as_much_as_its_scale_says(model: Path, lora: Path) -> None:
    plain = tokens(ModelOptions(model, threads=1))
    changed = tokens(ModelOptions(model, threads=1, lora=(Lora(lora),)))
    assert changed != plain
    assert tokens(ModelOptions(model, threads=1, lora=(Lora(lora, 0.0),))) == plain
    assert tokens(ModelOptions(model, threads=1, lora=(Lora(lora, 0.5), Lora(lora, 0.5)))) == changed
    assert tokens(ModelOptions(model, threads=1, lora=(Lora(lora),)), "ngram,suffix") == changed  # drafted


def test_what_was_measured_belongs_to_the_adapter(model: Path, lora: Path) -> None:
    def key(*loras: Lora) -> str:
        return curve_key(ModelOptions(model, lora=loras), 1, 0)

    assert key(Lora(lora)) != key() != key(Lora(lora, 0.5)) != key(Lora(lora))
    assert key(Lora(lora, 0.0)) == key()


@pytest.mark.parametrize("text, scale", [("{}", 1.0), ("{}:0.5", 0.5), ("{}:-2", -2.0)])
def test_how_it_is_named(lora: Path, text: str, scale: float) -> None:
    assert Lora.parse(text.format(lora)) == Lora(lora, scale)


def test_bad_ones_are_refused(model: Path, lora: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="finite"):
        Lora.parse(f"{lora}:nan")
    other = tiny.write_lora(tmp_path / "other.gguf", architecture="qwen2")
    wide = tiny.write_lora(tmp_path / "wide.gguf", width=128)
    deep = tiny.write_lora(tmp_path / "deep.gguf", n_layer=3)
    for path, said in (
        (model, "no LoRA adapter"),
        (other, "architecture qwen2"),
        (wide, "another size"),
        (deep, "blk.2.attn_q.weight"),
        (tmp_path / "none.gguf", "none.gguf"),
    ):
        with pytest.raises(LcspecError, match=said) as error, open_session(ModelOptions(model, lora=(Lora(path),))):
            pass
        assert isinstance(error.value, ModelFileError)


def test_on_the_command_line(model: Path, lora: Path) -> None:
    def generate(*more: str) -> str:
        arguments = ["generate", str(model), "-p", PROMPT, "-n", "16", "--temperature", "0", "--json", "--no-draft"]
        got = click.testing.CliRunner().invoke(cli, [*arguments, "--no-history", "--threads", "1", *more])
        assert got.exit_code == 0, got.output
        return str(json.loads(got.stdout)["text"])

    assert generate() != generate("--lora", str(lora))
    assert generate() == generate("--lora", f"{lora}:0")


def test_in_the_chat(model: Path, lora: Path) -> None:
    from lcspec.tui.start import chat_options

    assert chat_options({"model": model, "lora": (f"{lora}:0.5",), "no_draft": True}).lora == (Lora(lora, 0.5),)
    with pytest.raises(UsageError, match="name that model"):
        chat_options({"lora": (str(lora),)})

"""Options: what is read, what is refused, and that the message says what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lcspec.config import KV_TYPES, DrafterSpec, ModelOptions, SpeculationParams, load_toml
from lcspec.errors import UsageError


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("ngram", "ngram", {}),
        (" ngram ", "ngram", {}),
        ("ngram:tree", "ngram", {"tree": "1"}),
        ("model:branch=3", "model", {"branch": "3"}),
        ("model:branch=3:p_min=0.25:fast", "model", {"branch": "3", "p_min": "0.25", "fast": "1"}),
        ("x:path=a=b", "x", {"path": "a=b"}),
        ("x:k=1:k=2", "x", {"k": "2"}),
    ],
)
def test_parse(text: str, name: str, options: dict[str, str]) -> None:
    assert DrafterSpec.parse(text) == DrafterSpec(name, options)


@pytest.mark.parametrize("text", ["model:", "model:=3", "model:a=1::b=2"])
def test_parse_refuses_empty_options(text: str) -> None:
    with pytest.raises(UsageError, match="name:key=value"):
        DrafterSpec.parse(text)


def test_integer() -> None:
    spec = DrafterSpec.parse("model:branch=3:nodes=0:low=-1:word=many:real=1.5")
    assert spec.integer("branch", 1) == 3
    assert spec.integer("nodes", 7) == 0
    assert spec.integer("absent", 7) == 7
    assert spec.integer("branch", 1, 3, 3) == 3
    for key, low, high in [("branch", 4, 9), ("branch", 0, 2), ("low", 0, 9), ("word", 0, 9), ("real", 0, 9)]:
        with pytest.raises(UsageError, match=f"model:{key} must be a whole number from {low} to {high}"):
            spec.integer(key, 1, low, high)


def test_number() -> None:
    spec = DrafterSpec.parse("model:p=0.25:big=1e9:nan=nan:word=x")
    assert spec.number("p", 0.5) == 0.25
    assert spec.number("absent", 0.5) == 0.5
    assert spec.number("big", 0.5, 0, 1e9) == 1e9
    for key in ("big", "nan", "word"):
        with pytest.raises(UsageError, match=f"model:{key} must be a number from 0 to 1"):
            spec.number(key, 0.5)


def test_check_keys() -> None:
    spec = DrafterSpec.parse("model:branch=3")
    spec.check_keys({"branch", "nodes"})
    with pytest.raises(UsageError, match="no option 'branch'; it knows a, b"):
        spec.check_keys({"b", "a"})
    with pytest.raises(UsageError, match="it knows none"):
        spec.check_keys(set())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ctx", -1),
        ("threads", -1),
        ("slots", 0),
        ("batch", 1),
        ("kv_type", "q9"),
        ("kv_type", "F16"),
        ("attention", "fast"),
    ],
)
def test_model_options_ranges(field: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        ModelOptions(Path("m.gguf"), **{field: value})
    assert str(value) in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_model_options_defaults_and_limits() -> None:
    options = ModelOptions(Path("m.gguf"), ctx=0, threads=0, slots=1, batch=2)
    assert options.kv_type in KV_TYPES and options.gpu_layers is None and options.attention == "measured"
    for kv_type in KV_TYPES:
        assert ModelOptions(Path("m.gguf"), kv_type=kv_type).kv_type == kv_type


def test_speculation_params() -> None:
    assert SpeculationParams(max_draft=0).max_draft == 0
    assert SpeculationParams().drafters == () and SpeculationParams().verifier == "coupled"
    with pytest.raises(UsageError, match="max-draft"):
        SpeculationParams(max_draft=-1)


def test_load_toml(tmp_path: Path) -> None:
    good, bad, binary = tmp_path / "good.toml", tmp_path / "bad.toml", tmp_path / "binary.toml"
    good.write_text('model = "a.gguf"\n[sampling]\ntemperature = 0.5\n')
    bad.write_text("model = \n")
    binary.write_bytes(b"\xff\xfe\x00")
    assert load_toml(good) == {"model": "a.gguf", "sampling": {"temperature": 0.5}}
    for path in (bad, binary, tmp_path / "absent.toml", tmp_path):
        with pytest.raises(UsageError) as caught:
            load_toml(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 5000, "= 1", "\udcff", "a = 8" + "9" * 5000], ids=["deep", "no key", "no text", "long"]
)
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match="is not valid TOML"):
        load_toml(path)

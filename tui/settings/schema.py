"""Settings to and from plain TOML values: which keys there are, what they may be, and what to say if they are not."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, Callable, Iterator, Mapping

from lcspec.config import KV_TYPES, MAX_DRAFT
from lcspec.errors import LcspecError
from lcspec.placement import FLASH_ATTN, SPLIT_MODES, overrides_of, shares_of
from lcspec.sampling.parameters import MADE, SamplingParams
from lcspec.session import parse_speculation
from lcspec.tui.settings.values import ModelSettings, Preset, Settings, Speculation

Path = tuple[str, ...]
Rule = Callable[[object], Any]  # the value as the dataclass wants it; ValueError: "must be ..."
Report = Callable[[Path, str], None]


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text in quotes")
    return value


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _integer(low: int, high: int | None = None) -> Rule:
    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
            raise ValueError(f"must be a whole number from {low}" + (f" to {high}" if high is not None else ""))
        return value

    return check


def _choice(*choices: str) -> Rule:
    def check(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value

    return check


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError('must be a list of texts in quotes, like ["one", "two"]')
    return tuple(value)


def _gpu_layers(value: object) -> int | None:
    if value == "auto":
        return None
    if value == "all":
        return -1
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError('must be "auto", "all" or a number of layers')
    return value


def _meaning(read: Callable[[str], object]) -> Rule:
    """A text that `read` must understand."""

    def check(value: object) -> str:
        text = _string(value)
        try:
            read(text)
        except LcspecError as error:
            raise ValueError(f"is not understood: {error}") from None
        return text

    return check


def _overrides(value: object) -> tuple[str, ...]:
    texts = _strings(value)
    for text in texts:
        _meaning(lambda t: overrides_of((t,)))(text)
    return texts


def _drafters(value: object) -> str:
    return str(_meaning(parse_speculation)(value))


def _sampling(name: str, whole: bool) -> Rule:
    def check(value: object) -> int | float:
        kinds = (int,) if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ValueError("must be a whole number" if whole else "must be a number")
        number = value if whole else float(value)
        try:
            SamplingParams(**{name: number})  # type: ignore[arg-type]
        except LcspecError as error:
            raise ValueError(str(error).removeprefix(f"{name} ")) from None
        return number

    return check


def _breakers(value: object) -> tuple[str, ...]:
    texts = _strings(value)
    try:
        SamplingParams(dry_sequence_breakers=texts)
    except LcspecError as error:
        raise ValueError(str(error).removeprefix("dry_sequence_breakers ")) from None
    return texts


SAMPLING: Mapping[str, Rule] = {
    f.name: _breakers
    if f.name == "dry_sequence_breakers"
    else _sampling(f.name, f.name == "seed" or isinstance(f.default, int))
    for f in fields(SamplingParams)
    if f.name not in MADE
}
TOP: Mapping[str, Rule] = {
    "theme": _string,
    "lens": _boolean,
    "on_full": _choice("stop", "drop"),
    "think": _boolean,
    "folders": _strings,
    "system": _string,
    "max_tokens": _integer(1),
    "preset": _string,
}
SPECULATION: Mapping[str, Rule] = {
    "drafters": _drafters,
    "max_draft": _integer(0, MAX_DRAFT),
    "verifier": _string,
    "exact": _boolean,
}
MODEL: Mapping[str, Rule] = {
    "ctx": _integer(0),
    "threads": _integer(0),
    "gpu_layers": _gpu_layers,
    "kv_type": _choice(*KV_TYPES),
    "kv_type_k": _choice(*KV_TYPES),
    "kv_type_v": _choice(*KV_TYPES),
    "flash_attn": _choice(*FLASH_ATTN),
    "device": _string,
    "main_gpu": _integer(0),
    "split_mode": _choice(*SPLIT_MODES),
    "tensor_split": _meaning(shares_of),
    "override_tensor": _overrides,
    "cpu_moe": _boolean,
    "kv_offload": _boolean,
    "swa_full": _boolean,
    "mmap": _boolean,
    "mlock": _boolean,
    "draft_device": _string,
    "draft_gpu_layers": _gpu_layers,
    "draft_threads": _integer(0),
    "workers": _string,
}
_PRESET_OWN: Mapping[str, Rule] = {"system": _string, "drafters": _drafters, "max_tokens": _integer(1)}
PRESET: Mapping[str, Rule] = {**_PRESET_OWN, **SAMPLING}
SECTIONS: Mapping[str, Mapping[str, Rule]] = {"sampling": SAMPLING, "speculation": SPECULATION, "model": MODEL}


def read_settings(data: Mapping[str, Any], report: Report) -> Settings:
    """Settings from a parsed file. What is unknown or wrong is reported and left at its default."""
    top = {key: value for key, value in data.items() if key not in (*SECTIONS, "presets")}
    values = _read(top, TOP, (), report)
    tables = {name: _read(_table(data, (name,), report), rules, (name,), report) for name, rules in SECTIONS.items()}
    presets = {}
    for name, table in _table(data, ("presets",), report).items():
        if not isinstance(table, Mapping):
            report(("presets", name), f"presets.{name} must be a table: write [presets.{name}]")
            continue
        given = _read(table, PRESET, ("presets", name), report)
        own = {key: given.pop(key) for key in _PRESET_OWN if key in given}
        presets[name] = Preset(name, sampling=MappingProxyType(given), **own)
    settings = Settings(
        **values,
        sampling=SamplingParams(**tables["sampling"]),
        speculation=Speculation(**tables["speculation"]),
        model=ModelSettings(**tables["model"]),
        presets=MappingProxyType(presets),
    )
    if settings.preset is not None and settings.preset not in presets:
        report(("preset",), f"there is no preset {settings.preset!r}: {_known(presets, 'there are')}")
        settings = replace(settings, preset=None)
    return settings


def plain_values(settings: Settings) -> dict[Path, Any]:
    """Every key with its TOML value; keys without one (None) are left out. A preset has an entry {} of its own."""
    out: dict[Path, Any] = {(key,): _plain(getattr(settings, key)) for key in TOP}
    for section, rules in SECTIONS.items():
        out.update({(section, key): _plain(getattr(getattr(settings, section), key)) for key in rules})
    for key in ("gpu_layers", "draft_gpu_layers"):
        layers = getattr(settings.model, key)
        out["model", key] = "auto" if layers is None else "all" if layers < 0 else layers
    for name, preset in settings.presets.items():
        out["presets", name] = {}
        out.update({("presets", name, key): getattr(preset, key) for key in _PRESET_OWN})
        out.update({("presets", name, key): _plain(value) for key, value in preset.sampling.items()})
    return {path: value for path, value in out.items() if value is not None}


def _read(table: Mapping[str, Any], rules: Mapping[str, Rule], at: Path, report: Report) -> dict[str, Any]:
    out = {}
    for key, value in table.items():
        name = ".".join((*at, key))
        if key not in rules:
            report((*at, key), f"{name} is not a setting and has no effect: {_known(rules, 'known are')}")
            continue
        try:
            out[key] = rules[key](value)
        except ValueError as error:
            report((*at, key), f"{name} {error}; the default serves")
    return out


def _table(data: Mapping[str, Any], path: Path, report: Report) -> Mapping[str, Any]:
    value = data.get(path[0], {})
    if isinstance(value, Mapping):
        return value
    report(path, f"{path[0]} must be a table: write [{path[0]}]")
    return {}


def _known(names: Mapping[str, object], words: str) -> str:
    return f"{words} {', '.join(names)}" if names else "none is defined"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def template() -> str:
    """A file with every setting at its default, as comments to be uncommented."""
    values = plain_values(Settings())
    lines = [_HEAD]
    for key in TOP:
        lines += [f"# {_ABOUT[key]}", f"#{key} = {_toml(values.get((key,), _EXAMPLES.get(key)))}"]
    for section, rules in SECTIONS.items():
        lines += ["", f"# [{section}]: {_ABOUT[section]}", f"#[{section}]"]
        lines += [f"#{key} = {_toml(values.get((section, key), _EXAMPLES.get(key)))}" for key in rules]
    return "\n".join([*lines, "", f"# {_ABOUT['presets']}", *_PRESET_EXAMPLE]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


_HEAD = "# Settings of `lcspec chat`. Take away a # to change one; the values shown are the defaults.\n"
_EXAMPLES = {
    **{"max_tokens": 1024, "preset": "coding", "seed": 7, "max_draft": 16, "kv_type_k": "f16", "kv_type_v": "q8_0"},
    **{"device": "CUDA0", "tensor_split": "3,1", "mmap": True, "draft_device": "none", "workers": "127.0.0.1:50052"},
}
_ABOUT = {
    "theme": "name of a theme (empty: chosen for your terminal)",
    "lens": "tint every token by who drafted it",
    "on_full": 'when the context is full: "stop", or "drop" the oldest turns',
    "think": "let models that can think do so before they answer",
    "folders": 'where to look for models besides the known caches, like ["~/models"]',
    "system": "system prompt of new chats",
    "max_tokens": "tokens of an answer at most (without it: until the model ends)",
    "preset": "preset in use",
    "sampling": "as the options of `lcspec generate`; without a seed every answer gets a new one",
    "speculation": 'drafters: "auto", "off" or names, as for --speculate',
    "model": "ctx 0: the model's own, threads 0: physical cores; devices as in docs/devices.md",
    "presets": "presets change any of system, drafters, max_tokens and the sampling keys",
}
_PRESET_EXAMPLE = ("#[presets.coding]", '#system = "Answer with code."', "#temperature = 0.2")


def dotted_keys() -> Iterator[str]:
    """Every key that a file may have, presets aside."""
    yield from TOP
    for section, rules in SECTIONS.items():
        yield from (f"{section}.{key}" for key in rules)

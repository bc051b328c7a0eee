"""The chat's settings file: read without failing, written without losing anything of the user's."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lcspec.sampling.parameters import SamplingParams
from lcspec.tui.settings import ModelSettings, Preset, Settings, SettingsError, SettingsFile, Speculation
from lcspec.tui.settings.schema import dotted_keys, template

FULL = """\
# my settings
theme = "nord"   # the dark one
lens = true
on_full = 'drop'
think = false
folders = ["~/models", "$HOME/more"]
system = \"\"\"
Be brief.
theme = "not this line"
\"\"\"
max_tokens = 500
preset = "coding"

[sampling]
temperature = 1  # a whole number will do
seed = 18446744073709551615
top_k = 0

[speculation]
drafters = "ngram,model:branch=3"
max_draft = 8
exact = true

[model]
ctx = 4096
gpu_layers = "all"
kv_type = "q8_0"

[presets.coding]
system = "Answer with code."
temperature = 0.2
drafters = "off"

[presets."two words"]
max_tokens = 7
"""


def written(tmp_path: Path, text: str) -> SettingsFile:
    path = tmp_path / "chat.toml"
    path.write_text(text, encoding="utf-8")
    return SettingsFile(path)


# Settings of [model] whose line in the template is an example: without it the library chooses.
WITHOUT_DEFAULT = ("kv_type_k", "kv_type_v", "device", "tensor_split", "mmap", "draft_device", "workers")


def test_no_file_means_defaults(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "none" / "chat.toml")
    assert file.settings == Settings() and file.problems == () and not file.reload()
    file.save(file.settings)
    assert not file.path.exists(), "nothing to say, nothing written"


def test_the_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert SettingsFile().path.name == "chat.toml" and SettingsFile().path.parent.name == "lcspec"


def test_everything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    file = written(tmp_path, FULL)
    assert file.problems == ()
    s = file.settings
    assert (s.theme, s.lens, s.on_full, s.max_tokens, s.preset) == ("nord", True, "drop", 500, "coding")
    assert not s.think
    assert s.system == 'Be brief.\ntheme = "not this line"\n'
    assert s.folder_paths == (Path("/home/me/models"), Path("/home/me/more"))
    assert s.sampling == SamplingParams(temperature=1.0, seed=2**64 - 1, top_k=0)
    assert s.speculation == Speculation("ngram,model:branch=3", 8, exact=True)
    assert s.model == ModelSettings(ctx=4096, gpu_layers=-1, kv_type="q8_0")
    assert list(s.presets) == ["coding", "two words"]
    assert s.presets["two words"] == Preset("two words", max_tokens=7)


def test_a_preset_changes_what_it_names(tmp_path: Path) -> None:
    s = written(tmp_path, FULL).settings
    coding = s.with_preset("coding")
    assert (coding.system, coding.sampling.temperature, coding.speculation.drafters) == (
        "Answer with code.",
        0.2,
        "off",
    )
    assert coding.sampling.seed == 2**64 - 1 and coding.speculation.max_draft == 8 and coding.max_tokens == 500
    assert s.with_preset("two words").max_tokens == 7
    for name in (None, "unknown"):
        assert s.with_preset(name) == replace(s, preset=None)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("\ntheme = 3", 2, "theme must be a text"),
        ("lens = 1", 1, "lens must be true or false"),
        ("on_full = 'explode'", 1, "stop, drop"),
        ("folders = '~/models'", 1, "list of texts"),
        ("max_tokens = 0", 1, "whole number from 1"),
        ("max_tokens = true", 1, "whole number from 1"),
        ("preset = 'nope'", 1, "no preset 'nope'"),
        ("[sampling]\n# comment\ntemperature = -1", 3, "sampling.temperature must be between 0 and 100, not -1"),
        ("[sampling]\nmirostat = " + "9" * 400, 2, "between 0 and 2, not a number that large"),
        ("[sampling]\ntop_k = 1.5", 2, "sampling.top_k must be a whole number"),
        ("[sampling]\nmirostat = 3", 2, "sampling.mirostat must be between 0 and 2"),
        ('[sampling]\ndry_sequence_breakers = ":"', 2, "sampling.dry_sequence_breakers must be a list of texts"),
        ('[sampling]\ndry_sequence_breakers = [""]', 2, "sampling.dry_sequence_breakers must be texts, none of them"),
        ("[sampling]\ntemperature = nan", 2, "finite"),
        ("[sampling]\nseed = -2", 2, "seed must be between"),
        ("[sampling]\nlogit_bias = 1", 2, "not a setting"),
        ("sampling.top_p = 'x'", 1, "must be a number"),
        ("sampling = 3", 1, "must be a table"),
        ("[ speculation ]\ndrafters = 'a:=1'", 2, "is not understood"),
        ("[speculation]\nmax_draft = 256", 2, "from 0 to 255"),
        ("[model]\ngpu_layers = 'some'", 2, '"auto", "all"'),
        ("[model]\nkv_type = 'q3'", 2, "f16"),
        ("[model]\nkv_type_v = 'q3'", 2, "f16"),
        ("[model]\nflash_attn = true", 2, "auto, on, off"),
        ("[model]\ntensor_split = 'x'", 2, "is not understood"),
        ("[model]\noverride_tensor = ['x']", 2, "PATTERN=DEVICE"),
        ("[model]\nmmap = 1", 2, "true or false"),
        ("[model]\nctx = -4", 2, "from 0"),
        ("colour = 'red'", 1, "colour is not a setting"),
        ("[extra]\nx = 1", 1, "extra is not a setting"),
        ("presets = 3", 1, "must be a table"),
        ("[presets]\nx = 3", 2, "[presets.x]"),
        ('[presets."a b"]\ntop_p = 2', 2, "between 0 and 1"),
        ("system = '''\nlens = 4\n'''\nlens = 5", 4, "lens must be"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_the_default_serves(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    file = written(tmp_path, text)
    assert len(file.problems) == 1
    problem = file.problems[0]
    assert problem.line == line and words in problem.message and "\n" not in problem.message
    assert str(problem).startswith(f"line {line}: ")
    assert replace(file.settings, presets={}, system="") == Settings()
    assert file.path.read_text() == text


@pytest.mark.parametrize("text", ["theme = ", "= 3", "[a\nb", "x = 1\nx = 2", "theme = 'x", "[a]\n[a]\n", "\x00"])
def test_a_file_that_is_no_toml_is_reported_and_left_alone(tmp_path: Path, text: str) -> None:
    file = written(tmp_path, text)
    assert len(file.problems) == 1 and "not valid TOML" in file.problems[0].message
    assert file.settings == Settings()
    with pytest.raises(SettingsError, match="not valid TOML") as caught:
        file.save(replace(file.settings, lens=True))
    assert "\n" not in str(caught.value)
    assert file.settings.lens, "in force all the same"
    assert file.path.read_text() == text
    file.path.write_text("theme = 'fixed'")
    file.save(file.settings)
    assert SettingsFile(file.path).settings == Settings(lens=True, theme="fixed")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "chat.toml"
    path.write_bytes(b"theme = '\xff\xfe'")
    file = SettingsFile(path)
    assert len(file.problems) == 1 and file.settings == Settings()
    with pytest.raises(SettingsError):
        file.save(Settings(lens=True))
    path.write_bytes(b"\xef\xbb\xbftheme = 'with a mark'\r\n")
    assert SettingsFile(path).settings.theme == "with a mark" and SettingsFile(path).problems == ()


def test_saving_keeps_comments_order_and_strangers(tmp_path: Path) -> None:
    text = FULL + "\n[extra] # theirs\nx = [1, 2]\n\n[sampling.deep]\ny = 1\n"
    file = written(tmp_path, text)
    file.save(
        replace(
            file.settings,
            theme="dracula",
            max_tokens=None,
            sampling=replace(file.settings.sampling, temperature=0.5, min_p=0.1, seed=None),
            speculation=Speculation(),
            model=replace(file.settings.model, threads=2, gpu_layers=None),
        )
    )
    new = file.path.read_text()
    for kept in (
        "# my settings",
        "# the dark one",
        "# a whole number will do",
        "[extra] # theirs",
        "x = [1, 2]",
        "y = 1",
    ):
        assert kept in new
    assert 'theme = "dracula"   # the dark one' in new and "temperature = 0.5  # a whole number will do" in new
    assert "max_tokens = 500" not in new and "seed" not in new
    again = SettingsFile(file.path)
    assert again.settings == file.settings
    assert again.settings.speculation == Speculation() and again.settings.model.threads == 2
    assert new.index("# my settings") < new.index("[sampling]") < new.index("[presets.coding]") < new.index("[extra]")


def test_saving_writes_only_what_changed(tmp_path: Path) -> None:
    text = "lens = 'maybe'  # wrong\n[sampling]\ntemperature = 0.9\n"
    file = written(tmp_path, text)
    one = SettingsFile(file.path)
    file.path.write_text(text.replace("0.9", "0.4"))  # edited by hand meanwhile
    one.save(replace(one.settings, theme="nord"))
    assert file.path.read_text() == "lens = 'maybe'  # wrong\ntheme = \"nord\"\n\n[sampling]\ntemperature = 0.4\n"
    assert one.settings.sampling.temperature == 0.4 and len(one.problems) == 1
    assert file.reload() and file.settings == one.settings and not file.reload()


def test_a_first_save_makes_a_file_to_edit(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "new" / "chat.toml")
    wanted = Settings(
        lens=True,
        system='with "quotes"\nand lines',
        sampling=SamplingParams(temperature=0.25),
        presets={
            "a b": Preset("a b", "sys", {"top_k": 3, "dry_sequence_breakers": ("\n", '"')}),
            "empty": Preset("empty"),
        },
        preset="a b",
    )
    file.save(wanted)
    again = SettingsFile(file.path)
    assert again.settings == wanted == file.settings and again.problems == ()
    assert "#theme" in file.path.read_text()
    file.save(replace(wanted, presets={"empty": Preset("empty")}, preset=None))
    assert SettingsFile(file.path).settings == replace(wanted, presets={"empty": Preset("empty")}, preset=None)


def test_the_template_says_what_there_is(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "chat.toml")
    assert file.create() == file.path and file.path.read_text() == template()
    assert SettingsFile(file.path).settings == Settings() and SettingsFile(file.path).problems == ()
    uncommented = "\n".join(
        line[1:] if line.startswith("#") and not line.startswith("# ") else line for line in template().splitlines()
    )
    other = tmp_path / "other.toml"
    other.write_text(uncommented)
    full = SettingsFile(other)
    assert full.problems == ()
    assert {k for k in dotted_keys()} == {
        ".".join(path) for path in _paths(tomlkit.parse(uncommented).unwrap()) if path[0] != "presets"
    }
    named = replace(
        full.settings,
        max_tokens=None,
        preset=None,
        presets={},
        sampling=replace(full.settings.sampling, seed=None),
        speculation=replace(full.settings.speculation, max_draft=None),
        model=replace(full.settings.model, **dict.fromkeys(WITHOUT_DEFAULT)),
    )
    assert named == Settings(), "the values shown are the defaults"
    file.path.write_text("lens = true")
    file.create()
    assert file.path.read_text() == "lens = true"


def _paths(data: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (key, *rest)
        for key, value in data.items()
        for rest in (_paths(value) if isinstance(value, dict) else [()])  # type: ignore[list-item]
    ]


def test_saving_goes_through_a_link_and_keeps_the_mode(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "chat.toml"
    real.parent.mkdir()
    real.write_text("lens = true\n")
    real.chmod(0o640)
    link = tmp_path / "chat.toml"
    link.symlink_to(real)
    file = SettingsFile(link)
    file.save(replace(file.settings, lens=False))
    assert link.is_symlink() and "lens = false" in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert [p.name for p in real.parent.iterdir()] == ["chat.toml"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "theme = 'old'\n")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(SettingsError, match="No space left"):
        file.save(replace(file.settings, theme="new"))
    monkeypatch.undo()
    assert file.path.read_text() == "theme = 'old'\n" and [p.name for p in tmp_path.iterdir()] == ["chat.toml"]
    assert file.settings.theme == "new"
    file.save(replace(file.settings, lens=True))
    assert SettingsFile(file.path).settings == Settings(theme="new", lens=True), "saved with the next change"


def test_a_directory_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "chat.toml").mkdir()
    file = SettingsFile(tmp_path / "chat.toml")
    assert file.settings == Settings() and len(file.problems) == 1
    with pytest.raises(SettingsError):
        file.save(Settings(lens=True))


def test_dotted_and_inline_tables_are_edited_in_place(tmp_path: Path) -> None:
    file = written(tmp_path, 'sampling.top_k = 3 # k\nmodel = { ctx = 10 }\npresets.x = { system = "s" }\n')
    assert file.problems == () and file.settings.model.ctx == 10
    new = replace(
        file.settings,
        sampling=SamplingParams(top_k=4, top_p=0.5),
        model=ModelSettings(ctx=20, threads=1),
        presets={"x": Preset("x", "t", max_tokens=3)},
    )
    file.save(new)
    assert "# k" in file.path.read_text() and SettingsFile(file.path).settings == new


KEYS = st.one_of(
    st.sampled_from([k for key in dotted_keys() for k in key.split(".")] + ["presets"]),
    st.text(st.characters(codec="utf-8"), max_size=4),
)
TOML = st.recursive(
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(st.characters(codec="utf-8"))),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(KEYS, TOML, max_size=6), st.booleans(), st.sampled_from(["a", "b c", "ü"]))
def test_any_toml_is_read_and_saved_without_loss(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any], lens: bool, name: str
) -> None:
    path = tmp_path_factory.mktemp("any") / "chat.toml"
    try:
        text = tomlkit.dumps(data)
        if tomlkit.parse(text).unwrap() != data:
            return  # nan, or a value that tomlkit itself does not carry
    except Exception:
        return
    path.write_bytes(text.encode())
    file = SettingsFile(path)
    wanted = replace(file.settings, lens=lens, presets={**file.settings.presets, name: Preset(name, "s")}, preset=name)
    try:
        file.save(wanted)
    except SettingsError:
        assert path.read_bytes() == text.encode()
        return
    after = tomlkit.parse(path.read_bytes().decode()).unwrap()
    again = SettingsFile(path)
    assert (again.settings.lens, again.settings.preset, again.settings.presets[name].system) == (lens, name, "s")
    touched = {"lens", "preset", "presets"}
    assert {k: v for k, v in after.items() if k not in touched} == {k: v for k, v in data.items() if k not in touched}


def test_the_example_in_the_docs_is_understood(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "chat.md"
    example = page.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    path = tmp_path / "chat.toml"
    path.write_text(example, encoding="utf-8")
    file = SettingsFile(path)
    assert not file.problems
    assert file.settings.preset == "careful" and file.settings.sampling.temperature == 0.7

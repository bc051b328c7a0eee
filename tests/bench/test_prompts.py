"""Reading, choosing and fitting prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lcspec.bench.builtin import KINDS, builtin_prompts
from lcspec.bench.prompts import Prompt, fit, groups, read_prompts, spread
from lcspec.errors import UsageError


def written(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n", encoding="utf-8")
    return path


def test_both_formats_are_read(tmp_path: Path) -> None:
    ours = {"id": "a/1", "set": "a", "category": "code", "turns": ["one", "two"], "licence": "x"}
    spec_bench = {"question_id": 81, "category": "writing", "turns": ["three"]}
    assert read_prompts(written(tmp_path, ours, "", spec_bench)) == [
        Prompt("a/1", "code", "one", "a"),
        Prompt("81", "writing", "three"),
    ]


def test_line_separators_inside_a_text_do_not_end_the_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('\ufeff{"turns": ["a\u2028b"]}\r\n', encoding="utf-8")
    assert read_prompts(path) == [Prompt("1", "all", "a\u2028b")]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "[" * 100_000,
        {"turns": []},
        {"turns": "text"},
        {"turns": [1]},
        {"turns": [" "]},
        {},
        {"turns": ["a"], "category": 3},
        {"turns": ["a"], "id": []},
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: object) -> None:
    with pytest.raises(UsageError, match="line 2"):
        read_prompts(written(tmp_path, {"turns": ["fine"]}, line))


def test_files_that_cannot_serve(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="empty"):
        read_prompts(written(tmp_path, "", "  "))
    with pytest.raises(UsageError, match="cannot read"):
        read_prompts(tmp_path / "missing")
    with pytest.raises(UsageError, match="cannot read"):
        read_prompts(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="UTF-8"):
        read_prompts(tmp_path / "binary")


def test_categories_of_several_sets_are_told_apart() -> None:
    prompts = [Prompt("1", "code", "x", "a"), Prompt("2", "code", "x", "b"), Prompt("3", "chat", "x", "a")]
    assert groups(prompts) == {"a/code": [0], "b/code": [1], "chat": [2]}


def test_a_limit_is_spread_over_categories() -> None:
    prompts = [Prompt(str(i), "big", "x") for i in range(20)] + [Prompt(f"s{i}", "small", "x") for i in range(2)]
    chosen = spread(prompts, 6)
    assert [p.id for p in chosen] == ["0", "5", "10", "15", "s0", "s1"]
    assert len(spread(prompts, 1)) == 1
    assert spread(prompts, None) == prompts == spread(prompts, 99)


@pytest.mark.parametrize("room", range(1, 14))
def test_fitting_keeps_the_longest_end(room: int) -> None:
    text = "abcdefghij"
    ids, cut = fit(text, room, lambda t: [0, *t.encode(), 1])  # two tokens of a template around it
    if room >= 12:
        assert (len(ids), cut) == (12, 0)
    elif room >= 3:
        assert len(ids) == room and cut == 12 - room and bytes(ids[1:-1]) == text[cut:].encode()
    else:
        assert ids == ()


def test_the_built_in_set_has_every_kind() -> None:
    prompts = builtin_prompts()
    assert len({p.id for p in prompts}) == len(prompts)
    assert all(len(ids) >= 2 for ids in groups(prompts).values()) and set(groups(prompts)) == set(KINDS)

"""Markdown laid out as lines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from lcspec.tui.document import Document
from lcspec.tui.tables import column_widths

pytestmark = pytest.mark.tui

TEXT = """# Title

A paragraph that is long enough to be wrapped, with **bold** and `code`.

1. one
2. two
   - inner

> quoted
> text

```python
def f(x):
    return x
```

| a | b |
|---|--:|
| x | 1 |
"""


def lines(text: str, width: int = 40) -> list[str]:
    document = Document()
    document.update(text)
    return [line.plain.rstrip() for line in document.lines(width)]


def test_every_kind_of_block() -> None:
    assert lines(TEXT) == [
        "Title",
        "",
        "A paragraph that is long enough to be",
        "wrapped, with bold and code.",
        "",
        "1. one",
        "2. two",
        "   ◦ inner",
        "",
        "▎ quoted text",
        "",
        "  python" + " " * 26 + "copy",
        "  def f(x):",
        "      return x",
        "",
        "",
        "a │ b",
        "──┼──",
        "x │ 1",
    ]


def test_maths_stays_latex_where_only_ascii_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    text = r"An area of \(\pi r^2\), and \[ x^2 \]"
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert "πr²" in lines(text)[0].replace(" ", "")
    monkeypatch.setenv("LC_ALL", "C")  # "?r2" would be another formula
    shown = "\n".join(lines(text))
    assert r"\pi r^2" in shown and "x^2" in shown and shown.isascii()


def test_html_and_unfinished_marks_stay_as_they_are() -> None:
    assert lines("<b>x</b> and [link](") == ["<b>x</b> and [link]("]
    assert lines("") == []


@pytest.mark.parametrize("width", [20, 40, 200])
def test_no_line_is_wider_than_the_room(width: int) -> None:
    document = Document("  ")
    document.update(TEXT + "\n" + "日本語" * 30 + "\n\n- " + "x" * 300)
    wide = [line.plain for line in document.lines(width) if cell_len(line.plain.rstrip()) > width]
    assert not wide


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, len(TEXT)), max_size=12))
def test_text_that_came_in_pieces_looks_as_if_it_had_come_at_once(cuts: list[int]) -> None:
    document = Document()
    for end in sorted(cuts):
        document.update(TEXT[:end], growing=True)
        list(document.lines(40))
    document.update(TEXT)
    assert [line.plain.rstrip() for line in document.lines(40)] == lines(TEXT)


def test_what_is_appended_leaves_the_lines_before_alone() -> None:
    document = Document()
    document.update("one\n\ntwo", growing=True)
    before = list(document.lines(40))
    document.update("one\n\ntwo three", growing=True)
    after = list(document.lines(40))
    assert after[0] is before[0] and after[2].plain == "two three"


@given(st.lists(st.integers(1, 200), min_size=1, max_size=8), st.integers(1, 120))
def test_columns_fit_where_they_can(natural: list[int], room: int) -> None:
    widths = column_widths(natural, room)
    assert all(1 <= w <= n for w, n in zip(widths, natural))
    assert sum(widths) <= room or max(widths) <= 4
    if sum(natural) <= room:
        assert widths == natural

"""The chat where there is nothing but ASCII."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from lcspec.tui.ascii import ascii_wanted, to_ascii


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({"LC_ALL": "C"}, True),
        ({"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, True),
        ({"LC_ALL": "", "LC_CTYPE": "", "LANG": "de_DE.ISO-8859-1"}, True),
        ({"LC_ALL": "C.UTF-8"}, False),
        ({"LANG": "en_US.utf8"}, False),
        ({}, False),
    ],
)
def test_the_locale_decides(environ: dict[str, str], wanted: bool) -> None:
    assert ascii_wanted(environ) is wanted


def test_every_cell_stays_where_it_is() -> None:
    for text in ("▸ Thought: 3 words … ‹ 2/3 ›", "█░ ● ○ × · é “quoted” ─┼│╭╮", "日本語 x² ½", "plain"):
        plain = to_ascii(text)
        assert plain.isascii() and len(plain) == cell_len(text)
    assert to_ascii("é × ● 日") == "e x * ??"

"""LaTeX maths as text, and how it is told from Markdown."""

from __future__ import annotations

import pytest

from lcspec.tui.markdown import parser
from lcspec.tui.math_text import math_text


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"x^2", "x²"),
        (r"\int_0^1 x\,dx = \frac{1}{2}", "∫₀¹ x dx = ½"),
        (r"\frac{-b \pm \sqrt{b^2-4ac}}{2a}", "(-b ± √(b²-4ac))/(2a)"),
        (r"\alpha + \beta \leq \gamma", "α + β ≤ γ"),
        (r"\text{if } x > 0", "if x > 0"),
        (r"\left(\frac{x}{y}\right)", "(x/y)"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "(1 2\n3 4)"),
        (r"\lim_{n \to \infty} \sin n", "lim_(n → ∞) sin n"),
        (r"\unknown{x}", r"\unknown{x}"),
    ],
)
def test_maths_as_text(latex: str, text: str) -> None:
    assert math_text(latex) == text


def kinds(text: str) -> list[tuple[str, str]]:
    """Every token with content: of blocks, and of what stands in paragraphs."""
    return [(c.type, c.content) for t in parser().parse(text) for c in (t.children or [t]) if c.content.strip()]


def test_maths_is_found_and_keeps_its_backslashes() -> None:
    assert kinds(r"so \(x^2\) is") == [("text", "so "), ("math_inline", "x^2"), ("text", " is")]
    assert kinds("\\[\na\n+ b\n\\]") == [("math_block", "\na\n+ b\n")], "no list within a formula"
    assert ("math_block", "\nx\n") in kinds("text\n\\[\nx\n\\]\nmore") and ("text", "more") in kinds(
        "\\[\nx\n\\]\nmore"
    )
    assert ("text", " and text") in kinds(r"\[ x \] and text"), "what stands behind a formula is not lost"
    assert kinds("$x$ costs $5, or $10.") == [("math_inline", "x"), ("text", " costs $5, or $10.")]


def test_what_never_closes_and_code_stay_as_written() -> None:
    assert kinds(r"a \(x") == [("text", r"a \(x")]
    assert kinds(r"`\(x\)`") == [("code_inline", r"\(x\)")]
    assert kinds("```\n\\[x\\]\n```") == [("fence", "\\[x\\]\n")]

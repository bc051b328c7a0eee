"""LaTeX maths as text that a terminal can show: `\\frac{1}{2} x^2` as ½ x². unicodeit knows the symbols, scripts and
accents; fractions, roots, texts and environments are put into one line before."""

from __future__ import annotations

import re

import unicodeit

_GROUP = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"  # braces within braces, three deep
_FRACTION = re.compile(r"\\[dt]?frac\s*" + _GROUP + r"\s*" + _GROUP)
_SHORT_FRACTION = re.compile(r"\\[dt]?frac\s*([0-9a-zA-Z])\s*([0-9a-zA-Z])")
_ROOT = re.compile(r"\\sqrt\s*(?:\[([^\]]*)\])?\s*" + _GROUP)
_TEXT = re.compile(r"\\(?:text|textrm|mathrm|operatorname\*?|mbox)\s*" + _GROUP)
_SIZED = re.compile(r"\\(?:left|right|bigl?|bigr|Bigl?|Bigr|biggl?|biggr)\s*(\\[{}|]|[^a-zA-Z\\\s])")
_FUNCTION = re.compile(
    r"\\(sin|cos|tan|cot|sinh|cosh|tanh|arcsin|arccos|arctan|log|ln|lg|exp|lim|max|min|sup|inf|det|dim|ker|deg|gcd|"
    r"arg|hom|Pr|mod)(?![a-zA-Z])"
)
_ENVIRONMENT = re.compile(r"\\(begin|end)\s*\{([a-zA-Z]+\*?)\}(?:\{[lcr|]*\})?")
_BRACKETS = {"pmatrix": "()", "bmatrix": "[]", "vmatrix": "||", "cases": ("{", ""), "Bmatrix": "{}"}
_SPACES = re.compile(r"\\(?:[,:;!> ]|q?quad(?![a-zA-Z]))|~")
_SIMPLE = re.compile(r"\d[\d.]*|[^\W\d_]+")
_HALVES = {("1", "2"): "½", ("1", "3"): "⅓", ("2", "3"): "⅔", ("1", "4"): "¼", ("3", "4"): "¾"}
_DEEPEST = 8
LONGEST = 4000


def math_text(latex: str) -> str:
    """One line, or several where the maths has rows; what is not understood stays as it was written."""
    if len(latex) > LONGEST:
        return latex
    text = _TEXT.sub(lambda m: m[1], latex)
    text = _SIZED.sub(r"\1", text).replace(r"\left.", "").replace(r"\right.", "")
    text = _FUNCTION.sub(r"\1", text)
    for _ in range(_DEEPEST):
        changed = _ROOT.sub(_root, _SHORT_FRACTION.sub(_fraction, _FRACTION.sub(_fraction, text)))
        if changed == text:
            break
        text = changed
    text = _ENVIRONMENT.sub(_bracket, text)
    text = re.sub(r"\\\\(?:\[[^\]]*\])?", "\n", text)
    text = _SPACES.sub(" ", text).replace(r"\{", "{").replace(r"\}", "}").replace("\n", " \n ")
    text = "\n".join(unicodeit.replace(line.strip()) for line in text.split("\n"))
    text = text.replace("&", "  ").replace("−", "-")
    text = re.sub(r"(?<=[\^_])\{([^{}])\}", r"\1", text)  # scripts that Unicode does not have
    text = re.sub(r"([\^_])\{([^{}]*)\}", r"\1(\2)", text)
    return "\n".join(re.sub(r"[ \t]{2,}", " ", line).strip() for line in text.split("\n")).strip()


def _fraction(match: re.Match[str]) -> str:
    above, below = match[1].strip(), match[2].strip()
    known = _HALVES.get((above, below))
    return known or f"{_bracketed(above)}/{_bracketed(below)}"


def _root(match: re.Match[str]) -> str:
    sign = {None: "√", "": "√", "3": "∛", "4": "∜"}.get(match[1])
    inner = _bracketed(match[2].strip())
    return f"{sign}{inner}" if sign else f"^{{{match[1]}}}√{inner}"


def _bracketed(text: str) -> str:
    return text if _SIMPLE.fullmatch(text) or re.fullmatch(r"\\[a-zA-Z]+", text) else f"({text})"


def _bracket(match: re.Match[str]) -> str:
    pair = _BRACKETS.get(match[2])
    return "" if pair is None else pair[0] if match[1] == "begin" else pair[1]

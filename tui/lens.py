"""The speculation lens: text tinted by who proposed it."""

from __future__ import annotations

from typing import Iterable, Sequence

from textual.content import Content

from lcspec.answers.text import Piece

# A drafter keeps its tint in every answer. Names not listed take the others' in turn.
TINTS = {
    "model": "$text-success on $success-muted",
    "ngram": "$text-primary on $primary-muted",
    "suffix": "$text-accent on $accent-muted",
    "lookahead": "$text-warning on $warning-muted",
    "medusa": "$text-error on $error-muted",
    "prediction": "$text-secondary on $secondary-muted",
    "forced": "$text-secondary on $secondary-muted",
}
# The same without colours: text styles a monochrome terminal can show.
MARKS = {
    "model": "underline",
    "ngram": "reverse",
    "suffix": "bold",
    "lookahead": "italic",
    "medusa": "bold underline",
    "prediction": "bold italic",
    "forced": "italic underline",
}


def style_of(drafter: str, colour: bool = True) -> str:
    """Style of text that `drafter` proposed."""
    table = TINTS if colour else MARKS
    if drafter in table:
        return table[drafter]
    styles = list(table.values())
    return styles[sum(drafter.encode()) % len(styles)]


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours by the same drafter put together."""
    out: list[Piece] = []
    for piece in pieces:
        if out and out[-1].drafter == piece.drafter:
            out[-1] = Piece(out[-1].text + piece.text, piece.drafter)
        elif piece.text:
            out.append(Piece(piece.text, piece.drafter))
    return out


def tinted(pieces: Sequence[Piece], colour: bool = True) -> Content:
    """The text with every drafted piece in its drafter's tint; the target's own stays plain."""
    parts = [
        piece.text if piece.drafter is None else (piece.text, style_of(piece.drafter, colour))
        for piece in merged(pieces)
    ]
    return Content.assemble(*parts)


def legend(drafters: Iterable[str], colour: bool = True) -> Content:
    """The names in their tints."""
    parts: list[str | tuple[str, str]] = []
    for name in drafters:
        parts += [(f" {name} ", style_of(name, colour)), " "]
    return Content.assemble(*parts, ("plain: the target's own", "dim"))

"""Models and cases of scripts/real_bench.py: the file as shipped, requantized, and at the cost of a larger one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scale_model import parse_size, quantize, scale_model

from lcspec.bench.machine import describe_file
from lcspec.errors import UsageError
from lcspec.modelfiles.gguf_header import FILE_TYPES

SHIPPED = "shipped"
EXACTNESS = {"default": None, "exact": True, "no-exact": False}
# A draft costs this share of its target.
DRAFT_SHARE = 10


@dataclass(frozen=True)
class Case:
    """A file, an exactness (a key of EXACTNESS) and a temperature; `first` of its file and exactness."""

    variant: str
    exactness: str
    temperature: float
    first: bool

    @property
    def name(self) -> str:
        """As in the results."""
        return f"{self.variant}, {self.exactness}, temperature {self.temperature:g}"


def cases_of(variants: Sequence[str], exactness: Sequence[str], temperatures: Sequence[float]) -> list[Case]:
    """Every combination, the variants one after the other.

    Raises:
        UsageError: a variant is neither `shipped`, nor a quantization, nor a size; or an exactness is unknown.
    """
    for variant in variants:
        if variant != SHIPPED and variant not in FILE_TYPES.values():
            try:
                parse_size(variant)
            except UsageError as error:
                raise UsageError(
                    f"{variant!r} is no variant: write {SHIPPED}, a quantization such as Q8_0, or a size such as 0.5b"
                ) from error
    for one in exactness:
        if one not in EXACTNESS:
            raise UsageError(f"unknown exactness {one!r}: choose among {', '.join(EXACTNESS)}")
    return [Case(v, e, t, t == temperatures[0]) for v in variants for e in exactness for t in temperatures]


def copy_of(source: Path, variant: str, folder: Path, share: int = 1) -> Path:
    """The file of a variant, made if it is not there; of a size, 1 / `share`.

    Raises:
        LcspecError: it cannot be made.
    """
    if variant == SHIPPED:
        return source
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{source.stem}-{source.stat().st_size}-{variant}{f'-by-{share}' if share > 1 else ''}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        if variant in FILE_TYPES.values():
            quantize(source, part, variant)
        else:
            scale_model(source, part, parse_size(variant) // share)
        part.replace(path)
    return path


def draft_of(draft: Path | None, variant: str, folder: Path) -> Path | None:
    """The draft for a variant: of a tenth of its size, or as it is where it is larger than that already."""
    if draft is None or variant == SHIPPED or variant in FILE_TYPES.values():
        return draft
    if describe_file(draft)["parameters"] >= parse_size(variant) / DRAFT_SHARE:
        return draft
    return copy_of(draft, variant, folder, DRAFT_SHARE)

"""llama.cpp's `samplers`: which steps of sampling a request wants. Their order is fixed here."""

from __future__ import annotations

from typing import Any, Sequence

# What each step is without effect. `infill` and what is not here has nothing to switch off.
OFF: dict[str, dict[str, Any]] = {
    "penalties": {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_k": {"top_k": 0},
    "typical_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "top_n_sigma": {"top_n_sigma": -1.0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
}
LETTERS = {"e": "penalties", "d": "dry", "k": "top_k", "y": "typical_p", "p": "top_p", "m": "min_p", "x": "xtc"}
LETTERS["t"] = "temperature"
ALIASES = {"typ_p": "typical_p", "typ-p": "typical_p", "temp": "temperature"}


def switched_off(wanted: str | Sequence[str]) -> dict[str, Any]:
    """Sampling values that switch off every step that is not in the list (or, in the short form, the letters)."""
    if isinstance(wanted, str):
        names = {LETTERS.get(letter, letter) for letter in wanted}
    else:
        plain = [name.replace("-", "_") for name in wanted]
        names = {ALIASES.get(name, name) for name in plain}
    off: dict[str, Any] = {}
    for name, values in OFF.items():
        if name not in names:
            off |= values
    return off

"""llama.cpp's `samplers`: which steps of sampling a request wants. Their order is fixed here."""

from __future__ import annotations

from typing import Any, Sequence

# What each step is without effect. `infill` and what is not here has nothing to switch off.
OFF: dict[str, dict[str, Any]] = {
    "penalties": {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": -1.0},
    "top_k": {"top_k": 0},
    "typical_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
    "adaptive_p": {"adaptive_target": -1.0},
}
# Of common_sampler_type_to_chr, for the steps in this order.
LETTERS = dict(zip("edskypmxta", OFF))
# The names of common_sampler_types_from_names without what is between their words.
NAMES = {name.replace("_", ""): name for name in OFF}
NAMES |= {"typp": "typical_p", "typ": "typical_p", "nucleus": "top_p", "temp": "temperature"}


def switched_off(wanted: str | Sequence[str]) -> dict[str, Any]:
    """Sampling values that switch off every step that is not in the list (or, in the short form, the letters)."""
    if isinstance(wanted, str):
        names = {LETTERS.get(letter) for letter in wanted}
    else:
        names = {NAMES.get(name.lower().replace("-", "").replace("_", "")) for name in wanted}
    off: dict[str, Any] = {}
    for name, values in OFF.items():
        if name not in names:
            off |= values
    return off

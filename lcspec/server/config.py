"""The configuration file of `lcspec serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

from lcspec.config import load_toml
from lcspec.errors import UsageError


def load_serve_config(path: Path, known: Mapping[str, bool]) -> dict[str, Any]:
    """Options of `lcspec serve` from a TOML file: at its top level, or in a table [serve].

    `known` has the names of the options, and whether each may be given several times: one value stands for a list.

    Raises:
        UsageError: it cannot be read, or names an option that does not exist.
    """
    if not path.exists():
        raise UsageError(f"there is no configuration file {path}")
    data = load_toml(path)
    table = data.get("serve", data)
    if not isinstance(table, dict):
        raise UsageError(f"{path}: [serve] must be a table of options")
    options = {key.replace("-", "_"): value for key, value in table.items()}
    for key in options:
        if key not in known:
            names = ", ".join(sorted(name.replace("_", "-") for name in known))
            raise UsageError(f"{path}: there is no option {key.replace('_', '-')!r}; there are {names}")
    return {k: [v] if known[k] and not isinstance(v, list) else v for k, v in options.items()}

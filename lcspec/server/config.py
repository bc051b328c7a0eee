"""The configuration file of `lcspec serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Collection

from lcspec.config import load_toml
from lcspec.errors import UsageError


def load_serve_config(path: Path, known: Collection[str | None]) -> dict[str, Any]:
    """Options of `lcspec serve` from a TOML file: at its top level, or in a table [serve].

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
            names = ", ".join(sorted(str(name).replace("_", "-") for name in known))
            raise UsageError(f"{path}: there is no option {key.replace('_', '-')!r}; there are {names}")
    return options

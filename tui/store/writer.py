"""The thread that writes."""

from __future__ import annotations


class Writer:
    """To come."""

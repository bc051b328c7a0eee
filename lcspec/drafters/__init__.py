"""Drafters: one file each, registered by name. Importing the package loads none of them."""

from lcspec.drafters.base import (
    REGISTRY,
    Budget,
    Drafter,
    DrafterEnv,
    SequenceView,
    create,
)

__all__ = ["REGISTRY", "Budget", "Drafter", "DrafterEnv", "SequenceView", "create"]

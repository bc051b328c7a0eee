"""Drafters, each in a file of its own and registered by name. Importing the package loads none of them."""

from lcspec.drafters.base import (
    REGISTRY,
    Budget,
    Drafter,
    DrafterEnv,
    SequenceView,
    create,
)

__all__ = ["REGISTRY", "Budget", "Drafter", "DrafterEnv", "SequenceView", "create"]

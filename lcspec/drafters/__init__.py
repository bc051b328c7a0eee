"""Drafters: one file each, registered by name. Importing the package loads none of them."""

from lcspec.drafters.base import (
    REGISTRY,
    Budget,
    Drafter,
    DrafterEnv,
    ReadingDrafter,
    SequenceView,
    TimedDrafter,
    create,
)

__all__ = ["REGISTRY", "Budget", "Drafter", "DrafterEnv", "ReadingDrafter", "SequenceView", "TimedDrafter", "create"]

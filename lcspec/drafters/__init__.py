"""Drafters: one file each, registered by name."""

from lcspec.drafters import forced, model, ngram, prediction, suffix  # noqa: F401  (importing registers them)
from lcspec.drafters.base import REGISTRY, Budget, Drafter, DrafterEnv, SlotView, create

__all__ = ["REGISTRY", "Budget", "Drafter", "DrafterEnv", "SlotView", "create"]

"""Importing this module registers every drafter. A new drafter is a file beside this one and a name in this line."""

from lcspec.drafters import blockwise, forced, medusa, model, ngram, prediction, suffix

__all__ = ["blockwise", "forced", "medusa", "model", "ngram", "prediction", "suffix"]

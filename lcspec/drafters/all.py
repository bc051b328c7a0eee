"""Importing this module registers every drafter. A new drafter is a file beside this one and a name in this line."""

from lcspec.drafters import forced, model, ngram, prediction, suffix

__all__ = ["forced", "model", "ngram", "prediction", "suffix"]

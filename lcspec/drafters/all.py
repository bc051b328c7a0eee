"""Importing this module registers every drafter. A new drafter is a file beside this one and a name in this line."""

from lcspec.drafters import forced, jacobi, lookahead, model, ngram, prediction, suffix

__all__ = ["forced", "jacobi", "lookahead", "model", "ngram", "prediction", "suffix"]

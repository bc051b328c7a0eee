"""Importing this module registers every drafter. A new drafter is a file beside this one and a name in this line."""

from lcspec.drafters import cascade, forced, jacobi, lookahead, model, ngram, prediction, store, suffix

__all__ = ["cascade", "forced", "jacobi", "lookahead", "model", "ngram", "prediction", "store", "suffix"]

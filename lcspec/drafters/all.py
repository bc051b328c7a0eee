"""Importing this module registers every drafter. A new drafter is a file beside this one and a name in this line."""

from lcspec.drafters import (
    blockwise,
    cascade,
    forced,
    jacobi,
    lookahead,
    medusa,
    model,
    ngram,
    prediction,
    store,
    suffix,
)

__all__ = [
    "blockwise",
    "cascade",
    "forced",
    "jacobi",
    "lookahead",
    "medusa",
    "model",
    "ngram",
    "prediction",
    "store",
    "suffix",
]

"""Importing this module registers every drafter. A new drafter is a file beside this one and a name in this line."""

from lcspec.drafters import (
    blockwise,
    cascade,
    eagle,
    forced,
    jacobi,
    lookahead,
    medusa,
    model,
    mtp,
    ngram,
    prediction,
    store,
    suffix,
)

__all__ = [
    "blockwise",
    "cascade",
    "eagle",
    "forced",
    "jacobi",
    "lookahead",
    "medusa",
    "model",
    "mtp",
    "ngram",
    "prediction",
    "store",
    "suffix",
]

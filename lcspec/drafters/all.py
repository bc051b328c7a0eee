"""Importing this module registers every drafter. To add one, write a file beside this one and name it in this line."""

from lcspec.drafters import (
    cascade,
    draft_model,
    eagle,
    jacobi,
    jump_forward,
    lookahead,
    mtp,
    prediction,
    retrieval,
    suffix,
)
from lcspec.drafters.medusa import blockwise, drafter

__all__ = [
    "blockwise",
    "cascade",
    "draft_model",
    "drafter",
    "eagle",
    "jacobi",
    "jump_forward",
    "lookahead",
    "mtp",
    "prediction",
    "retrieval",
    "suffix",
]

"""Aggregations of token losses into one number."""

from typing import Literal

Aggregation = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
]
"""Aggregation methods; counts are those of a whole optimiser step."""

"""Precision of the trainer's passes, and of the weights it keeps."""

from typing import Literal

Precision = Literal["float32", "bfloat16"]
"""Precision of forward and backward passes. With bfloat16, the optimiser keeps master weights,
gradients, and moments in float32, and the policy is the rounded master weights."""

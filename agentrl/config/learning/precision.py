"""What the trainer computes in, and what it keeps."""

from typing import Literal

Precision = Literal["float32", "bfloat16"]
"""Of forward and backward passes. In bfloat16 the optimiser keeps master weights, gradients and
moments in float32, and the policy is the master weights rounded."""

"""Config section of the reuse of earlier trajectories as drafts."""

import math
from typing import Literal

from pydantic import Field, PositiveInt

from agentrl.config.section import ConfigSection


class DraftsSection(ConfigSection):
    """Reuse of a task's previous trajectories as drafts (SPEC-RL); see docs/scheduling.md. Accepted
    tokens are not sampled again."""

    leniency: float = Field(default=math.exp(0.5), ge=0)
    """Draft tokens are accepted with probability `min(1, (leniency * p / q) ** scale)`, where p is
    the current probability and q the one at sampling: 1 is the exact test, 0 rejects all."""
    scale: float = Field(default=1.0, gt=0)
    """Values above 1 reject unlikely tokens more strictly."""
    floor: float = Field(default=0.0, ge=0, le=1)
    """Draft tokens with a current probability below this are always rejected."""
    residual: bool = False
    """Sample the replacement of a rejected token from the residual distribution, so that
    trajectories are exact samples of the policy; requires `leniency` of at most 1 and `scale` of at
    least 1."""
    alternatives: PositiveInt = 20
    """With `residual`: number of most likely tokens stored per token; a draft token outside them is
    rejected."""
    reuse: Literal["execute", "verify", "trust"] = "verify"
    """Environment between drafted turns. `execute`: run tools again and use their answers;
    `verify`: run tools again, and end the draft at a different answer; `trust`: use recorded
    answers as long as the actions match."""
    capacity_tokens: PositiveInt = 5_000_000
    """Total number of tokens stored for drafts, context included."""

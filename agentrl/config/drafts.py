"""The section of a config that says how a task's last trajectories are reused."""

import math
from typing import Literal

from pydantic import Field, PositiveInt

from agentrl.config.section import ConfigSection


class DraftsSection(ConfigSection):
    """Reuse of a task's last trajectories as drafts (SPEC-RL); see docs/scheduling.md.
    Tokens that pass the test are not sampled again."""

    leniency: float = Field(default=math.exp(0.5), ge=0)
    """A token stands with chance `min(1, (leniency * p / q) ** scale)`, p now and q when it was
    sampled: 1 is the plain test, 0 keeps nothing."""
    scale: float = Field(default=1.0, gt=0)
    """More than 1 judges unlikely tokens harder."""
    floor: float = Field(default=0.0, ge=0, le=1)
    """A token that is now less likely than this never stands."""
    residual: bool = False
    """Draw a rejected token from what is left of the policy, so that trajectories are exactly its
    samples; needs `leniency` of at most 1 and `scale` of at least 1."""
    alternatives: PositiveInt = 20
    """With `residual`: likeliest tokens kept per token; a draft is only judged while it is among
    them."""
    reuse: Literal["execute", "verify", "trust"] = "verify"
    """Between turns: tools run again and their answers count; they do, and another answer ends the
    draft; or recorded answers are given while the actions are the same."""
    capacity_tokens: PositiveInt = 5_000_000
    """Capacity for all drafts that are kept, context included."""

"""Reward of a step, and progress of a trajectory on its own. Source: UI-S1, arXiv 2509.11543."""

from typing import Literal

from agentrl.env import Action
from agentrl_envs.recorded.matching import has_thought, is_same_kind, spoken

Scale = Literal["paper", "code"]


def step_reward(
    said: Action, expert: Action, *, matched: bool, scale: Scale = "code", thought: bool = False
) -> float:
    """Return the reward of one action; 1 is the most, for a match in the wanted form.

    The form is right when all calls could be read and something was said; with `thought`, when
    something was thought as well. `paper` (equation 8) pays 0.1 for the form, 0.4 more for the
    right kind, 0.5 more for a match, each only with what comes before it. `code` pays 0.1 for the
    form and, whatever the form, 0.9 times 0.1 for what can be read, 0.5 for the right kind, or 1
    for a match.
    """
    readable = not said.malformed and bool(said.tool_calls or spoken(said).strip())
    formed = readable and (has_thought(said) or not thought)
    kind = readable and (matched or is_same_kind(said, expert))
    exact = readable and matched
    if scale == "paper":
        return 0.1 * formed + 0.4 * (formed and kind) + 0.5 * (formed and exact)
    right = 1.0 if exact else 0.5 if kind else 0.1 if readable else 0.0
    return 0.1 * formed + 0.9 * right


def score_prefix(matched: int, steps: int) -> dict[str, float]:
    """Return the semi-online performance of a trajectory: progress, success and their mean.

    `matched` counts the steps before the first mismatch. Their means over tasks are PG, TSR and
    Score.
    """
    progress, success = matched / steps, float(matched == steps)
    score = (progress + success) / 2
    return {"sop_progress": progress, "sop_success": success, "sop_score": score}

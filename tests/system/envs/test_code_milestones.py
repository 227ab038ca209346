"""The milestones of problems with an interpreter: what it showed, and what was given as the answer.

Mutants seen caught: a call after the right output that settles the first milestone again; no turn
for an answer without calls.
"""

import pytest

from agentrl.env import call, say
from agentrl_envs.code.env import CodeEnv

NAMES = ("milestone/1", "milestone_turn/1", "milestone/2", "milestone_turn/2")


async def play(env: CodeEnv, *codes: str, answer: str) -> dict[str, float]:
    """Return what an episode of these calls and this answer told."""
    task = next(iter(env.tasks("train")))
    await env.reset(options={"task": task})
    told: dict[str, float] = {}
    right = str(task.answer)
    actions = [call("python", code=code.replace("RIGHT", right)) for code in codes]
    actions.append(say(f"<answer>{answer.replace('RIGHT', right)}</answer>"))
    for action in actions:
        info = (await env.step(action))[4]
        told |= info.get("reward_components", {})
    await env.close()
    return told


@pytest.mark.parametrize(
    ("codes", "answer", "told"),
    [
        (["1", "RIGHT", "2"], "RIGHT", (1.0, 1.0, 1.0, 3.0)),
        (["1", "2"], "1", (0.0, 1.0, 0.0, 2.0)),
        ([], "RIGHT", (0.0, 0.0, 1.0, 0.0)),
    ],
)
async def test_code_reports_what_was_shown_and_what_was_given(
    codes: list[str], answer: str, told: tuple[float, ...]
) -> None:
    env = CodeEnv(families="chain_sum", partial_credit=False, milestones=True)
    assert await play(env, *codes, answer=answer) == dict(zip(NAMES, told, strict=True))


async def test_code_reports_nothing_unless_it_is_asked_to() -> None:
    env = CodeEnv(families="chain_sum", partial_credit=False)
    assert await play(env, "RIGHT", answer="RIGHT") == {}

"""A player of MiniWoB++ as people are: it fills in a form in any order, and errs on the way.

`NoisyMiniWobPack` is a pack of `agentrl_envs.web:WebEnv` whose gold player shuffles what comes
before the last click, and before some of these actions (a share of `mistakes`) does a wrong one:
another text in a field, another radio button, another box, which it unticks again. Every problem is
solved in the end, so the rewards of its recordings say nothing of the mistakes.

    agentrl record agentrl_envs.web:WebEnv recordings/noisy.jsonl --kwargs '{"pack":
    "benchmarks.browsing.noisy_player:NoisyMiniWobPack", "families": ["enter-password"]}'
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from agentrl.env import Action
from agentrl.message import Message, ToolCall
from agentrl.runtime.seeds import derive
from agentrl.task import Task
from agentrl_envs.web.miniwob.pack import MiniWobPack
from agentrl_envs.web.miniwob.players import PLAYERS, scene_of
from agentrl_envs.web.miniwob.players.scene import PlayerConversation, click, fill

FAMILIES = ("click-checkboxes", "click-option", "enter-password", "enter-text", "enter-text-2")
"""Families whose player knows all its actions at the opening, and can undo all but the last."""
_NO_CALL = ToolCall("none", "none", {})


class NoisyMiniWobPack(MiniWobPack):
    """Problems of `FAMILIES`, played with mistakes."""

    def __init__(self, *, mistakes: float = 0.25, **settings: Any) -> None:
        """Choose problems.

        Args:
            mistakes: Chance of a mistake before an action that is not the last.
            **settings: Those of `MiniWobPack`; `families` is `FAMILIES` unless given.
        """
        choices: dict[str, Any] = {"families": FAMILIES, **settings}
        super().__init__(**choices)
        self._mistakes = mistakes

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        """Return the next action of the script of this task."""
        scene = scene_of(seen)
        script = [*_write_script(task, replace(scene, calls=()), self._mistakes)]
        return script[len(scene.calls)]


def _write_script(task: Task, opening: PlayerConversation, mistakes: float) -> Iterator[Action]:
    """Yield all actions of a player that errs."""
    random = Random(derive("noisy player", task.id))
    *before, last = _plan(task, opening)
    for action in random.sample(before, len(before)):
        if random.random() < mistakes:
            yield from _err(action, before, opening, random)
        yield action
    yield last


def _plan(task: Task, opening: PlayerConversation) -> list[Action]:
    """Return the actions of the player that does not err."""
    player = PLAYERS[task.data["family"]]
    plan: list[Action] = []
    while (action := player(replace(opening, calls=(_NO_CALL,) * len(plan)))).tool_calls:
        plan.append(action)
    return plan


def _err(
    action: Action, plan: Sequence[Action], opening: PlayerConversation, random: Random
) -> Iterator[Action]:
    """Yield a wrong action in place of one, and what undoes it where that does not."""
    page = opening.first
    (meant,) = action.tool_calls
    if meant.name == "fill":
        (field,) = (node for node in page.nodes if node.id == meant.arguments["id"])
        yield fill(field, meant.arguments["text"][:-1][::-1])
        return
    targets = {one.tool_calls[0].arguments["id"] for one in plan}
    role = "radio" if page.all("radio") else "checkbox"
    others = [node for node in page.all(role) if node.id not in targets]
    if others:
        wrong = click(random.choice(others))
        yield wrong
        if role == "checkbox":
            yield wrong

"""UI-S1's semi-online rollout: the policy acts on its own history along an expert's trajectory.

Source: arXiv 2509.11543, section 3; `docs/semi-online.md` describes the environment.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

from agentrl.authoring.task_choice import choose_task
from agentrl.env import Action, BaseEnv, ForkStrategy, Info, Observation, Patch, Step
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.runtime.imports import import_callable
from agentrl.task import Split, Task, split_of
from agentrl_envs.recorded.experts import ExpertTrajectory, ExpertTurn, experts_of
from agentrl_envs.recorded.matching import (
    ActionMatcher,
    Matches,
    has_thought,
    is_same_kind,
    spoken,
)

Scale = Literal["paper", "code"]
PatchKind = Literal["thought_free", "off_policy_thought", "on_policy_thought"]

HINT = (
    "The right thing to do here is {action}. Say in a sentence or two why, as your own thinking "
    "before you act. Do not act yet, and do not mention this hint."
)


class RecordedEnv(BaseEnv):
    """Every task is a recorded trajectory; each turn is compared with what the expert did.

    On a match the expert's next observation follows. On a mismatch the expert's action is put in
    the place of the policy's in all later contexts, and the expert's next observation follows, as
    long as patches are left; then the episode ends. The info's `reward_components` tell how far
    the policy came before its first mismatch (`sop_progress`, `sop_success`, `sop_score`); with
    patches without bound also the share of all turns that matched (`step_accuracy`) or did the
    same kind of thing (`type_accuracy`), each met on the expert's way.
    """

    fork_strategy: ForkStrategy = "copy"

    def __init__(
        self,
        *,
        recordings: str | Path,
        minimum_reward: float | None = None,
        patch: PatchKind = "thought_free",
        patches: int = 1,
        heldout_patches: int = 0,
        matching: Mapping[str, Any] | None = None,
        matches: str | None = None,
        reward: Scale = "code",
        thought: bool = False,
        heldout_fraction: float = 0.1,
    ) -> None:
        """Choose what to follow, and how closely.

        Args:
            recordings: A JSONL file; see docs/recordings.md.
            minimum_reward: Leave out what earned less, or nothing known.
            patch: What is put into the history: the expert's action alone, with the recorded
                thought, or with a thought of the policy's own.
            patches: Most of them per episode (epsilon); -1 for any number.
            heldout_patches: The same for held-out tasks; 0 ends them at the first mismatch, which
                is what the SOP metric wants.
            matching: Fields of `ActionMatcher`.
            matches: `module:function` of (action, expert's action) instead.
            reward: The steps' scale, `paper` or `code`; see `step_reward`.
            thought: Whether the right form needs a thought.
            heldout_fraction: Share of all prompts kept for the held-out split.
        """
        if patch not in get_args(PatchKind):
            raise ConfigError(
                f"patch is {patch!r}; it must be one of {', '.join(get_args(PatchKind))}"
            )
        if reward not in get_args(Scale):
            raise ConfigError(
                f"reward is {reward!r}; it must be one of {', '.join(get_args(Scale))}"
            )
        for name, count in (("patches", patches), ("heldout_patches", heldout_patches)):
            if count < -1:
                raise ConfigError(f"{name} must be at least 0, or -1 for no limit, got {count}")
        if not 0 <= heldout_fraction <= 1:
            raise ConfigError(f"heldout_fraction must be in [0, 1], got {heldout_fraction}")
        self._path = Path(recordings)
        self._minimum_reward = minimum_reward
        self._patch: PatchKind = patch
        self._patches: dict[Split, int] = {"train": patches, "heldout": heldout_patches}
        self._matches = _build_matcher(matching, matches)
        self._scale: Scale = reward
        self._thought = thought
        self._heldout_fraction = heldout_fraction
        self._expert: ExpertTrajectory | None = None
        self._left = self._most = 0
        self._turn = 0
        self._right = self._of_kind = 0
        self._alone = 0
        self._is_alone = True

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        """Yield the recordings of a split in their order; the seed changes nothing."""
        for id, expert in self._experts().items():
            prompt = "\n".join(message.text for message in expert.prompt)
            if split_of(prompt, heldout_fraction=self._heldout_fraction) == split:
                yield Task(prompt=expert.prompt, answer=expert.actions, id=id, split=split)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin at the beginning of a recording."""
        task = choose_task(self, seed=seed or 0, options=options or {})
        self._expert = self._expert_of(task)
        self._turn, self._alone, self._is_alone = 0, 0, True
        self._right, self._of_kind = 0, 0
        self._left = self._most = self._patches[task.split]
        return Observation(self._expert.opening, tools=self._expert.tools), {}

    async def step(self, action: Action) -> Step:
        """Compare an action with the expert's; go on behind one of the two, or end."""
        expert = self._running()
        turn = expert.turns[self._turn]
        matched = not action.malformed and self._matches(action, turn.action, turn.places)
        reward = step_reward(
            action, turn.action, matched=matched, scale=self._scale, thought=self._thought
        )
        self._turn += 1
        self._is_alone = self._is_alone and matched
        self._alone += self._is_alone
        self._right += matched
        self._of_kind += matched or is_same_kind(action, turn.action)
        info: Info = {"reward_components": self._figures(len(expert.turns), matched=matched)}
        if self._turn == len(expert.turns) or not (matched or self._left):
            self._expert = None
            return Observation(()), reward, True, False, info
        if matched:
            return Observation(turn.answers_to(action.tool_calls)), reward, False, False, info
        self._left -= self._left > 0
        info["patch"] = self._make_patch(turn)
        return Observation(turn.answers), reward, False, False, info

    def _figures(self, turns: int, *, matched: bool) -> dict[str, float]:
        figures = score_prefix(self._alone, turns) | {"matched": float(matched)}
        if self._most >= 0:
            return figures
        # Only where every mismatch is patched is every turn met, and met on the expert's way.
        accuracy = {"step_accuracy": self._right / turns, "type_accuracy": self._of_kind / turns}
        return figures | accuracy

    async def fork(self) -> Self:
        self._running()
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    async def close(self) -> None:
        self._expert = None

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        """Do what the expert did."""
        expert = self._expert_of(task)
        turn_index = sum(message.role == "assistant" for message in seen)
        return expert.turns[min(turn_index, len(expert.turns) - 1)].with_thought

    def _make_patch(self, turn: ExpertTurn) -> Patch:
        if self._patch == "off_policy_thought":
            return Patch(turn.with_thought)
        hint = HINT.format(action=describe(turn.action))
        return Patch(turn.action, hint if self._patch == "on_policy_thought" else "")

    def _experts(self) -> Mapping[str, ExpertTrajectory]:
        return experts_of(self._path, minimum_reward=self._minimum_reward)

    def _expert_of(self, task: Task) -> ExpertTrajectory:
        try:
            return self._experts()[task.id]
        except KeyError:
            raise ConfigError(
                f"{self._path} holds no recording of task {task.id!r}; a run needs the unchanged "
                "file from which its tasks were read"
            ) from None

    def _running(self) -> ExpertTrajectory:
        if self._expert is None:
            raise RuntimeError("no episode is running; await env.reset() first")
        return self._expert


def describe(action: Action) -> str:
    """Return an action in words for the policy."""
    calls = [f"{c.name}({json.dumps(dict(c.arguments))})" for c in action.tool_calls]
    return f"to call {' and then '.join(calls)}" if calls else f"to answer {action.text!r}"


def _build_matcher(matching: Mapping[str, Any] | None, function: str | None) -> Matches:
    if function is not None:
        if matching is not None:
            raise ConfigError(
                "matching and matches are both given, but your own matching function ignores "
                "matching; remove one of them"
            )
        predicate = cast("Callable[[Action, Action], bool]", import_callable(function))
        return lambda said, expert, places: predicate(said, expert)
    options = dict(matching or {})
    if "ignore" in options:
        options["ignore"] = tuple(options["ignore"])
    try:
        return ActionMatcher(**options)
    except TypeError as error:
        raise ConfigError(
            f"matching: {error}; its keys are tolerance, text, ignore, radius"
        ) from error


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

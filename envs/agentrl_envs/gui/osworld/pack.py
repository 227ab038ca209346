"""OSWorld's tasks as a pack of a desktop: prepared by their steps, judged by their evaluators."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from agentrl.env import Action, call
from agentrl.errors import ConfigError, EnvError
from agentrl.message import Message
from agentrl.runtime.threads import run_in_thread
from agentrl.task import Split, Task, split_of
from agentrl_envs.gui.osworld.metrics import METRICS
from agentrl_envs.gui.osworld.reading import INFEASIBLE, OsworldCheck, checks_of, read_tasks
from agentrl_envs.gui.osworld.results import CheckerValues
from agentrl_envs.gui.osworld.steps import StepRunner
from agentrl_envs.gui.world import DesktopScene, TaskVerdict, WritableDesktop

Unsupported = Literal["refuse", "skip"]


class OsworldPack:
    """The tasks of a folder that need no virtual machine."""

    def __init__(
        self, path: str, *, cache: str, unsupported: Unsupported, heldout_fraction: float
    ) -> None:
        """Read the tasks. `ConfigError` for what is no task, or cannot be played and shall."""
        if unsupported not in get_args(Unsupported):
            raise ConfigError(f"unsupported must be refuse or skip, got {unsupported!r}")
        if not 0 <= heldout_fraction <= 1:
            raise ConfigError(f"heldout_fraction must be from 0 to 1, got {heldout_fraction}")
        self.collection = read_tasks(path, cache)
        if unsupported == "refuse" or not self.collection.tasks:
            self.collection.insist()
        self._cache = Path(cache)
        self._fraction = heldout_fraction
        self.has_gold = all("gold" in one for one in self.collection.tasks.values())

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """Yield the tasks of a split, in the order of their files; every seed has the same."""
        for name, written in self.collection.tasks.items():
            if split_of(name, heldout_fraction=self._fraction) == split:
                yield Task(
                    prompt=str(written["instruction"]),
                    id=name,
                    split=split,
                    seed=0,
                    data={"osworld": dict(written)},
                    tags=tuple(str(app) for app in written.get("related_apps", ())),
                )

    def scene(self, task: Task) -> DesktopScene:
        """Return the desktop's scene when `task` begins: bare, until its steps are done."""
        return DesktopScene(goal=str(task.prompt), runs_code=True, begin=partial(self._begin, task))

    async def judge(
        self, task: Task, desktop: WritableDesktop, said: str | None, *, failed: bool
    ) -> TaskVerdict:
        """Return the verdict of the task's evaluator, from 0 to 1."""
        written: Mapping[str, Any] = task.data["osworld"]
        evaluator = written["evaluator"]
        if failed or evaluator["func"] == INFEASIBLE:
            return TaskVerdict(reward=float(failed and evaluator["func"] == INFEASIBLE))
        task_id = str(written["id"])
        doing = StepRunner(desktop, task_id, self._cache)
        await doing.do(evaluator.get("postconfig", ()))
        results = CheckerValues(desktop, doing, task_id, self._cache)
        scores: dict[str, float] = {}
        for number, check in enumerate(checks_of(written)):
            scores[f"{number}_{check.func}"] = await _score(check, results, task)
        return TaskVerdict(
            reward=combine_scores([*scores.values()], evaluator.get("conj", "and")),
            info={"scores": scores},
        )

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        """Return the next action that the task's file has under `gold`. KeyError for no such."""
        actions = task.data["osworld"]["gold"]
        number = sum(message.role == "assistant" for message in seen)
        if number >= len(actions):
            raise LookupError(f"the actions of {task.id!r} have ended but the episode continues")
        return call("computer", **actions[number])

    async def _begin(self, task: Task, place: WritableDesktop) -> None:
        written: Mapping[str, Any] = task.data["osworld"]
        await StepRunner(place, str(written["id"]), self._cache).do(written.get("config", ()))


def combine_scores(scores: Sequence[float], conj: str) -> float:
    """Return the combined score of metrics: `and`, the mean unless one is 0; `or`, the best."""
    if conj == "or":
        return max(scores)
    return 0.0 if 0.0 in scores else sum(scores) / len(scores)


async def _score(check: OsworldCheck, results: CheckerValues, task: Task) -> float:
    result = await results.read(check.result)
    inputs = [result] if check.expected is None else [result, await results.read(check.expected)]
    metric = partial(METRICS[check.func], *inputs, **check.options)
    try:
        return min(1.0, max(0.0, float(await run_in_thread(metric))))
    except (KeyError, TypeError, ValueError) as error:
        raise EnvError(f"the metric {check.func} of task {task.id!r} cannot be used") from error


def osworld_pack(
    *,
    path: str = "",
    cache: str = "",
    unsupported: Unsupported = "refuse",
    heldout_fraction: float = 0.2,
) -> OsworldPack:
    """Return the tasks of a file or a folder in OSWorld's format.

    Args:
        path: A task file, or a folder with such files at any depth.
        cache: The folder in which OSWorld keeps what its tasks download.
        unsupported: Tasks that cannot be played here are all named and refused, or left out.
        heldout_fraction: The share of the tasks that is held out, from 0 to 1, by their ids.
    """
    return OsworldPack(
        path, cache=cache, unsupported=unsupported, heldout_fraction=heldout_fraction
    )

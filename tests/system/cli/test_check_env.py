"""check_env and check_tool: an honest implementation passes, and each broken promise is named.

Every class below breaks one promise; the check that lets it through fails here.
"""

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from itertools import count, islice
from typing import Any, ClassVar, Self, cast

import pytest

from agentrl.authoring.gold import play_gold
from agentrl.env import Action, BaseEnv, Env, Observation, Step, say
from agentrl.errors import CheckError
from agentrl.message import Message, ToolCall
from agentrl.runtime.scope import shared
from agentrl.task import Split, Task
from agentrl.testing import ScriptedEnv, ScriptedTurn, check_env, check_tool
from agentrl.tool import tool

TURNS = (
    ScriptedTurn(wants="first", reward=0.25),
    ScriptedTurn(wants="second"),
    ScriptedTurn(wants="done", reward=0.75),
)

counter = count()


class Honest(ScriptedEnv):
    """Three turns; its forks copy whatever the class is."""

    def __init__(self) -> None:
        super().__init__(TURNS)

    async def fork(self) -> Self:
        other = type(self)()
        other.__dict__.update(self.__dict__)
        return other


async def test_an_honest_environment_passes_and_its_promises_are_listed() -> None:
    env = Honest()
    proven = await check_env(env)
    for promise in ("gold scores", "forks do not interfere", "nothing is left after close"):
        assert promise in proven
    assert env.opened == 0


async def test_a_gold_episode_earns_the_sum_of_its_turns() -> None:
    """A mutant that keeps the last reward alone is caught."""
    env = Honest()
    episode = await play_gold(env, next(env.tasks("train")))
    await env.close()
    assert episode.reward == 0.25 + 0.75


class NoFork(BaseEnv):
    """Everything but a fork and a gold player."""

    def __init__(self) -> None:
        self.inner = ScriptedEnv(TURNS)

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        return self.inner.tasks(split, seed=seed)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        return await self.inner.reset(seed=seed, options=options)

    async def step(self, action: Action) -> Step:
        return await self.inner.step(action)

    async def close(self) -> None:
        await self.inner.close()


async def test_without_a_fork_and_a_gold_player_the_rest_is_proven() -> None:
    proven = await check_env(NoFork())
    assert "a fork is refused" in proven
    assert "gold scores" not in proven
    assert "forks do not interfere" not in proven


class LyingFork(NoFork):
    async def fork(self) -> Self:
        return self


class RandomTasks(Honest):
    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        return super().tasks(split, seed=next(counter))


class NoHeldout(Honest):
    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        return super().tasks(split, seed=seed) if split == "train" else iter(())


class WrongSplit(Honest):
    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        for i in count():
            yield Task(prompt=f"{split} {i}?", answer="x")


class Overlap(Honest):
    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        for i in count(20 if split == "heldout" else 0):
            yield Task(prompt=f"{i}?", answer="x", split=split)


class OneName(Honest):
    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        for i in count():
            yield Task(prompt=f"{split} {i}?", answer="x", split=split, id=f"{split}")


class NotJson(Honest):
    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        for task in super().tasks(split, seed=seed):
            yield Task(prompt=task.prompt, answer="x", split=split, data={"lock": {1, 2}})


class MoodyReset(Honest):
    async def reset(self, **given: Any) -> tuple[Observation, dict[str, Any]]:
        opening, info = await super().reset(**given)
        more = Message("user", f"This is opening {next(counter)}.")
        return Observation((*opening.messages, more), tools=()), info


class NoTools(Honest):
    async def reset(self, **given: Any) -> tuple[Observation, dict[str, Any]]:
        opening, info = await super().reset(**given)
        return Observation(opening.messages), info


class NoInfo(Honest):
    async def reset(self, **given: Any) -> Any:
        return (await super().reset(**given))[0]


class SlowReset(Honest):
    async def reset(self, **given: Any) -> tuple[Observation, dict[str, Any]]:
        await asyncio.sleep(30)
        return await super().reset(**given)


class OldGym(Honest):
    async def step(self, action: Action) -> Any:
        reply, reward, terminated, truncated, info = await super().step(action)
        return reply, reward, terminated or truncated, info


class NanReward(Honest):
    async def step(self, action: Action) -> Step:
        return ((made := await super().step(action))[0], float("nan"), *made[2:])


class MoodyStep(Honest):
    async def step(self, action: Action) -> Step:
        _, *rest = await super().step(action)
        reply = Observation((Message("user", f"reply {next(counter)}"),))
        return cast("Step", (reply, *rest))


class Ventriloquist(Honest):
    async def step(self, action: Action) -> Step:
        _, *rest = await super().step(action)
        return cast("Step", (Observation((Message("assistant", "I win."),)), *rest))


class Silent(Honest):
    async def step(self, action: Action) -> Step:
        _, *rest = await super().step(action)
        return cast("Step", (Observation(()), *rest))


class RaisesOnMalformed(Honest):
    async def step(self, action: Action) -> Step:
        if action.malformed:
            raise ValueError("cannot parse that")
        return await super().step(action)


class PaysAnything(Honest):
    async def step(self, action: Action) -> Step:
        return ((made := await super().step(action))[0], 1.0, *made[2:])


class PaysNothing(Honest):
    async def step(self, action: Action) -> Step:
        return ((made := await super().step(action))[0], 0.0, *made[2:])


class Endless(Honest):
    """Starts over instead of refusing to go on."""

    async def step(self, action: Action) -> Step:
        if not self._running:
            await super().reset()
        return await super().step(action)


class WorksClosed(Honest):
    async def step(self, action: Action) -> Step:
        if not self.actions:
            self._running = True
        return await super().step(action)

    async def close(self) -> None:
        self.actions = ()
        await super().close()


class ForkIsItself(Honest):
    async def fork(self) -> Self:
        return self


class ForkStartsOver(Honest):
    async def fork(self) -> Self:
        other = await super().fork()
        other.actions = ()
        return other


class SharedWorld(Honest):
    """Forks share a log that colours the replies."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    async def reset(self, **given: Any) -> tuple[Observation, dict[str, Any]]:
        self.log = []
        return await super().reset(**given)

    async def step(self, action: Action) -> Step:
        _, *rest = await super().step(action)
        self.log.append(action.text)
        return cast("Step", (Observation((Message("user", " ".join(self.log)),)), *rest))


class DiesWithItsOriginal(Honest):
    """Its forks live in a world that the original closes."""

    def __init__(self) -> None:
        super().__init__()
        self.world = {"open": True}

    async def reset(self, **given: Any) -> tuple[Observation, dict[str, Any]]:
        self.world = {"open": True}
        return await super().reset(**given)

    async def step(self, action: Action) -> Step:
        if not self.world["open"]:
            return Observation((Message("user", "gone"),)), 0.0, True, False, {}
        return await super().step(action)

    async def fork(self) -> Self:
        other = await super().fork()
        other.owner = False
        return other

    owner = True

    async def close(self) -> None:
        if self.owner:
            self.world["open"] = False
        await super().close()


class ClosesOnce(Honest):
    closed = False

    async def reset(self, **given: Any) -> tuple[Observation, dict[str, Any]]:
        self.closed = False
        return await super().reset(**given)

    async def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True
        await super().close()


class LeaksTask(Honest):
    kept: ClassVar[list[Any]] = []

    async def reset(self, **given: Any) -> tuple[Observation, dict[str, Any]]:
        self.kept.append(asyncio.create_task(asyncio.sleep(60), name="forgotten"))
        return await super().reset(**given)


class LeaksThread(Honest):
    ended = threading.Event()

    async def reset(self, **given: Any) -> tuple[Observation, dict[str, Any]]:
        threading.Thread(target=self.ended.wait, name="forgotten", daemon=True).start()
        return await super().reset(**given)


class LeaksFile(Honest):
    kept: ClassVar[list[int]] = []

    async def reset(self, **given: Any) -> tuple[Observation, dict[str, Any]]:
        self.kept.append(os.open(os.devnull, os.O_RDONLY))
        return await super().reset(**given)


class LeaksProcess(Honest):
    kept: ClassVar[list[subprocess.Popen[bytes]]] = []

    async def reset(self, **given: Any) -> tuple[Observation, dict[str, Any]]:
        if len(self.kept) < 3:
            self.kept.append(subprocess.Popen(["sleep", "60"]))  # noqa: ASYNC220
        return await super().reset(**given)


@pytest.fixture(autouse=True)
def cleaned() -> Iterator[None]:
    LeaksThread.ended.clear()
    yield
    LeaksThread.ended.set()
    for fd in LeaksFile.kept:
        os.close(fd)
    LeaksFile.kept.clear()
    for process in LeaksProcess.kept:
        process.kill()
        process.wait()
    for task in LeaksTask.kept:
        task.cancel()
    LeaksTask.kept.clear()


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (LyingFork, "a fork is refused"),
        (RandomTasks, "tasks are the same for the same seed"),
        (NoHeldout, "both splits have tasks"),
        (WrongSplit, "tasks know their split"),
        (Overlap, "splits are disjoint"),
        (OneName, "ids are unique"),
        (NotJson, "tasks are JSON-serialisable"),
        (MoodyReset, "reset is deterministic"),
        (NoTools, "reset opens with messages and tools"),
        (NoInfo, "reset returns"),
        (SlowReset, "calls end in time"),
        (OldGym, "step returns"),
        (NanReward, "rewards are finite"),
        (MoodyStep, "steps are deterministic"),
        (Ventriloquist, "the environment does not speak for the agent"),
        (Silent, "an answer in words is answered"),
        (RaisesOnMalformed, r"calls do not raise: step\(.*malformed=.*cannot parse that"),
        (PaysAnything, "doing nothing does not score"),
        (PaysNothing, "gold scores"),
        (Endless, "a step after the end raises"),
        (WorksClosed, "a step after close raises"),
        (ForkIsItself, "forks"),
        (ForkStartsOver, "forks go on like the original"),
        (SharedWorld, "forks"),
        (DiesWithItsOriginal, "forks do not interfere"),
        (ClosesOnce, "calls do not raise: close.*closed already"),
        (LeaksTask, "no leak: task forgotten"),
        (LeaksThread, "no leak: thread forgotten"),
        (LeaksFile, "no leak: open file /dev/null"),
        (LeaksProcess, "no leak: process .* sleep"),
    ],
)
async def test_a_broken_promise_is_named(broken: type[Env], promise: str) -> None:
    with pytest.raises(CheckError, match=f"^{promise}"):
        await check_env(broken(), timeout_s=2.0 if broken is not SlowReset else 0.05, grace_s=0.2)


class SharedFile:
    """A resource of a run that holds a file."""

    def __init__(self) -> None:
        self.file = os.open(os.devnull, os.O_RDONLY)

    async def close(self) -> None:
        os.close(self.file)


class OpensLater(Honest):
    """Its first task needs nothing of the run, and another one does."""

    first: ClassVar[str] = ""

    async def reset(self, **arguments: Any) -> tuple[Observation, dict[str, Any]]:
        task = arguments["options"]["task"] if arguments.get("options") else None
        if task is not None and not self.first:
            type(self).first = task.id
        if task is not None and task.id != self.first:

            async def open_file() -> SharedFile:
                return SharedFile()

            await shared("later", open_file)
        return await super().reset(**arguments)


async def test_a_resource_of_the_run_that_a_later_task_opens_is_no_leak() -> None:
    proven = await check_env(OpensLater(), grace_s=0.2)
    assert proven[-1] == "nothing is left after close"


async def test_what_lacks_a_method_is_no_environment() -> None:
    with pytest.raises(CheckError, match=r"is an agentrl.Env: object has no fork_strategy, tasks"):
        await check_env(cast("Env", object()))


async def test_what_a_scripted_environment_was_told_it_does() -> None:
    env = ScriptedEnv(
        [ScriptedTurn(reply="no", truncates=True), ScriptedTurn(raises=OSError("gone"))]
    )
    task = next(islice(env.tasks("train"), 1))
    opening, _ = await env.reset(options={"task": task})
    assert opening.messages == task.messages
    reply, *rest, _ = await env.step(say("x"))
    assert (reply.messages[0].text, rest) == ("no", [0.0, False, True])
    assert env.actions == (say("x"),)
    with pytest.raises(ValueError, match="at least one turn"):
        ScriptedEnv([])


class Notebook:
    """A tool whose fork is what the subclass makes of it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @tool
    def write(self, line: str) -> str:
        """Write a line."""
        self.lines.append(line)
        return "|".join(self.lines)


class SharedNotebook(Notebook):
    async def fork(self) -> "SharedNotebook":
        other = SharedNotebook()
        other.lines = self.lines
        return other


class FreshNotebook(Notebook):
    async def fork(self) -> "FreshNotebook":
        return FreshNotebook()


class GlobalNotebook(Notebook):
    everything: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.lines = self.everything


class LeakyNotebook(Notebook):
    async def open(self, context: Any) -> None:
        LeaksFile.kept.append(os.open(os.devnull, os.O_RDONLY))


WRITE = [ToolCall(f"c{i}", "write", {"line": str(i)}) for i in range(3)]


async def test_an_honest_tool_passes() -> None:
    proven = await check_tool(Notebook, calls=WRITE)
    assert "forks do not interfere" in proven
    assert "forks do not interfere" not in await check_tool(Notebook)


@pytest.mark.parametrize(
    ("source", "calls", "promise"),
    [
        (SharedNotebook, WRITE, "forks do not interfere"),
        (FreshNotebook, WRITE, "a fork goes on"),
        (GlobalNotebook, WRITE, "instances do not interfere"),
        (LeakyNotebook, WRITE, "no leak: open file /dev/null"),
        (Notebook, [ToolCall("c", "read", {})], "the examples succeed"),
    ],
)
async def test_a_tools_broken_promise_is_named(
    source: Any, calls: list[ToolCall], promise: str
) -> None:
    with pytest.raises(CheckError, match=f"^{promise}"):
        await check_tool(source, calls=calls, grace_s=0.2)

"""Tasks done on a desktop: real programs, one tool for mouse and keyboard, checkers that look."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self, cast

from agentrl.env import Action, Box, ForkStrategy, Info, Observation, Step, ToolSchema
from agentrl.errors import ConfigError, EnvError, ForkUnsupported, ToolError, blame
from agentrl.message import Content, Message, ToolCall
from agentrl.rollout.replay import History, replay
from agentrl.seeds import derive
from agentrl.task import Split, Task
from agentrl.task_choice import choose_task
from agentrl.tool import ToolContext, ToolResult
from agentrl.tool_env import checked_reward
from agentrl.tool_schema import signature_of
from agentrl_envs.gui.desktop import Desktop, DesktopPool, DesktopSettings, open_pool
from agentrl_envs.gui.live import Looked
from agentrl_envs.gui.machine import DesktopMachine
from agentrl_envs.gui.observation import Kind, Numbers, Wants, look
from agentrl_envs.gui.world import DesktopPack, Scene, Verdict
from agentrl_envs.packs import made_pack
from agentrl_tools.computer import Computer, Coordinates, Grid
from agentrl_tools.computer.computer import LAST

if TYPE_CHECKING:
    from agentrl_envs.gui.seat import Seat
    from agentrl_envs.gui.seat.seat import Sight

OVER = "The episode was over before this."
_TOOL = "computer"


@dataclass(slots=True)
class _Episode:
    """Everything that is one episode's."""

    task: Task
    desktop: Desktop
    numbers: Numbers
    computer: Computer
    context: ToolContext
    history: History
    turns: int = 0
    ended: bool = False


class GuiEnv:
    """A desktop with the programs of a task.

    The opening message has the goal and the screen; every answer to an action has the screen once
    it rests. An action that cannot be done is answered with why. The episode ends, and is judged,
    with `done`, with `fail`, with a message that calls nothing, and, truncated, after `max_turns`
    messages.

    A desktop that is lost (its X server ends, it does not answer) and a program that does not start
    raise `EnvError`: the episode failed, and the policy is not to blame.
    """

    gold: Callable[[Task, Sequence[Message]], Action]
    """Only there where the pack has players."""

    def __init__(
        self,
        *,
        pack: str | DesktopPack,
        observation: str | Sequence[Kind] = "axtree",
        observation_kwargs: Mapping[str, Any] | None = None,
        coordinates: Coordinates = "pixels",
        max_turns: int | None = 30,
        system: str = "",
        fork: ForkStrategy = "replay",
        desktop: DesktopPool | DesktopSettings | Mapping[str, Any] | None = None,
        step_s: float = 60.0,
        **pack_kwargs: Any,
    ) -> None:
        """Acquire nothing.

        Args:
            pack: The tasks: a `DesktopPack`, or `module:name` of what makes one of `pack_kwargs`.
            observation: A kind of observation, or several in order; see `observation.Kind`.
            observation_kwargs: Caps and options; the other fields of `observation.Wants`.
            coordinates: How the agent names points; see `agentrl_tools.computer.Coordinates`.
            max_turns: Messages of the agent before the episode is truncated; None sets no end.
            system: A system message, if any.
            fork: How a fork is made: `replay`, a new desktop on which the same is done, every
                observation compared; or `none`.
            desktop: Fields of `DesktopSettings`, and environments with the same ones share their
                desktops; or the desktops themselves, which stay the caller's.
            step_s: For one replayed step of a fork.
            **pack_kwargs: What the pack takes; see there.
        """
        if max_turns is not None and max_turns < 1:
            raise ConfigError(f"max_turns must be at least 1, got {max_turns}; None sets no end")
        if fork not in ("replay", "none"):
            raise ConfigError(f"fork is replay or none for a desktop, got {fork!r}")
        kinds = (observation,) if isinstance(observation, str) else tuple(observation)
        self.fork_strategy: ForkStrategy = fork
        self._pack: DesktopPack = made_pack(pack, pack_kwargs)
        self._wants = Wants(kinds=cast("Any", kinds), **(observation_kwargs or {}))
        self._max_turns = max_turns
        self._system = system
        self._pool = desktop if isinstance(desktop, DesktopPool) else None
        self._keeps_pool = self._pool is not None
        self._settings = self._pool.settings if self._pool else _settings(desktop)
        size = (self._settings.width, self._settings.height)
        self._grid = Grid(screen=size, shown=self._wants.shown(*size), coordinates=coordinates)
        self._signature = signature_of(Computer.computer)
        self._step_s = step_s
        self._resets = 0
        self._owns_pool = False
        self._episode: _Episode | None = None
        self._forked: Info = {}
        if getattr(self._pack, "has_gold", True):
            self.gold = self._pack.gold

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        """Return the schema of the one tool."""
        return (self._signature.schema,)

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        """Yield the tasks of the pack."""
        return self._pack.tasks(split, seed)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode. Options: `task`, and `sample` (the index within the group)."""
        await self._end()
        self._resets += 1
        options = options or {}
        seed = self._resets if seed is None else seed
        task = choose_task(self, seed=seed, options=options)
        sample = int(options.get("sample", 0))
        scene = self._pack.scene(task)
        desktop = await (await self._desktops()).take()
        reused, numbers = desktop.served > 1, Numbers()
        try:
            await self._begin(desktop, scene)
            content = await self._shown(desktop, numbers, f"Goal: {scene.goal.strip()}\n")
        except BaseException:
            await self._give(desktop)
            raise
        system = (Message("system", self._system),) if self._system else ()
        observation = Observation((*system, Message("user", content)), tools=self.tools)
        self._episode = _Episode(
            task=task,
            desktop=desktop,
            numbers=numbers,
            computer=Computer(DesktopMachine(desktop, numbers), self._grid),
            context=ToolContext(
                task_id=task.id, sample=sample, seed=derive("gui", seed, task.id, sample)
            ),
            history=History.begun(task, sample=sample, seed=seed, observation=observation),
        )
        return observation, {"reused_desktop": reused}

    async def step(self, action: Action) -> Step:
        """Do what a message asks for, in order, and show what the screen is then."""
        episode = self._running()
        episode.turns += 1
        try:
            step = await self._step(episode, action)
        except BaseException:
            episode.ended = True
            raise
        episode.history = episode.history.after(action, step)
        episode.ended = step[2] or step[3]
        step[4].update(self._forked)
        self._forked = {}
        return step

    async def places(self) -> Mapping[int, Box]:
        """Return where the elements are that were shown last, in the units of coordinates.

        Where only the picture was shown they are looked for now, and numbered anew.
        """
        episode = self._running()
        numbers = episode.numbers
        if not {"axtree", "marks"} & {*self._wants.kinds}:
            numbers = Numbers()
            await look(episode.desktop, replace(self._wants, kinds=("axtree",)), numbers)
        return {number: self._grid.box(box) for number, box in numbers.boxes.items()}

    def seat(self, *, at: str = "", points_by: str = "") -> "Seat":
        """Return the place of a person who plays the episodes over VNC; see `agentrl record`.

        `at` is where viewers come, HOST:PORT of this machine or unix:PATH. `points_by` is `element`
        or `coordinate`; left out, whichever is shown.
        """
        from agentrl_envs.gui.seat import Seat

        shown = "element" if {"axtree", "marks"} & {*self._wants.kinds} else "coordinate"
        return Seat(self._sight, self._grid.screen, at=at, points_by=points_by or shown)

    async def fork(self) -> Self:
        """Return a desktop on which the same was done; see `fork` of the constructor."""
        episode = self._running()
        if self.fork_strategy == "none":
            raise ForkUnsupported("this environment was made with fork=none")
        began_s = time.monotonic()
        made = await replay(
            self._another, episode.history, reset_s=self._settings.open_s, step_s=self._step_s
        )
        forked = cast("Self", made)
        forked._forked = {"fork": {"how": "replay", "seconds": time.monotonic() - began_s}}
        return forked

    async def close(self) -> None:
        """Give the desktop back, and close the pool if it is this environment's own."""
        try:
            await self._end()
        finally:
            if not self._keeps_pool:
                pool, self._pool = self._pool, None
                if pool is not None and self._owns_pool:
                    await pool.close()

    # -- an episode -------------------------------------------------------------------------------

    def _sight(self) -> "Sight":
        from agentrl_envs.gui.seat.seat import Sight

        episode = self._running()
        return Sight(
            desktop=episode.desktop,
            machine=DesktopMachine(episode.desktop, episode.numbers),
            grid=self._grid,
            boxes=episode.numbers.boxes,
        )

    def _running(self) -> _Episode:
        if self._episode is None:
            raise RuntimeError("no episode is running; await env.reset() first")
        if self._episode.ended:
            raise RuntimeError(
                f"the episode of task {self._episode.task.id!r} is over; await env.reset() for a "
                "new one"
            )
        return self._episode

    async def _desktops(self) -> DesktopPool:
        if self._pool is None:
            self._pool, self._owns_pool = await open_pool(self._settings)
        return self._pool

    async def _begin(self, desktop: Desktop, scene: Scene) -> None:
        desktop.touched = desktop.touched or scene.runs_code
        for path, data in scene.files.items():
            if path.endswith("/"):
                await desktop.folder(path)
            else:
                await desktop.put(path, data)
        for command in scene.programs:
            await desktop.program([*command])
            await desktop.settle()
        if scene.begin is not None:
            await scene.begin(Looked(desktop, self._wants))

    async def _end(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            await self._give(episode.desktop)

    async def _give(self, desktop: Desktop) -> None:
        if self._pool is not None:
            await self._pool.give(desktop)

    async def _step(self, episode: _Episode, action: Action) -> Step:
        if not (action.tool_calls or action.malformed):
            verdict = await self._judged(episode, action.text, failed=False)
            return Observation(()), verdict.reward, True, False, dict(verdict.info)
        results = [
            ToolResult(call_id=f"malformed_{i}", name="", content=error, status="error")
            for i, error in enumerate(action.malformed)
        ]
        last: ToolCall | None = None
        for call in action.tool_calls:
            result = ToolResult(call_id=call.id, name=call.name, content=OVER, status="error")
            if last is None:
                result = await self._act(episode, call)
                if result.status == "ok" and call.arguments["action"] in LAST:
                    last = call
            results.append(result)
        info: Info = {}
        reward, truncated = 0.0, last is None and episode.turns == self._max_turns
        if last is not None or truncated:
            said = None if last is None else str(last.arguments.get("text") or "")
            failed = last is not None and last.arguments["action"] == "fail"
            verdict = await self._judged(episode, said, failed=failed)
            reward = verdict.reward
            info.update(verdict.info)
        if last is None and any(result.name == _TOOL for result in results):
            said = "" if results[-1].status == "ok" else f"{results[-1].content}\n"
            shown = await self._shown(episode.desktop, episode.numbers, said)
            results[-1] = replace(results[-1], content=shown)
        info["tool_results"] = tuple(results)
        answers = Observation(tuple(result.message for result in results))
        return answers, reward, last is not None, truncated, info

    async def _act(self, episode: _Episode, call: ToolCall) -> ToolResult:
        """Do one call, and wait until the screen rests."""
        began_s = time.monotonic()
        said, status = "ok", "ok"
        try:
            if call.name != _TOOL:
                raise ToolError(f"There is no tool {call.name!r}. The only tool is {_TOOL}.")
            bound = self._signature.bind(call.arguments, episode.context)
            with blame(EnvError, f"{bound['action']} on the desktop of task {episode.task.id!r}"):
                try:
                    await episode.computer.computer(**bound)
                except ToolError as refusal:
                    said, status = str(refusal), "error"
                else:
                    await episode.desktop.settle()
        except ToolError as refusal:
            said, status = str(refusal), "error"
        return ToolResult(
            call_id=call.id,
            name=call.name,
            content=said,
            status=cast("Any", status),
            seconds=time.monotonic() - began_s,
        )

    async def _judged(self, episode: _Episode, said: str | None, *, failed: bool) -> Verdict:
        with blame(EnvError, f"the checker of task {episode.task.id!r}"):
            # A desktop whose screen died shows nothing of what the agent could have done.
            crashed = await episode.desktop.check()
            looked = Looked(episode.desktop, self._wants)
            verdict = await self._pack.judge(episode.task, looked, said, failed=failed)
            if verdict.reward <= 0 and not episode.desktop.touched:
                await self._look_for_somebody_else(episode.desktop, crashed)
        checked_reward(episode.task, verdict.reward)
        return verdict

    async def _look_for_somebody_else(self, desktop: Desktop, crashed: tuple[str, ...]) -> None:
        """Raise `EnvError` where a program is to blame for what the agent did not get done.

        Not where the agent could run code: it could have killed the program.
        """
        silent = (await look(desktop, replace(self._wants, kinds=("axtree",)), Numbers())).silent
        if crashed or silent:
            raise EnvError(f"programs of the desktop crashed: {crashed}, or hang: {silent}")

    async def _shown(self, desktop: Desktop, numbers: Numbers, head: str) -> Content:
        await desktop.check()
        view = await look(desktop, self._wants, numbers)
        text = f"{head}screen: {self._grid.extent[0]} x {self._grid.extent[1]}\n{view.text}"
        return (text, *view.images) if view.images else text.rstrip("\n")

    def _another(self) -> Self:
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._episode, made._forked = None, {}
        if self._owns_pool:
            made._pool, made._owns_pool = None, False
        return made


def _settings(given: DesktopSettings | DesktopPool | Mapping[str, Any] | None) -> DesktopSettings:
    if isinstance(given, DesktopSettings):
        return given
    assert not isinstance(given, DesktopPool)
    known = {field.name for field in fields(DesktopSettings)}
    if unknown := sorted((given or {}).keys() - known):
        raise ConfigError(
            f"desktop has no settings {unknown}; there are {', '.join(sorted(known))}"
        )
    return DesktopSettings(**(given or {}))

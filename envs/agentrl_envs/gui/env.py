"""Tasks done on a desktop: real programs, one tool for mouse and keyboard, checkers that look."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from agentrl.authoring.setting_kinds import read_settings
from agentrl.authoring.tool_env import check_reward, refuse_malformed
from agentrl.authoring.tool_schema import signature_of
from agentrl.env import Action, Box, ForkStrategy, Info, Observation, Step, ToolSchema
from agentrl.errors import EnvError, ToolError, blame
from agentrl.message import Content, ToolCall
from agentrl.rewards import drop_thoughts
from agentrl.task import Task
from agentrl.tool import ToolContext, ToolResult
from agentrl_envs.gui.checked_desktop import CheckedDesktop
from agentrl_envs.gui.desktop import (
    BARE,
    DesktopPool,
    DesktopSession,
    DesktopSettings,
    DesktopStage,
)
from agentrl_envs.gui.machine import DesktopMachine
from agentrl_envs.gui.observation import DesktopObservationOptions, ElementNumbers, Kind, look
from agentrl_envs.gui.world import DesktopPack, TaskVerdict
from agentrl_envs.pooled import OVER, PooledEnv, PooledEpisode, PoolKind
from agentrl_tools.computer import Computer, Coordinates, PointGrid
from agentrl_tools.computer.computer import LAST

if TYPE_CHECKING:
    from agentrl_envs.gui.vnc import VncPlayer
    from agentrl_envs.gui.vnc.seat import PlayerView

_TOOL = "computer"
_POOLS = PoolKind("desktop", DesktopPool, DesktopSettings)


@dataclass(slots=True, kw_only=True)
class _Episode(PooledEpisode):
    """Everything that is one episode's."""

    desktop: DesktopSession
    numbers: ElementNumbers
    computer: Computer
    reused: bool
    """Whether other episodes have been on the desktop."""
    staged: bool
    """Whether its files and programs were there already."""


class GuiEnv(PooledEnv[_Episode, DesktopPack, DesktopPool, DesktopSettings]):
    """A desktop with the programs of a task.

    The opening message has the goal and the screen; every answer to an action has the screen once
    it rests. An action that cannot be done is answered with why. The episode ends, and is judged,
    with `done`, with `fail`, with a message that calls nothing, and, truncated, after `max_turns`
    messages.

    A desktop that is lost (its X server ends, it does not answer) and a program that does not start
    raise `EnvError`: the episode failed, and the policy is not to blame.
    """

    name = "gui"
    looks_ahead = True
    forks = ("replay", "none")

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
        gold_names: bool = False,
        **pack_kwargs: Any,
    ) -> None:
        """Acquire nothing.

        Args:
            pack: The tasks: a `DesktopPack`, or `module:name` of what makes one of `pack_kwargs`.
            observation: A kind of observation, or several in order; see `observation.Kind`.
            observation_kwargs: Caps and options; see `observation.DesktopObservationOptions`.
            coordinates: How the agent names points; see `agentrl_tools.computer.Coordinates`.
            max_turns: Messages of the agent before the episode is truncated; None sets no end.
            system: A system message, if any.
            fork: How a fork is made: `replay`, a new desktop on which the same is done, every
                observation compared; or `none`.
            desktop: Fields of `DesktopSettings`, and environments with the same ones share their
                desktops; or the desktops themselves, which stay the caller's.
            step_s: For one replayed step of a fork.
            gold_names: Let the gold player write the name of the element that it acts on before
                the call, as a thought: what names it is then copied, and its number follows it.
            **pack_kwargs: What the pack takes; see there.
        """
        super().__init__(
            pack=pack,
            pack_kwargs=pack_kwargs,
            pools=_POOLS,
            given=desktop,
            max_turns=max_turns,
            system=system,
            fork=fork,
            step_s=step_s,
            gold_names=gold_names,
        )
        kinds = (observation,) if isinstance(observation, str) else tuple(observation)
        looks = {"kinds": kinds, **(observation_kwargs or {})}
        self._wants = read_settings(DesktopObservationOptions, looks, of="observation_kwargs")
        size = (self._settings.width, self._settings.height)
        self._grid = PointGrid(
            screen=size, shown=self._wants.scale_size(*size), coordinates=coordinates
        )
        self._signature = signature_of(Computer.computer)

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return (self._signature.schema,)

    @property
    def desktop(self) -> DesktopSession:
        """Desktop of the running episode; `RuntimeError` without one."""
        return self._running().desktop

    async def places(self) -> Mapping[int, Box]:
        """Return the boxes of the elements shown last, in the units of coordinates.

        Where only the picture was shown they are looked for now, and numbered anew.
        """
        episode = self._running()
        numbers = episode.numbers
        if not {"axtree", "marks"} & {*self._wants.kinds}:
            numbers = ElementNumbers()
            await look(episode.desktop, replace(self._wants, kinds=("axtree",)), numbers)
        return {number: self._grid.box(box) for number, box in numbers.boxes.items()}

    def seat(self, *, at: str = "", points_by: str = "") -> "VncPlayer":
        """Return the place of a person who plays the episodes over VNC; see `agentrl record`.

        `at` is where viewers come, HOST:PORT of this machine or unix:PATH. `points_by` is `element`
        or `coordinate`; left out, whichever is shown.
        """
        from agentrl_envs.gui.vnc import VncPlayer

        default_mode = "element" if {"axtree", "marks"} & {*self._wants.kinds} else "coordinate"
        return VncPlayer(
            self._view_desktop, self._grid.screen, at=at, points_by=points_by or default_mode
        )

    # -- an episode -------------------------------------------------------------------------------

    def _view_desktop(self) -> "PlayerView":
        from agentrl_envs.gui.vnc.seat import PlayerView

        episode = self._running()
        return PlayerView(
            desktop=episode.desktop,
            machine=DesktopMachine(episode.desktop, episode.numbers),
            grid=self._grid,
            boxes=episode.numbers.boxes,
        )

    async def _begin(self, task: Task, context: ToolContext) -> _Episode:
        scene = self._pack.scene(task)
        stage = DesktopStage.from_scene(scene)
        desktop = await (await self._holding.get()).take(stage)
        numbers = ElementNumbers()
        episode = _Episode(
            task=task,
            goal=scene.goal,
            context=context,
            desktop=desktop,
            numbers=numbers,
            computer=Computer(DesktopMachine(desktop, numbers), self._grid),
            reused=desktop.served > 1,
            staged=desktop.stage != BARE,
        )
        try:
            desktop.touched = desktop.touched or scene.runs_code
            if not episode.staged:
                await desktop.set_up(stage)
            if scene.begin is not None:
                await scene.begin(CheckedDesktop(desktop, self._wants))
        except BaseException:
            await self._release(episode)
            raise
        return episode

    async def _opening(self, episode: _Episode) -> Content:
        return await self._show(episode, f"Goal: {episode.goal.strip()}\n")

    def _began(self, episode: _Episode) -> Info:
        return {"reused_desktop": episode.reused, "staged_desktop": episode.staged}

    def _expects(self, tasks: Sequence[Task], known_s: float) -> None:
        if (pool := self._holding.now) is not None:
            stages = [DesktopStage.from_scene(self._pack.scene(task)) for task in tasks]
            pool.expect(stages, known_s=known_s)

    async def _release(self, episode: _Episode) -> None:
        if (pool := self._holding.now) is not None:
            await pool.give(episode.desktop)

    async def _step(self, episode: _Episode, action: Action) -> Step:
        if not (action.tool_calls or action.malformed):
            verdict = await self._judge(episode, drop_thoughts(action.text), failed=False)
            return Observation(()), verdict.reward, True, False, dict(verdict.info)
        results = refuse_malformed(action)
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
            text = None if last is None else str(last.arguments.get("text") or "")
            failed = last is not None and last.arguments["action"] == "fail"
            verdict = await self._judge(episode, text, failed=failed)
            reward = verdict.reward
            info.update(verdict.info)
        if last is None and any(result.name == _TOOL for result in results):
            text = "" if results[-1].status == "ok" else f"{results[-1].content}\n"
            content = await self._show(episode, text)
            results[-1] = replace(results[-1], content=content)
        info["tool_results"] = tuple(results)
        answers = Observation(tuple(result.message for result in results))
        return answers, reward, last is not None, truncated, info

    async def _act(self, episode: _Episode, call: ToolCall) -> ToolResult:
        began_s = time.monotonic()
        content, status = "ok", "ok"
        try:
            if call.name != _TOOL:
                raise ToolError(f"There is no tool {call.name!r}. The only tool is {_TOOL}.")
            bound = self._signature.bind(call.arguments, episode.context)
            with blame(EnvError, f"{bound['action']} on the desktop of task {episode.task.id!r}"):
                try:
                    await episode.computer.computer(**bound)
                except ToolError as refusal:
                    content, status = str(refusal), "error"
                else:
                    await episode.desktop.settle()
        except ToolError as refusal:
            content, status = str(refusal), "error"
        return ToolResult(
            call_id=call.id,
            name=call.name,
            content=content,
            status=cast("Any", status),
            seconds=time.monotonic() - began_s,
        )

    async def _judge(self, episode: _Episode, said: str | None, *, failed: bool) -> TaskVerdict:
        with blame(EnvError, f"the checker of task {episode.task.id!r}"):
            # A desktop whose screen died shows nothing of what the agent could have done.
            crashed = await episode.desktop.check()
            looked = CheckedDesktop(episode.desktop, self._wants)
            verdict = await self._pack.judge(episode.task, looked, said, failed=failed)
            if verdict.reward <= 0 and not episode.desktop.touched:
                await self._raise_for_programs(episode.desktop, crashed)
        check_reward(episode.task, verdict.reward)
        return verdict

    async def _raise_for_programs(self, desktop: DesktopSession, crashed: tuple[str, ...]) -> None:
        """Raise `EnvError` where a program is to blame for what the agent did not get done.

        Not where the agent could run code: it could have killed the program.
        """
        wants = replace(self._wants, kinds=("axtree",))
        silent = (await look(desktop, wants, ElementNumbers())).silent
        if crashed or silent:
            raise EnvError(f"programs of the desktop crashed: {crashed}, or hang: {silent}")

    async def _show(self, episode: _Episode, head: str) -> Content:
        await episode.desktop.check()
        view = await look(episode.desktop, self._wants, episode.numbers)
        text = f"{head}screen: {self._grid.extent[0]} x {self._grid.extent[1]}\n{view.text}"
        return (text, *view.images) if view.images else text.rstrip("\n")

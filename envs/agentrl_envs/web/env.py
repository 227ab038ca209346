"""Tasks done in a browser: pages that the host serves, actions as tools, checkers that look."""

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, cast, get_args

from agentrl.env import Action, ForkStrategy, Info, Observation, Step
from agentrl.errors import ConfigError, EnvError, ForkUnsupported, ToolError, blame
from agentrl.message import Content, Message
from agentrl.rollout.replay import History, fingerprint, replay
from agentrl.seeds import derive
from agentrl.task import Split, Task
from agentrl.task_choice import choose_task
from agentrl.tool import ToolContext, ToolResult
from agentrl.tool_env import checked_reward
from agentrl.tool_schema import signature_of
from agentrl_envs.packs import made_pack
from agentrl_envs.web.actions import ACTIONS, Hands, chosen
from agentrl_envs.web.browser import BrowserPool, BrowserSettings, Screen, Visit, open_pool
from agentrl_envs.web.observation import Kind, Wants, look
from agentrl_envs.web.pack import TaskPack
from agentrl_envs.web.world import Verdict, World

OVER = "The episode was over before this."
_ANSWER = "answer"
_MOST_MS = 60_000

Clock = Literal["real", "steps"]


@dataclass(slots=True)
class _Episode:
    """Everything that is one episode's."""

    task: Task
    world: World
    visit: Visit
    hands: Hands
    context: ToolContext
    history: History
    turns: int = 0
    ended: bool = False


class WebEnv:
    """A browser on the pages of a task pack.

    The opening message has the goal and the page; every answer to an action has the page as it is
    then. An action that cannot be done is answered with why, and changes nothing. The episode ends
    with `answer` or with a message that calls nothing, when the world says that it is done, and,
    truncated, after `max_turns` messages.

    A page that hangs or crashes, and a browser that dies, raise `EnvError`: the episode failed, and
    the policy is not to blame.
    """

    gold: Callable[[Task, Sequence[Message]], Action]
    """Only there where the pack has players."""

    def __init__(
        self,
        *,
        pack: str | TaskPack,
        observation: str | Sequence[Kind] = "axtree",
        observation_kwargs: Mapping[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        screen: Sequence[int] = (1024, 768),
        clock: Clock | None = None,
        action_ms: float = 200.0,
        max_turns: int | None = 40,
        system: str = "",
        fork: ForkStrategy = "replay",
        browser: BrowserPool | BrowserSettings | Mapping[str, Any] | None = None,
        step_s: float = 60.0,
        **pack_kwargs: Any,
    ) -> None:
        """Acquire nothing.

        Args:
            pack: The tasks: a `TaskPack`, or `module:name` of what makes one of `pack_kwargs`.
            observation: A kind of observation, or several in order; see `observation.Kind`.
            observation_kwargs: Caps and options; the other fields of `observation.Wants`.
            actions: Names of the tools to offer; all of them when left out.
            screen: Width and height in pixels.
            clock: `real` lets a page's timers, frames and date go on by themselves; under `steps`
                they stand still but for `action_ms` with every action that is done (and what `wait`
                waits for), so that what the page does is a function of what the agent did. What
                the pack asks for (`pack.clock`), or else `real`, when left out.
            action_ms: The page's milliseconds that an action takes under `steps`, and the opening.
            max_turns: Messages of the agent before the episode is truncated; None sets no end.
            system: A system message, if any.
            fork: How a fork is made: `copy` where worlds can be copied, with `replay` where a copy
                does not look the same; or always `replay`; or `none`.
            browser: Fields of `BrowserSettings`, and environments with the same ones share their
                browsers; or the browsers themselves, which stay the caller's.
            step_s: For one replayed step of a fork.
            **pack_kwargs: What the pack takes; see there.
        """
        if max_turns is not None and max_turns < 1:
            raise ConfigError(f"max_turns must be at least 1, got {max_turns}; None sets no end")
        if fork not in ("copy", "replay", "none"):
            raise ConfigError(f"fork is copy, replay or none for a browser, got {fork!r}")
        if clock not in (None, *get_args(Clock)):
            raise ConfigError(f"clock is one of {', '.join(get_args(Clock))}, got {clock!r}")
        if not 0 < action_ms <= _MOST_MS:
            raise ConfigError(f"action_ms must be above 0 and at most {_MOST_MS}, got {action_ms}")
        kinds = (observation,) if isinstance(observation, str) else tuple(observation)
        self.fork_strategy: ForkStrategy = fork
        self._pack: TaskPack = made_pack(pack, pack_kwargs)
        self._names = chosen(actions)
        self._signatures = {name: signature_of(ACTIONS[name]) for name in self._names}
        self._schemas = tuple(signature.schema for signature in self._signatures.values())
        self._screen = Screen(*screen)
        kept = clock or getattr(self._pack, "clock", "real")
        self._action_ms = action_ms if kept == "steps" else None
        self._max_turns = max_turns
        self._system = system
        self._pool = browser if isinstance(browser, BrowserPool) else None
        self._keeps_pool = self._pool is not None
        self._settings = self._pool.settings if self._pool else _settings(browser)
        looks: dict[str, Any] = {"deadline_s": self._settings.call_s, **(observation_kwargs or {})}
        self._wants = Wants(kinds=cast("Any", kinds), **looks)
        self._step_s = step_s
        self._resets = 0
        self._owns_pool = False
        self._episode: _Episode | None = None
        self._forked: Info = {}
        if getattr(self._pack, "has_gold", True):
            self.gold = self._pack.gold

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
        world = self._pack.world(task)
        visit, goal = await self._begun(world)
        try:
            content = await self._opening(visit, goal)
        except BaseException:
            await self._release(visit, world)
            raise
        system = (Message("system", self._system),) if self._system else ()
        observation = Observation((*system, Message("user", content)), tools=self._schemas)
        self._episode = _Episode(
            task=task,
            world=world,
            visit=visit,
            hands=Hands(visit),
            context=ToolContext(
                task_id=task.id, sample=sample, seed=derive("web", seed, task.id, sample)
            ),
            history=History.begun(task, sample=sample, seed=seed, observation=observation),
        )
        pool = await self._browsers()
        pool.prepare(visit, world)
        return observation, {"page": visit.origin}

    async def step(self, action: Action) -> Step:
        """Do what a message asks for, in order, and show what the page is then."""
        episode = self._running()
        episode.turns += 1
        try:
            step = await self._step(episode, action)
        except BaseException:
            episode.ended = True
            raise
        episode.history = episode.history.after(action, step)
        episode.ended = step[2] or step[3]
        if self._forked:
            step[4].update(self._forked)
            self._forked = {}
        return step

    async def fork(self) -> Self:
        """Return a copy of the world as it is now; see `fork` of the constructor."""
        episode = self._running()
        if self.fork_strategy == "none":
            raise ForkUnsupported("this environment was made with fork=none")
        began = time.monotonic()
        made, how = await self._copied(episode) if self.fork_strategy == "copy" else None, "copy"
        if made is None:
            made, how = await self._replayed(episode), "replay"
        made._forked = {"fork": {"how": how, "seconds": time.monotonic() - began}}
        return made

    async def close(self) -> None:
        """Give the page back, and close the browsers if they are this environment's own."""
        try:
            await self._end()
        finally:
            if not self._keeps_pool:
                pool, self._pool = self._pool, None
                if pool is not None and self._owns_pool:
                    await pool.close()

    # -- an episode -------------------------------------------------------------------------------

    def _running(self) -> _Episode:
        if self._episode is None:
            raise RuntimeError("no episode is running; await env.reset() first")
        if self._episode.ended:
            raise RuntimeError(
                f"the episode of task {self._episode.task.id!r} has ended; await env.reset() for "
                "another"
            )
        return self._episode

    async def _begun(self, world: World) -> tuple[Visit, str]:
        pool = await self._browsers()
        visit, loaded = await pool.visit(world, self._screen, action_ms=self._action_ms)
        try:
            return visit, await visit.begin(world, loaded=loaded)
        except BaseException:
            visit.fail(EnvError("its episode did not begin"))
            await self._release(visit, world)
            raise

    async def _browsers(self) -> BrowserPool:
        if self._pool is None:
            self._pool, self._owns_pool = await open_pool(self._settings)
        return self._pool

    async def _end(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            await self._release(episode.visit, episode.world)

    async def _release(self, visit: Visit, world: World) -> None:
        if self._pool is not None:
            await self._pool.release(visit)
        await world.close()

    async def _step(self, episode: _Episode, action: Action) -> Step:
        if not (action.tool_calls or action.malformed):
            verdict = await self._judged(episode, action.text)
            return Observation(()), verdict.reward, True, False, dict(verdict.info)
        results = [
            ToolResult(call_id=f"malformed_{i}", name="", content=error, status="error")
            for i, error in enumerate(action.malformed)
        ]
        reward, done, acted, info = 0.0, False, False, Info()
        for call in action.tool_calls:
            began = time.monotonic()
            content, status = OVER, "error"
            if not done:
                content, status = await self._act(episode, call.name, call.arguments)
                if status == "ok":
                    said = str(call.arguments["text"]) if call.name == _ANSWER else None
                    verdict = await self._judged(episode, said)
                    reward, done, acted = reward + verdict.reward, verdict.done, True
                    info.update(verdict.info)
            results.append(
                ToolResult(
                    call_id=call.id,
                    name=call.name,
                    content=content,
                    status=cast("Any", status),
                    seconds=time.monotonic() - began,
                )
            )
            done = done or (call.name == _ANSWER and status == "ok")
        if acted and not done:
            results[-1] = _with(results[-1], await self._shown(episode.visit))
        truncated = not done and episode.turns == self._max_turns
        answers = tuple(result.message for result in results)
        info["tool_results"] = tuple(results)
        return Observation(answers), reward, done, truncated, info

    async def _act(
        self, episode: _Episode, name: str, arguments: Mapping[str, Any]
    ) -> tuple[str, str]:
        try:
            if (signature := self._signatures.get(name)) is None:
                raise ToolError(f"There is no tool {name!r}. The tools are: {self._listed}.")
            bound = signature.bind(arguments, episode.context)
            with blame(EnvError, f"{name} on the page of task {episode.task.id!r}"):
                try:
                    await getattr(episode.hands, name)(**bound)
                except ToolError as refusal:
                    return str(refusal), "error"
                await episode.visit.settle()
        except ToolError as refusal:
            return str(refusal), "error"
        return "ok", "ok"

    @functools.cached_property
    def _listed(self) -> str:
        return ", ".join(self._names)

    async def _judged(self, episode: _Episode, said: str | None) -> Verdict:
        with blame(EnvError, f"the checker of task {episode.task.id!r}"):
            verdict = await episode.world.judge(episode.visit.tab, said)
        checked_reward(episode.task, verdict.reward)
        return verdict

    async def _opening(self, visit: Visit, goal: str) -> Content:
        content = await self._shown(visit)
        head = f"Goal: {goal.strip()}\n"
        return head + content if isinstance(content, str) else (head, *content)

    async def _shown(self, visit: Visit) -> Content:
        view = await look(visit.tab, self._wants)
        lines = [f"notice: {notice}" for notice in visit.taken_notices()]
        lines += [f"url: {view.url}", f"title: {view.title}"]
        if len(visit.tabs) > 1:
            tabs = [f"{i}{'*' if i == visit.at else ''} {t.url}" for i, t in enumerate(visit.tabs)]
            lines.append(f"tabs: {', '.join(tabs)}")
        text = "\n".join([*lines, view.text]).rstrip("\n")
        return (text, *view.images) if view.images else text

    # -- forks ------------------------------------------------------------------------------------

    def _another(self) -> Self:
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._episode, made._forked = None, {}
        if self._owns_pool:
            made._pool, made._owns_pool = None, False
        return made

    async def _replayed(self, episode: _Episode) -> Self:
        made = await replay(
            self._another, episode.history, reset_s=self._settings.open_s, step_s=self._step_s
        )
        return cast("Self", made)

    async def _copied(self, episode: _Episode) -> Self | None:
        """Return a copy on a page loaded anew, or None where it does not look the same."""
        if len(episode.visit.tabs) > 1:
            return None
        world = episode.world.copy()
        if world is None:
            return None
        made = self._another()
        visit: Visit | None = None
        try:
            shown = await self._shown(episode.visit)
            storage = await episode.visit.storage()
            pool = await made._browsers()
            visit = await pool.blank(self._screen, action_ms=self._action_ms)
            pool.prepare(visit, world)
            await visit.restore(storage)
            visit.world = world
            await visit.go(episode.visit.tab.url)
            await visit.settle()
            same = _looks(await self._shown(visit)) == _looks(shown)
        except BaseException:
            await made._abandon(visit, world)
            raise
        if not same:
            await made._abandon(visit, world)
            return None
        made._episode = _Episode(
            task=episode.task,
            world=world,
            visit=visit,
            hands=Hands(visit),
            context=episode.context,
            history=episode.history,
            turns=episode.turns,
        )
        return made

    async def _abandon(self, visit: Visit | None, world: World) -> None:
        if visit is None:
            await world.close()
        else:
            await self._release(visit, world)


def _settings(given: BrowserPool | BrowserSettings | Mapping[str, Any] | None) -> BrowserSettings:
    if isinstance(given, BrowserSettings):
        return given
    assert not isinstance(given, BrowserPool)
    known = {field.name for field in fields(BrowserSettings)}
    if unknown := sorted((given or {}).keys() - known):
        raise ConfigError(
            f"browser has no settings {unknown}; there are {', '.join(sorted(known))}"
        )
    return BrowserSettings(**(given or {}))


def _looks(content: Content) -> str:
    return fingerprint(Observation((Message("user", content),)))


def _with(result: ToolResult, shown: Content) -> ToolResult:
    """Return a result with the page after it."""
    said = "" if result.status == "ok" else f"{result.content}\n"
    content: Content = said + shown if isinstance(shown, str) else (said, *shown)
    return replace(result, content=content)

"""Tasks done in a browser: pages that the host serves, actions as tools, checkers that look."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, cast, get_args

from agentrl.authoring.setting_kinds import read_settings
from agentrl.authoring.tool_env import check_reward, refuse_malformed
from agentrl.authoring.tool_schema import signature_of
from agentrl.env import Action, ForkStrategy, Info, Observation, Step, ToolSchema
from agentrl.errors import ConfigError, EnvError, ToolError, blame
from agentrl.events.history import fingerprint
from agentrl.message import Content, Message
from agentrl.rewards import drop_thoughts
from agentrl.task import Task
from agentrl.tool import ToolContext, ToolResult
from agentrl_envs.pooled import OVER, PooledEnv, PooledEpisode, PoolKind
from agentrl_envs.web.actions import ACTIONS, BrowserActions, choose_actions
from agentrl_envs.web.browser import BrowserPool, BrowserSettings, EpisodeContext, PageScreen
from agentrl_envs.web.episode_site import EpisodeSite, SiteVerdict
from agentrl_envs.web.observation import Kind, PageObservationOptions, look
from agentrl_envs.web.pack import WebTaskPack

_POOLS = PoolKind("browser", BrowserPool, BrowserSettings)
_ANSWER = "answer"
_MOST_MS = 60_000
URL_CHARACTERS = 1000
"""Of an address that is shown."""

Clock = Literal["real", "steps"]


@dataclass(slots=True, kw_only=True)
class _Episode(PooledEpisode):
    """Everything that is one episode's."""

    world: EpisodeSite
    visit: EpisodeContext
    hands: BrowserActions


class WebEnv(PooledEnv[_Episode, WebTaskPack, BrowserPool, BrowserSettings]):
    """A browser on the pages of a task pack.

    The opening message has the goal and the page; every answer to an action has the page as it is
    then. An action that cannot be done is answered with why, and changes nothing. The episode ends
    with `answer` or with a message that calls nothing, when the world says that it is done, and,
    truncated, after `max_turns` messages.

    A page that hangs or crashes, and a browser that dies, raise `EnvError`: the episode failed, and
    the policy is not to blame.
    """

    name = "web"
    forks = ("copy", "replay", "none")

    def __init__(
        self,
        *,
        pack: str | WebTaskPack,
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
        gold_names: bool = False,
        **pack_kwargs: Any,
    ) -> None:
        """Acquire nothing.

        Args:
            pack: The tasks: a `WebTaskPack`, or `module:name` of what makes one of `pack_kwargs`.
            observation: A kind of observation, or several in order; see `observation.Kind`.
            observation_kwargs: Caps and options; the other fields of `view.PageObservationOptions`.
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
            gold_names: Let the gold player write the name of the element that it acts on before
                the call, as a thought: what names it is then copied, and its number follows it.
            **pack_kwargs: What the pack takes; see there.
        """
        super().__init__(
            pack=pack,
            pack_kwargs=pack_kwargs,
            pools=_POOLS,
            given=browser,
            max_turns=max_turns,
            system=system,
            fork=fork,
            step_s=step_s,
            gold_names=gold_names,
        )
        if clock not in (None, *get_args(Clock)):
            raise ConfigError(f"clock must be one of {', '.join(get_args(Clock))}, got {clock!r}")
        if not 0 < action_ms <= _MOST_MS:
            raise ConfigError(f"action_ms must be above 0 and at most {_MOST_MS}, got {action_ms}")
        kinds = (observation,) if isinstance(observation, str) else tuple(observation)
        self._names = choose_actions(actions)
        self._signatures = {name: signature_of(ACTIONS[name]) for name in self._names}
        self._schemas = tuple(signature.schema for signature in self._signatures.values())
        self._screen = PageScreen(*screen)
        clock_mode = clock or getattr(self._pack, "clock", "real")
        self._action_ms = action_ms if clock_mode == "steps" else None
        looks = {"deadline_s": self._settings.call_s, "kinds": kinds, **(observation_kwargs or {})}
        self._wants = read_settings(PageObservationOptions, looks, of="observation_kwargs")

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        """Return the schemas of the actions."""
        return self._schemas

    # -- an episode -------------------------------------------------------------------------------

    async def _begin(self, task: Task, context: ToolContext) -> _Episode:
        world = self._pack.world(task)
        pool = await self._holding.get()
        visit, loaded = await pool.visit(world, self._screen, action_ms=self._action_ms)
        try:
            goal = await visit.begin(world, loaded=loaded)
        except BaseException:
            visit.fail(EnvError("its episode did not begin"))
            await self._give_back(visit, world)
            raise
        return _Episode(
            task=task,
            goal=goal,
            context=context,
            world=world,
            visit=visit,
            hands=BrowserActions(visit),
        )

    def _began(self, episode: _Episode) -> Info:
        if (pool := self._holding.now) is not None:
            pool.prepare(episode.visit, episode.world)
        return {"page": episode.visit.origin}

    async def _release(self, episode: _Episode) -> None:
        await self._give_back(episode.visit, episode.world)

    async def _give_back(self, visit: EpisodeContext, world: EpisodeSite) -> None:
        if (pool := self._holding.now) is not None:
            await pool.release(visit)
        await world.close()

    async def _step(self, episode: _Episode, action: Action) -> Step:
        if not (action.tool_calls or action.malformed):
            verdict = await self._judge(episode, drop_thoughts(action.text))
            return Observation(()), verdict.reward, True, False, dict(verdict.info)
        results = refuse_malformed(action)
        reward, done, acted, info = 0.0, False, False, Info()
        for call in action.tool_calls:
            began = time.monotonic()
            content, status = OVER, "error"
            if not done:
                content, status = await self._act(episode, call.name, call.arguments)
                if status == "ok":
                    answer = str(call.arguments["text"]) if call.name == _ANSWER else None
                    verdict = await self._judge(episode, answer)
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
            results[-1] = _append_page(results[-1], await self._observe(episode.visit))
        truncated = not done and episode.turns == self._max_turns
        answers = tuple(result.message for result in results)
        info["tool_results"] = tuple(results)
        return Observation(answers), reward, done, truncated, info

    async def _act(
        self, episode: _Episode, name: str, arguments: Mapping[str, Any]
    ) -> tuple[str, str]:
        try:
            if (signature := self._signatures.get(name)) is None:
                listed = ", ".join(self._names)
                raise ToolError(f"There is no tool {name!r}. The tools are: {listed}.")
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

    async def _judge(self, episode: _Episode, said: str | None) -> SiteVerdict:
        with blame(EnvError, f"the checker of task {episode.task.id!r}"):
            verdict = await episode.world.judge(episode.visit.tab, said)
        check_reward(episode.task, verdict.reward)
        return verdict

    async def _opening(self, episode: _Episode) -> Content:
        content = await self._observe(episode.visit)
        head = f"Goal: {episode.goal.strip()}\n"
        return head + content if isinstance(content, str) else (head, *content)

    async def _observe(self, visit: EpisodeContext) -> Content:
        view = await look(visit.tab, self._wants)
        lines = [f"notice: {notice}" for notice in visit.take_notices()]
        lines += [f"url: {_cut_url(view.url)}", f"title: {view.title}"]
        if len(visit.tabs) > 1:
            marks = ["*" if number == visit.at else "" for number in range(len(visit.tabs))]
            urls = [_cut_url(tab.url) for tab in visit.tabs]
            tabs = [f"{number}{marks[number]} {url}" for number, url in enumerate(urls)]
            lines.append(f"tabs: {', '.join(tabs)}")
        text = "\n".join([*lines, view.text]).rstrip("\n")
        return (text, *view.images) if view.images else text

    # -- forks ------------------------------------------------------------------------------------

    async def _fork(self, episode: _Episode) -> tuple[Self, str]:
        fork = await self._copy_episode(episode) if self.fork_strategy == "copy" else None
        return await super()._fork(episode) if fork is None else (fork, "copy")

    async def _copy_episode(self, episode: _Episode) -> Self | None:
        """Return a copy on a page loaded anew, or None where it does not look the same."""
        if len(episode.visit.tabs) > 1:
            return None
        world = episode.world.copy()
        if world is None:
            return None
        fork = self._another()
        visit: EpisodeContext | None = None
        try:
            content = await self._observe(episode.visit)
            storage = await episode.visit.storage()
            pool = await fork._holding.get()
            visit = await pool.blank(self._screen, action_ms=self._action_ms)
            pool.prepare(visit, world)
            await visit.restore(storage)
            visit.world = world
            await visit.go(episode.visit.tab.url)
            await visit.settle()
            same = _fingerprint(await self._observe(visit)) == _fingerprint(content)
        except BaseException:
            await fork._abandon(visit, world)
            raise
        if not same:
            await fork._abandon(visit, world)
            return None
        fork._episode = _Episode(
            task=episode.task,
            goal=episode.goal,
            context=episode.context,
            turns=episode.turns,
            world=world,
            visit=visit,
            hands=BrowserActions(visit),
        )
        fork._episode.history = episode.history
        return fork

    async def _abandon(self, visit: EpisodeContext | None, world: EpisodeSite) -> None:
        if visit is None:
            await world.close()
        else:
            await self._give_back(visit, world)


def _cut_url(url: str) -> str:
    """Return an address as it is shown: a page may give itself one of two megabytes."""
    return url if len(url) <= URL_CHARACTERS else f"{url[:URL_CHARACTERS]}…"


def _fingerprint(content: Content) -> str:
    return fingerprint(Observation((Message("user", content),)))


def _append_page(result: ToolResult, shown: Content) -> ToolResult:
    prefix = "" if result.status == "ok" else f"{result.content}\n"
    content: Content = prefix + shown if isinstance(shown, str) else (prefix, *shown)
    return replace(result, content=content)

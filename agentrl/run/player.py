"""Players without a model on held-out tasks: gold, random, and scripted agents of one's own."""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

from agentrl.authoring.env_contract import close_env
from agentrl.authoring.gold import Act, gold_action, play
from agentrl.config.run import RolloutSection, RunConfig
from agentrl.env import Action, Env, GoldPlayer, Observation, ToolSchema, call, say
from agentrl.errors import ConfigError, EnvError, RolloutError, blame, first_error
from agentrl.evaluation.report import EvaluationReport
from agentrl.message import Message
from agentrl.rollout.scheduler.topology import check_scored
from agentrl.run import build
from agentrl.runtime.heap import frozen_heap
from agentrl.runtime.imports import import_callable
from agentrl.runtime.progress import RunProgress
from agentrl.runtime.scope import run_scope
from agentrl.runtime.seeds import derive
from agentrl.runtime.threads import call_either
from agentrl.runtime.user_code import append_place
from agentrl.sandbox import using_sandbox
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Outcome, Tree, Truncated

Player = Callable[[Env, Task, Sequence[ToolSchema], tuple[Message, ...]], Awaitable[Action]]
"""Return the next action, of the tools that can be called now and all messages so far."""

WORDS = ("yes", "no", "0", "1", "2", "3", "4", "5", "7", "9", "10", "42", "a", "b", "the", "end")
"""Texts and numbers that a random player says."""
MOST_ITEMS = 3
MOST_DEPTH = 4


def find_player(name: str, *, seed: int) -> Player:
    """Return `gold`, `random`, or the function at `module:function`.

    Such a function gets the messages so far and the schemas of the tools, and returns an `Action`,
    or text to say; it may be asynchronous. Raises `ConfigError` for anything else.
    """
    if name == "gold":
        return _play_gold
    if name == "random":
        return _make_random_player(seed)
    if ":" not in name:
        raise ConfigError(f"--player is {name!r}, expected gold, random or module:function")
    function = import_callable(name)
    try:
        inspect.signature(function).bind((), ())
    except TypeError as error:
        raise ConfigError(
            f"--player {name}: {error}; a player is called with two arguments, the messages so far "
            "and the schemas of the tools"
        ) from error
    return _make_scripted_player(name, function)


async def evaluate_player(config: RunConfig, name: str, progress: RunProgress) -> EvaluationReport:
    """Play every held-out task; a player that breaks fails its trajectory, never as a reward."""
    player = find_player(name, seed=derive(config.run.seed, "random player"))
    make_env = build.build_env_factory(config)
    tasks = build.build_evaluation_tasks(config, make_env(), progress.say)
    evaluation = build.build_evaluation(config, tasks)
    evaluation = replace(evaluation, about={**evaluation.about, "policy": name})
    free = asyncio.Semaphore(config.rollout.concurrency)
    sample_count = config.evaluate.samples_per_task
    with (
        using_sandbox(build.build_sandbox_settings(config.sandbox)),
        progress.phase("evaluate", total=len(tasks) * sample_count) as bar,
        first_error(),
        frozen_heap(),
    ):
        async with (
            run_scope(),
            build.open_env_workers(config, make_env) as make_world,
            asyncio.TaskGroup() as group,
        ):

            async def play_samples(task: Task) -> Tree:
                tree = Tree(task)
                for sample in range(sample_count):
                    async with free:
                        await _play_sample(tree, sample, make_world(), player, config)
                    bar.advance()
                return tree

            running = [group.create_task(play_samples(task)) for task in tasks]
    trees = [task.result() for task in running]
    check_scored([leaf.outcome for tree in trees for leaf in tree.leaves])
    return evaluation.report([t for tree in trees for t in tree.trajectories()], k=evaluation.k)


async def _play_sample(
    tree: Tree, sample: int, env: Env, player: Player, config: RunConfig
) -> None:
    """Add one trajectory to a tree; its tokens stand for turns, and have no log-probs."""
    tools: Sequence[ToolSchema] = ()
    at = tree.add(Node(parent=None, source="prompt", token_ids=(), turn=0))
    turn_count = call_count = 0

    async def act(new: Observation, seen: tuple[Message, ...]) -> Action:
        nonlocal tools, at, turn_count, call_count
        tools = tools if new.tools is None else new.tools
        action = await player(env, tree.task, tools, seen)
        node = Node(
            parent=at,
            source="sampled",
            token_ids=(0,),
            turn=turn_count,
            logprobs=(math.nan,),
            versions=(0,),
        )
        at, turn_count = tree.add(node), turn_count + 1
        call_count += len(action.tool_calls)
        return action

    # In a task of its own: an environment that cancels its task ends this trajectory alone.
    async with asyncio.TaskGroup() as group:
        playing = group.create_task(_play_episode(env, tree.task, act, config.rollout))
    cancelled = Failed("cancelled", "the trajectory was cancelled")
    outcome = cancelled if playing.cancelled() else playing.result()
    tree.end(Leaf(node=at, outcome=outcome, sample=sample, tool_calls=call_count))


async def _play_episode(env: Env, task: Task, act: Act, rollout: RolloutSection) -> Outcome:
    limit = asyncio.timeout(rollout.episode_s)
    deadline = f"rollout.episode_s, {rollout.episode_s:g} s"
    try:
        try:
            with blame(EnvError, f"the player of task {task.id!r}", deadline=deadline, limit=limit):
                async with limit:
                    episode = await play(
                        env,
                        task,
                        act,
                        max_turns=rollout.max_turns,
                        reset_s=rollout.reset_s,
                        step_s=rollout.step_s,
                    )
        except BaseException:
            # Why it ended counts, and not that its environment did not close after that either.
            with suppress(RolloutError):
                await close_env(env, f"close of task {task.id!r}")
            raise
        await close_env(env, f"close of task {task.id!r}")
    except RolloutError as error:
        return Failed(error.kind, append_place(str(error), error))
    is_finished = episode.is_over and not episode.is_truncated
    return Finished(episode.reward) if is_finished else Truncated("turns", episode.reward)


async def _play_gold(
    env: Env, task: Task, tools: Sequence[ToolSchema], seen: tuple[Message, ...]
) -> Action:
    if not isinstance(env, GoldPlayer):
        raise ConfigError(
            f"--player is gold, but {type(env).__name__} has no gold player; add a method "
            "gold(task, seen) -> Action"
        )
    return gold_action(env, task, seen)


def _make_scripted_player(name: str, function: Callable[..., Any]) -> Player:
    async def act(
        env: Env, task: Task, tools: Sequence[ToolSchema], seen: tuple[Message, ...]
    ) -> Action:
        action = await call_either(function, seen, tools)
        if isinstance(action, str):
            return say(action)
        if not isinstance(action, Action):
            raise EnvError(
                f"{name} returned {action!r:.80}; return text, agentrl.say(text) or "
                "agentrl.call(tool, argument=...)"
            )
        return action

    return act


def _make_random_player(seed: int) -> Player:
    """Call a random tool with random arguments that fit its schema, or say a random word."""

    async def act(
        env: Env, task: Task, tools: Sequence[ToolSchema], seen: tuple[Message, ...]
    ) -> Action:
        random = Random(derive(seed, task.id, len(seen)))
        if not tools or random.random() < 0.2:
            return say(random.choice(WORDS))
        function = random.choice(tools)["function"]
        return call(function["name"], **random_arguments(function["parameters"], random))

    return act


def random_arguments(schema: Mapping[str, Any], random: Random) -> dict[str, Any]:
    """Return arguments for a tool's parameters; optional ones are there half of the time."""
    required = set(schema.get("required", ()))
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    return {
        name: random_value(part, random, depth=0)
        for name, part in properties.items()
        if name in required or random.random() < 0.5
    }


def random_value(schema: Mapping[str, Any], random: Random, *, depth: int) -> Any:
    """Return a value of a JSON schema's type; what it does not know is a word."""
    if "enum" in schema:
        return random.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return random_value(random.choice(choices), random, depth=depth)
    match schema.get("type"):
        case "integer":
            low, high = _bounds(schema)
            return random.randint(math.ceil(low), math.floor(high))
        case "number":
            return random.uniform(*_bounds(schema))
        case "boolean":
            return random.random() < 0.5
        case "null":
            return None
        case "array" if depth < MOST_DEPTH:
            items = schema.get("items", {})
            count = random.randint(0, MOST_ITEMS)
            return [random_value(items, random, depth=depth + 1) for _ in range(count)]
        case "object" if depth < MOST_DEPTH:
            parts: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
            return {n: random_value(s, random, depth=depth + 1) for n, s in parts.items()}
        case "array":
            return []
        case "object":
            return {}
        case _:
            return random.choice(WORDS)


def _bounds(schema: Mapping[str, Any]) -> tuple[float, float]:
    """Return the least and the greatest number of a schema: of -10 to 100 where it is silent."""
    low = schema.get("minimum", min(-10, schema.get("maximum", -10)))
    return low, schema.get("maximum", max(100, low))

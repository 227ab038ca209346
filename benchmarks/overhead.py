"""What the framework itself costs, with a policy and an environment that cost nothing.

- A step of a tool environment around an asynchronous tool that returns a constant, and around a
  synchronous one, which runs in a thread of its own so that it can be given up.
- A turn of an episode: engine call, step with its deadlines, and everything recorded on the tree;
  in short and in long conversations, because nothing may be done again for the turns before. Once
  more with a tool environment that calls a tool, and with a store on the disk.
- The trajectory tree: adding a node, and flattening paths into trajectories.
"""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import agentrl
from agentrl.authoring.tool_env import ToolEnv
from agentrl.chat.renderer import TokenSegment
from agentrl.env import Action, BaseEnv, Info, Observation, Step, ToolSchema
from agentrl.events.kinds import GroupRequest, GroupsTrained
from agentrl.events.log import EventLog
from agentrl.message import Image, Message
from agentrl.policy import Completion, GenerateRequest
from agentrl.rollout.episode import EpisodeLimits, EpisodeRunner
from agentrl.store.settings import StoreSettings
from agentrl.store.writer import StoreWriter
from agentrl.task import Split, Task
from agentrl.trajectory import Finished, Leaf, Node, Tree, Truncated
from benchmarks.harness import Benchmark, Contender, Run

TASK = Task(prompt="What is 6 * 7?", answer="42")
TURN_TOKENS = tuple(range(16))
RESULT_TOKENS = tuple(range(8))
PROMPT_TOKENS = tuple(range(64))
IMAGE = Image(b"")
SHORT_TURNS = 8
LONG_TURNS = (64, 256, 1_024)
EPISODE_STEPS = 50
"""Of a tool environment: so many that its reset hardly counts."""


@agentrl.tool
async def constant(key: int) -> str:
    """Return a constant.

    Args:
        key: Ignored.
    """
    return "42"


@agentrl.tool
def constant_in_thread(key: int) -> str:
    """Return a constant.

    Args:
        key: Ignored.
    """
    return "42"


def tool_steps(tool: Any, steps: int) -> Run:
    """Return a run of `steps` steps of a tool environment; each calls `tool` once."""
    env = ToolEnv(tasks=lambda split, seed: [TASK], reward=lambda task, seen: 1.0, tools=[tool])
    action = agentrl.call(tool.__name__, key=1)

    async def play() -> float:
        for _ in range(steps // EPISODE_STEPS):
            await env.reset(seed=0, options={"task": TASK})
            for _ in range(EPISODE_STEPS):
                await env.step(action)
        await env.close()
        return float(steps // EPISODE_STEPS * EPISODE_STEPS)

    _warm_up(env)
    return partial(_run, play)


def tool_resets(resets: int) -> Run:
    """Return a run of resets of a tool environment."""
    env = ToolEnv(tasks=lambda split, seed: [TASK], reward=lambda task, seen: 1.0, tools=[constant])

    async def play() -> float:
        for _ in range(resets):
            await env.reset(seed=0, options={"task": TASK})
        await env.close()
        return float(resets)

    _warm_up(env)
    return partial(_run, play)


class Nothing(BaseEnv):
    """An environment whose step is one constant, until the last turn."""

    def __init__(self, turns: int) -> None:
        self._left = turns

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        """Yield one task."""
        return [TASK]

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Return the prompt."""
        return Observation(TASK.messages, tools=()), {}

    async def step(self, action: Action) -> Step:
        """Count down."""
        self._left -= 1
        return Observation((Message("tool", "42"),)), 0.0, self._left == 0, False, {}


class Instant:
    """An engine that has the answer already."""

    version = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        """Return the same turn every time."""
        n = len(TURN_TOKENS)
        return Completion(
            token_ids=TURN_TOKENS, logprobs=(-1.0,) * n, versions=(0,) * n, finish="stop"
        )

    async def abort(self, request_id: str) -> None:
        """Do nothing: no request is ever in flight."""

    async def pause(self) -> None:
        """Do nothing."""

    async def resume(self) -> None:
        """Do nothing."""

    async def load(self, weights: Any, version: int) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class Rendered:
    """A chat format with everything rendered and parsed beforehand; every answer shows `image`."""

    def __init__(self, image: Image | None = None) -> None:
        shown = () if image is None else (image,)
        self._answer = TokenSegment("tool", RESULT_TOKENS, shown, ((1, 7),) * len(shown))

    stop_token_ids = frozenset({TURN_TOKENS[-1]})
    action = agentrl.call("constant", key=1)

    def opening(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> Sequence[TokenSegment]:
        """Return the prompt."""
        return (TokenSegment("prompt", PROMPT_TOKENS),)

    def reply(
        self,
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Sequence[ToolSchema] | None = None,
    ) -> Sequence[TokenSegment]:
        """Return a tool's answer."""
        return (self._answer, TokenSegment("template", RESULT_TOKENS[:2]))

    def parse(self, token_ids: Sequence[int]) -> Action:
        """Return a tool call."""
        return self.action


def episode(turns: int, *, image: Image | None = None) -> EpisodeRunner:
    """Return an episode of so many turns, each of which shows `image`."""
    return EpisodeRunner(
        env=Nothing(turns),
        engine=Instant(),
        chat=Rendered(image),
        tree=Tree(TASK),
        sample=0,
        seed=0,
        limits=EpisodeLimits(max_turns=turns, context_tokens=100_000),
    )


def episode_turns(turns: int, in_all: int, image: Image | None = None) -> Run:
    """Return a run of `in_all` turns in episodes of `turns` turns each, which show `image`."""

    async def play() -> float:
        for _ in range(in_all // turns):
            leaf = await episode(turns, image=image).run()
            if leaf.outcome != Finished(0.0):
                raise RuntimeError(f"an episode ended as {leaf.outcome}")
        return float(in_all // turns * turns)

    return partial(_run, play)


def stored_turns(turns: int, in_all: int) -> Run:
    """Return a run of `in_all` turns that each call a tool, in episodes that a store keeps."""

    async def play() -> float:
        with (
            tempfile.TemporaryDirectory() as folder,
            StoreWriter.open(Path(folder) / "store", StoreSettings()) as store,
        ):
            log = EventLog(store)
            for group in range(in_all // turns):
                await _play_stored(log, group, turns)
        return float(in_all // turns * turns)

    return partial(_run, play)


async def _play_stored(log: EventLog, group: int, turns: int) -> None:
    """Play a group of one episode that is truncated after its last turn, and have it trained."""
    tree = log.open_group(group, GroupRequest(task=TASK), size=1, step=0).tree
    events = log.start_rollout(group, sample=0, seed=0, version=0)
    env = ToolEnv(tasks=lambda split, seed: [TASK], reward=lambda task, seen: 1.0, tools=[constant])
    runner = replace(episode(turns), env=env, tree=tree, events=events)
    leaf = await runner.run()
    if leaf.outcome != Truncated("turns", 0.0):
        raise RuntimeError(f"an episode ended as {leaf.outcome}")
    events.finish(leaf)
    log.complete_group(group)
    log.emit(GroupsTrained(groups=(group,), step=1))


def grown(turns: int, branches: int) -> Tree:
    """Return a tree of `branches` trajectories of `turns` turns that share their prompt."""
    tree = Tree(TASK)
    for sample in range(branches):
        at = tree.share(Node(parent=None, source="prompt", token_ids=PROMPT_TOKENS, turn=0))
        for turn in range(turns):
            at = tree.add(
                Node(
                    parent=at,
                    source="sampled",
                    token_ids=TURN_TOKENS,
                    logprobs=(-1.0,) * len(TURN_TOKENS),
                    versions=(0,) * len(TURN_TOKENS),
                    turn=turn,
                )
            )
            at = tree.add(Node(parent=at, source="tool", token_ids=RESULT_TOKENS, turn=turn + 1))
        tree.end(Leaf(node=at, outcome=Finished(1.0), sample=sample))
    return tree


def appended_nodes(trees: int) -> Run:
    """Return a run that grows trees; its work is nodes added."""
    return lambda: float(sum(len(grown(SHORT_TURNS, branches=8).nodes) for _ in range(trees)))


def flattened_tokens(times: int) -> Run:
    """Return a run that flattens one tree again and again; its work is tokens."""
    tree = grown(SHORT_TURNS, branches=8)
    return lambda: float(
        sum(len(one.token_ids) for _ in range(times) for one in tree.trajectories())
    )


def _warm_up(env: ToolEnv) -> None:
    """Have the schemas of the tools made, which imports transformers in its time."""

    async def begin() -> float:
        await env.reset(seed=0, options={"task": TASK})
        return 0.0

    _run(begin)


def _run(play: Callable[[], Coroutine[Any, Any, float]]) -> float:
    return asyncio.run(play())


def main() -> None:
    """Measure, print and write."""
    bench = Benchmark.from_command_line("overhead", __doc__)
    size = 1 if bench.quick else 3
    turns = 1_024 * size
    kinds: dict[str, Callable[[int, int], Run]] = {
        "": episode_turns,
        ", an image a turn": partial(episode_turns, image=IMAGE),
        ", a tool and a store": stored_turns,
    }
    long_turns = {
        (count, kind): Contender(set_up=partial(play, count, turns))
        for count in (SHORT_TURNS, *LONG_TURNS)
        for kind, play in kinds.items()
    }
    runs = bench.compare(
        {
            "tool step": Contender(set_up=partial(tool_steps, constant, 1_000 * size)),
            "tool reset": Contender(set_up=partial(tool_resets, 200 * size)),
            "thread step": Contender(set_up=partial(tool_steps, constant_in_thread, 200 * size)),
            **{f"{count} turns{kind}": run for (count, kind), run in long_turns.items()},
            "nodes": Contender(set_up=partial(appended_nodes, 10 * size)),
            "tokens": Contender(set_up=partial(flattened_tokens, 10 * size)),
        }
    )
    bench.cost("step of a tool environment, asynchronous tool", runs["tool step"], goal=20)
    bench.cost("step of a tool environment, synchronous tool", runs["thread step"])
    bench.cost("reset of a tool environment", runs["tool reset"])
    for count, kind in long_turns:
        own = runs[f"{count} turns{kind}"]
        goal = None if kinds[kind] is stored_turns else 333
        bench.cost(f"turn of an episode of {count} turns{kind}", own, goal=goal)
        if count != SHORT_TURNS:
            bench.ratio(
                f"turns per CPU-s in {count} turns{kind}",
                own,
                runs[f"{SHORT_TURNS} turns{kind}"],
                peer=f"in {SHORT_TURNS} turns",
                goal=1 / 1.2,
            )
    bench.cost("adding a node to a tree", runs["nodes"], goal=20)
    bench.cost("flattening a token of a trajectory", runs["tokens"], goal=1)
    bench.finish()


if __name__ == "__main__":
    main()

"""Step 4 of the flow: the trajectory tree. Tokens are the truth, stored once, append-only."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Literal

from agentrl.errors import FailureKind
from agentrl.message import Image, ImageSpan
from agentrl.task import Task

Source = Literal["prompt", "sampled", "tool", "template", "forced"]
"""Who made a token: the task, the policy, the environment, the chat template, or the runner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The tokens one event added to a context; a path from the root is one trajectory in time.

    It is its context too, but for nodes that a later one on it has withdrawn. Log-probs and
    versions are there for sampled tokens and only for them.
    """

    parent: int | None
    source: Source
    token_ids: tuple[int, ...]
    turn: int
    """Turns are counted from 0; a prompt belongs to the turn it precedes."""
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    entropies: tuple[float, ...] = ()
    """In nats, where the engine reported them."""
    images: tuple[Image, ...] = ()
    image_spans: tuple[tuple[int, int], ...] = ()
    """First and one past the last of the tokens of each image, within the node; empty where the
    policy cannot see."""
    seconds: float = 0.0
    """How long the event took."""
    tool_status: str = ""
    """For `tool` nodes: `ok` or `error` per call, comma-separated."""
    withdraws: int = 0
    """How many nodes of the context before it are in no context from here on: a patch (`forced`)
    stands in the place of what the policy said, a `prompt` begins a context of its own. They stay
    on the path, and what was sampled of them trains in the context it was sampled in."""

    def __post_init__(self) -> None:
        if self.withdraws and self.source not in ("forced", "prompt"):
            raise ValueError(
                f"a {self.source} node withdraws nothing; only a forced one or a prompt can"
            )
        if self.image_spans:
            self._check_spans()
        given = (len(self.logprobs), len(self.versions))
        want = (len(self.token_ids),) * 2 if self.source == "sampled" else (0, 0)
        if given != want:
            raise ValueError(
                f"a {self.source} node of {len(self.token_ids)} tokens has {given[0]} log-probs, "
                f"{given[1]} versions, wanted {want[0]} of each; pass what the engine returned"
            )
        if self.entropies and len(self.entropies) != len(self.token_ids):
            raise ValueError(
                f"{len(self.entropies)} entropies for {len(self.token_ids)} tokens; give one each"
            )

    def _check_spans(self) -> None:
        ends = [0, *(place for span in self.image_spans for place in span), len(self.token_ids)]
        is_ordered = all(a <= b for a, b in pairwise(ends))
        is_filled = all(start < stop for start, stop in self.image_spans)
        one_each = len(self.image_spans) == len(self.images)
        if not (is_ordered and is_filled and one_each) or self.source == "sampled":
            raise ValueError(
                f"a {self.source} node of {len(self.token_ids)} tokens shows {len(self.images)} "
                f"images at {self.image_spans}; give each its own run of tokens, in order, in a "
                "node that nobody sampled"
            )


@dataclass(frozen=True, slots=True)
class Finished:
    """The task's own end: the reward is its verdict."""

    reward: float


Limit = Literal["turns", "tokens", "seconds", "tool_calls", "money"]
"""What a trajectory had no more of when it was stopped."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """We stopped it; the reward is what it had earned."""

    limit: Limit
    reward: float


@dataclass(frozen=True, slots=True)
class Failed:
    """Something broke. There is no reward, and nothing here may train."""

    kind: FailureKind
    error: str


Outcome = Finished | Truncated | Failed


def reward_of(outcome: Outcome) -> float | None:
    """Return the reward, or None for a failure: failures leave baselines and normalisers."""
    match outcome:
        case Finished(reward) | Truncated(_, reward):
            return reward
        case Failed():
            return None


def outcome_name(outcome: Outcome) -> str:
    """Return an outcome in one word: how it ended, and by what limit or failure."""
    match outcome:
        case Finished():
            return "finished"
        case Truncated(limit):
            return f"truncated_{limit}"
        case Failed(kind):
            return f"failed_{kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """The end of one trajectory."""

    node: int | None
    """Where it ended; None when it failed before its prompt was known."""
    outcome: Outcome
    sample: int
    """Index of the trajectory within its group."""
    turn_rewards: tuple[float, ...] = ()
    """What the environment paid after each turn; their sum is the outcome's reward."""
    components: dict[str, float] = field(default_factory=dict[str, float])
    seconds: float = 0.0
    tool_calls: int = 0
    root: int | None = None
    """Which of its group's first trajectories it grew from, by number; None where it grew from
    none. Two of one root may share no sampled token, when both left it at the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One root-to-leaf path, flattened, in the order things were said.

    All per-token tuples have one length. What was withdrawn is among the tokens.
    """

    task: Task
    sample: int
    outcome: Outcome
    token_ids: tuple[int, ...]
    sources: tuple[Source, ...]
    turns: tuple[int, ...]
    logprobs: tuple[float, ...]
    """0.0 where the policy did not sample."""
    versions: tuple[int, ...]
    """-1 where the policy did not sample."""
    nodes: tuple[int, ...]
    """The tree's node of each token; trajectories that share one share its tokens."""
    turn_rewards: tuple[float, ...] = ()
    components: Mapping[str, float] = field(default_factory=dict[str, float])
    """The leaf's."""
    seconds: float = 0.0
    tool_calls: int = 0
    withdrawn: tuple[tuple[int, int], ...] = ()
    """Runs of tokens, first and one past the last, that are in no context after them. A run may
    hold earlier ones, which were withdrawn before it."""
    images: tuple[ImageSpan, ...] = ()
    """What its tokens show, in order."""
    root: int | None = None
    """The leaf's."""

    @property
    def mask(self) -> tuple[bool, ...]:
        """True on the tokens the policy sampled, by construction."""
        return tuple(source == "sampled" for source in self.sources)


class Tree:
    """All trajectories of one task that are compared with each other.

    Append-only, and owned by the episodes of its group: forking copies nothing, a branch is a
    second child.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self._nodes: list[Node] = []
        self._leaves: list[Leaf] = []

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes; a node's id is its index."""
        return tuple(self._nodes)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """Return the ends of the trajectories, in the order they ended."""
        return tuple(self._leaves)

    def add(self, node: Node) -> int:
        """Append `node` and return its id."""
        if node.parent is not None and not 0 <= node.parent < len(self._nodes):
            raise ValueError(f"parent {node.parent} is not one of the tree's {len(self._nodes)}")
        if node.withdraws:
            self._check_withdraws(node)
        self._nodes.append(node)
        return len(self._nodes) - 1

    def share(self, node: Node) -> int:
        """Return the id of an equal prompt below the same parent, or append `node`.

        The trajectories of a group open with the same prompt: it is stored once.
        """
        if node.source == "prompt":
            for known, other in enumerate(self._nodes):
                if other.source == "prompt" and _same_tokens(other, node):
                    return known
        return self.add(node)

    def end(self, leaf: Leaf) -> None:
        """Record that a trajectory ended at `leaf.node`."""
        if leaf.node is not None and not 0 <= leaf.node < len(self._nodes):
            raise ValueError(f"node {leaf.node} is not one of the tree's {len(self._nodes)}")
        self._leaves.append(leaf)

    def node(self, id: int) -> Node:
        """Return one node."""
        return self._nodes[id]

    def path(self, node: int) -> tuple[Node, ...]:
        """Return the nodes from the root to `node`."""
        return tuple(self._nodes[i] for i in self.path_ids(node))

    def path_ids(self, node: int) -> tuple[int, ...]:
        """Return the ids of the nodes from the root to `node`."""
        return tuple(reversed([*self._ancestors(node)]))

    def tokens(self, node: int) -> tuple[int, ...]:
        """Return the whole context at `node`, as token ids; what was withdrawn is not in it."""
        return tuple(token for part in self.context(node) for token in part.token_ids)

    def images(self, node: int) -> tuple[ImageSpan, ...]:
        """Return what the context at `node` shows, and where in `tokens`."""
        return _shown(self.context(node))

    def context(self, node: int) -> tuple[Node, ...]:
        """Return the nodes of the context at `node`; what was withdrawn is not among them."""
        context: list[Node] = []
        for part in self.path(node):
            if part.withdraws:
                del context[-part.withdraws :]
            context.append(part)
        return tuple(context)

    def trajectory(self, leaf: Leaf) -> Trajectory:
        """Return the path to `leaf` as one flat record."""
        ids = () if leaf.node is None else self.path_ids(leaf.node)
        path = tuple(self._nodes[i] for i in ids)
        sampled = [part.source == "sampled" for part in path]
        return Trajectory(
            task=self.task,
            sample=leaf.sample,
            outcome=leaf.outcome,
            token_ids=tuple(t for part in path for t in part.token_ids),
            sources=tuple(part.source for part in path for _ in part.token_ids),
            turns=tuple(part.turn for part in path for _ in part.token_ids),
            logprobs=tuple(
                x
                for part, own in zip(path, sampled, strict=True)
                for x in (part.logprobs if own else (0.0,) * len(part.token_ids))
            ),
            versions=tuple(
                x
                for part, own in zip(path, sampled, strict=True)
                for x in (part.versions if own else (-1,) * len(part.token_ids))
            ),
            nodes=tuple(i for i, part in zip(ids, path, strict=True) for _ in part.token_ids),
            turn_rewards=leaf.turn_rewards,
            components=leaf.components,
            seconds=leaf.seconds,
            tool_calls=leaf.tool_calls,
            withdrawn=_withdrawn(path),
            images=_shown(path),
            root=leaf.root,
        )

    def trajectories(self) -> tuple[Trajectory, ...]:
        """Return every ended trajectory, failures too, in sample order."""
        leaves = sorted(self._leaves, key=lambda leaf: leaf.sample)
        return tuple(self.trajectory(leaf) for leaf in leaves)

    def _check_withdraws(self, node: Node) -> None:
        """Raise `ValueError` unless it is one turn that the policy sampled, or a whole context."""
        if node.source == "prompt":
            stands = 0 if node.parent is None else len(self.context(node.parent))
            if node.withdraws != stands:
                raise ValueError(
                    f"a prompt withdraws {node.withdraws} nodes of {stands}; one that begins a "
                    "context withdraws all of the one before"
                )
            return
        path = () if node.parent is None else self.path(node.parent)
        last = path[-node.withdraws :]
        if len(last) < node.withdraws or any(
            (part.source, part.turn) != ("sampled", node.turn) for part in last
        ):
            raise ValueError(
                f"a node of turn {node.turn} withdraws {node.withdraws} nodes, and only what was "
                "sampled in its own turn, right before it, can be withdrawn"
            )

    def _ancestors(self, node: int) -> Iterator[int]:
        at: int | None = node
        while at is not None:
            yield at
            at = self._nodes[at].parent


def _withdrawn(path: Sequence[Node]) -> tuple[tuple[int, int], ...]:
    """Return the runs of tokens that later nodes of a path withdrew."""
    ends = [0, *accumulate(len(part.token_ids) for part in path)]
    runs: list[tuple[int, int]] = []
    context: list[int] = []
    for i, part in enumerate(path):
        if part.withdraws:
            runs.append((ends[context[-part.withdraws]], ends[i]))
            del context[-part.withdraws :]
        context.append(i)
    return tuple(runs)


def _shown(path: Sequence[Node]) -> tuple[ImageSpan, ...]:
    """Return the images of nodes, and where in the tokens of all of them."""
    starts = accumulate((len(part.token_ids) for part in path), initial=0)
    return tuple(
        ImageSpan(image, begin + start, begin + stop)
        for part, begin in zip(path, starts, strict=False)
        for image, (start, stop) in zip(part.images, part.image_spans, strict=False)
    )


def _same_tokens(one: Node, other: Node) -> bool:
    own = (one.parent, one.token_ids, one.images, one.withdraws)
    return own == (other.parent, other.token_ids, other.images, other.withdraws)

"""Step 4 of the flow: the trajectory tree. Tokens are the truth, stored once, append-only."""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, groupby, islice, pairwise
from typing import Final, Literal, TypeVar

from agentrl.errors import FailureKind
from agentrl.message import Image, ImageSpan
from agentrl.task import Task

_T = TypeVar("_T")

Source = Literal["prompt", "sampled", "tool", "template", "forced"]
"""Origin of a token: the task, the policy, the environment, the chat template, or the runner.

Only a `sampled` token trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The tokens one event added to a context; a path from the root is one trajectory in time.

    It is its context too, but for nodes that a later one on it has withdrawn. Log-probs and
    versions are there for sampled tokens and only for them.

    Raises:
        ValueError: Lengths do not agree, or the node withdraws, resumes or shows what its source
            may not.
    """

    parent: int | None
    """Id of the node before it; None for a root."""
    source: Source
    """Origin of its tokens."""
    token_ids: tuple[int, ...]
    """Its tokens; none of the context before it."""
    turn: int
    """Number of its turn, counted from 0; a prompt belongs to the turn it precedes."""
    logprobs: tuple[float, ...] = ()
    """Log-prob of each token, in nats, as the engine returned them; empty unless `sampled`."""
    versions: tuple[int, ...] = ()
    """Version of the weights that sampled each token; empty unless `sampled`."""
    entropies: tuple[float, ...] = ()
    """Entropy at each token, in nats, where the engine reported them."""
    images: tuple[Image, ...] = ()
    """Images that it shows, in order."""
    image_spans: tuple[tuple[int, int], ...] = ()
    """First and one past the last of the tokens of each image, within the node; empty where the
    policy cannot see."""
    seconds: float = 0.0
    """Wall time of the event."""
    tool_status: str = ""
    """For `tool` nodes: `ok` or `error` per call, comma-separated."""
    withdraws: int = 0
    """Number of nodes of the context before it that are not in its own. A patch (`forced`) takes
    the place of what the policy said, a `prompt` begins a context of its own. These nodes stay on
    the path, and what was sampled of them trains in the context it was sampled in."""
    resumes: int = 0
    """Number of nodes, from the root, up to the one whose context it goes on in. A conversation is
    taken up again where another one was in between. 0 is the parent's context."""

    def __post_init__(self) -> None:
        if self.resumes < 0 or (self.resumes and self.withdraws):
            raise ValueError(
                f"a node resumes {self.resumes} and withdraws {self.withdraws}; give only one of "
                "them, as a count of nodes from 1 on"
            )
        if self.withdraws and self.source not in ("forced", "prompt"):
            raise ValueError(
                f"a {self.source} node cannot withdraw nodes; only a forced node or a prompt can"
            )
        if self.image_spans:
            self._check_spans()
        counts = (len(self.logprobs), len(self.versions))
        want = (len(self.token_ids),) * 2 if self.source == "sampled" else (0, 0)
        if counts != want:
            raise ValueError(
                f"a {self.source} node of {len(self.token_ids)} tokens has {counts[0]} log-probs, "
                f"{counts[1]} versions, expected {want[0]} of each; pass what the engine returned"
            )
        if self.entropies and len(self.entropies) != len(self.token_ids):
            raise ValueError(
                f"{len(self.entropies)} entropies for {len(self.token_ids)} tokens; give one for "
                "each token"
            )

    def _check_spans(self) -> None:
        ends = [0, *(place for span in self.image_spans for place in span), len(self.token_ids)]
        is_ordered = all(a <= b for a, b in pairwise(ends))
        is_filled = all(start < stop for start, stop in self.image_spans)
        one_each = len(self.image_spans) == len(self.images)
        if not (is_ordered and is_filled and one_each) or self.source == "sampled":
            raise ValueError(
                f"a {self.source} node of {len(self.token_ids)} tokens has {len(self.images)} "
                f"images at {self.image_spans}; give each image its own run of tokens, in order, "
                "in a node that was not sampled"
            )


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """The numbers of a node's tokens, which arrays are put together of.

    Bytes are in this machine's order. `logprobs` is empty unless `sampled`.
    """

    token_ids: bytes
    """Token ids as int32."""
    logprobs: bytes
    """Log-probs as float32, which is what they were computed in."""
    versions: tuple[tuple[int, int], ...]
    """Each version that sampled tokens of it, and how many, in order; -1 where none did."""

    @classmethod
    def from_node(cls, node: Node) -> "PackedTokens":
        """Return the tokens of a node.

        Args:
            node: Node of any source.

        Returns:
            Its numbers; a log-prob beyond all float32 is infinite.

        Raises:
            ValueError: A token id or a version is no int32.
        """
        count = len(node.token_ids)
        versions = tuple((version, len([*same])) for version, same in groupby(node.versions))
        try:
            struct.pack(f"{len(versions)}i", *(version for version, _ in versions))
            return cls(
                struct.pack(f"{count}i", *node.token_ids),
                struct.pack(f"{len(node.logprobs)}f", *node.logprobs),
                versions or (((-1, count),) if count else ()),
            )
        except struct.error as error:
            raise ValueError(
                f"a {node.source} node has a token id or a version that is no integer of 32 bits "
                f"({error}); pass what the engine returned"
            ) from error


@dataclass(frozen=True, slots=True)
class Finished:
    """The task's own end: the reward is its verdict."""

    reward: float
    """Sum of the rewards of all turns."""


Limit = Literal["turns", "tokens", "seconds", "tool_calls", "money", "observation"]
"""Limit that a trajectory had reached when it was stopped."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """A stop by the runner or the environment; the reward is what it had earned."""

    limit: Limit
    """Limit that was reached."""
    reward: float
    """Sum of the rewards of the turns so far."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Something broke. There is no reward, and nothing here may train."""

    kind: FailureKind
    """Kind of the failure."""
    error: str
    """Text of the error."""


Outcome = Finished | Truncated | Failed
"""End of a trajectory."""

_VACANT: Final = Node(parent=None, source="prompt", token_ids=(), turn=0)
"""Node in the place of one that was sampled and never told of, in a tree that is read back."""


def reward_of(outcome: Outcome) -> float | None:
    """Return the reward, or None for a failure: failures leave baselines and normalisers.

    Args:
        outcome: End of a trajectory.
    """
    match outcome:
        case Finished(reward) | Truncated(_, reward):
            return reward
        case Failed():
            return None


def outcome_name(outcome: Outcome) -> str:
    """Return an outcome in one word: `finished`, `truncated_<limit>` or `failed_<kind>`.

    Args:
        outcome: End of a trajectory.
    """
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
    """Node at which it ended; None when it failed before its prompt was known."""
    outcome: Outcome
    """Way in which it ended, with its reward."""
    sample: int
    """Index of the trajectory within its group."""
    turn_rewards: tuple[float, ...] = ()
    """Rewards that the environment paid after each turn; their sum is the outcome's reward."""
    components: dict[str, float] = field(default_factory=dict[str, float])
    """Parts of the reward by name, as the environment told them."""
    answer: str | None = None
    """Final answer, as the environment reported it when the episode ended."""
    seconds: float = 0.0
    """Wall time of the episode."""
    tool_calls: int = 0
    """Number of tool calls."""
    root: int | None = None
    """Number of the first trajectory of its group that it grew from; None where it grew from none.
    Two of one root may share no sampled token, when both left it at the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One root-to-leaf path, flattened, in the order things were said.

    The per-token tuples `token_ids`, `sources`, `turns`, `logprobs`, `versions`, `nodes` and `mask`
    have one length. `jumps` says which tokens are in the context of which.
    """

    task: Task
    """Task that was played."""
    sample: int
    """Index within its group."""
    outcome: Outcome
    """Way in which it ended, with its reward."""
    token_ids: tuple[int, ...]
    """Every token, in the order in which things were said."""
    sources: tuple[Source, ...]
    """Origin of each token."""
    turns: tuple[int, ...]
    """Turn of each token, counted from 0."""
    logprobs: tuple[float, ...]
    """Log-prob of each token, in nats; 0.0 where the policy did not sample."""
    versions: tuple[int, ...]
    """Version of the weights that sampled each token; -1 where the policy did not sample."""
    nodes: tuple[int, ...]
    """The tree's node of each token; trajectories that share one share its tokens."""
    turn_rewards: tuple[float, ...] = ()
    """Rewards that the environment paid after each turn."""
    components: Mapping[str, float] = field(default_factory=dict[str, float])
    """Parts of the reward by name, as of the leaf."""
    seconds: float = 0.0
    """Wall time of the episode."""
    tool_calls: int = 0
    """Number of tool calls."""
    jumps: tuple[tuple[int, int], ...] = ()
    """Places of tokens that do not follow the token before them, in order, each with the place of
    the token that it follows in its context; -1 where it begins one."""
    images: tuple[ImageSpan, ...] = ()
    """Images among its tokens, in order."""
    root: int | None = None
    """Number of the trajectory that it grew from, as of the leaf."""

    @property
    def mask(self) -> tuple[bool, ...]:
        """Whether the policy sampled each token, by construction."""
        is_sampled = {source: source == "sampled" for source in set(self.sources)}
        return tuple(map(is_sampled.__getitem__, self.sources))


@dataclass(frozen=True, slots=True)
class _ContextEnd:
    """The context at a node, in constant memory: the rest of it is found through `before`."""

    before: int | None
    """The node before it in the context."""
    nodes: int
    start: int
    """Place of the node's first token in the context."""
    spans: list[ImageSpan]
    """The first `images` of these are what the context shows; nodes that extend it add theirs."""
    images: int


class Tree:
    """All trajectories of one task that are compared with each other.

    Append-only, and owned by the episodes of its group: forking copies nothing but references to
    images, a branch is a second child. A node costs the same however long its context is.

    Args:
        task: Task that all of them play.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        """Task that all trajectories play."""
        self._nodes: list[Node] = []
        self._packed: dict[int, PackedTokens] = {}
        self._ends: list[_ContextEnd] = []
        self._prompts: dict[tuple[object, ...], int] = {}
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
        """Append a node and return its id.

        Args:
            node: Node whose parent is in the tree already.

        Returns:
            The id: its index in `nodes`.

        Raises:
            ValueError: The parent is not in the tree, the node withdraws or resumes what is not
                there, or a token id or a version is no int32.
        """
        self._check(node)
        # Now, while others compute, and not for all tokens of a batch when it is to train.
        packed = PackedTokens.from_node(node)
        self._ends.append(self._context_end(node))
        self._nodes.append(node)
        node_id = len(self._nodes) - 1
        self._packed[node_id] = packed
        if node.source == "prompt":
            self._prompts.setdefault(_prompt_key(node), node_id)
        return node_id

    def restore(self, id: int, node: Node) -> None:
        """Put a node of a tree that is read back where it was; nothing happens if it is there.

        Args:
            id: Id that it had. Ids before it that nothing was read of stay vacant: a node without
                tokens, on no path.
            node: Node whose parent is in the tree already.

        Raises:
            ValueError: As `add` does, or the parent's place is vacant.
        """
        while len(self._nodes) <= id:
            self._ends.append(_ContextEnd(None, 1, 0, [], 0))
            self._nodes.append(_VACANT)
        if self._nodes[id] is not _VACANT:
            return
        self._check(node)
        if node.parent is not None and self._nodes[node.parent] is _VACANT:
            raise ValueError(f"parent {node.parent} of node {id} is vacant; restore it first")
        self._ends[id] = self._context_end(node)
        self._nodes[id] = node
        if node.source == "prompt":
            self._prompts.setdefault(_prompt_key(node), id)

    def share(self, node: Node) -> int:
        """Return the id of an equal prompt below the same parent, or append the node.

        The trajectories of a group open with the same prompt: it is stored once.

        Args:
            node: Node as for `add`; one that is no `prompt` is always appended.

        Raises:
            ValueError: As `add` does.
        """
        if (
            node.source == "prompt"
            and (node_id := self._prompts.get(_prompt_key(node))) is not None
        ):
            return node_id
        return self.add(node)

    def end(self, leaf: Leaf) -> None:
        """Record that a trajectory ended at `leaf.node`.

        Args:
            leaf: The end.

        Raises:
            ValueError: That node is not in the tree.
        """
        if leaf.node is not None and not 0 <= leaf.node < len(self._nodes):
            raise ValueError(f"node {leaf.node} is not one of the tree's {len(self._nodes)}")
        self._leaves.append(leaf)

    def node(self, id: int) -> Node:
        """Return one node.

        Args:
            id: Id that `add` or `share` returned.
        """
        return self._nodes[id]

    def packed(self, id: int) -> PackedTokens:
        """Return the tokens of one node as bytes.

        Args:
            id: Id that `add` or `share` returned.

        Raises:
            ValueError: It was read back, and a token id or a version of it is no int32.
        """
        packed = self._packed.get(id)
        if packed is None:
            packed = self._packed[id] = PackedTokens.from_node(self._nodes[id])
        return packed

    def path(self, node: int) -> tuple[Node, ...]:
        """Return the nodes from the root to `node`.

        Args:
            node: Id of the last one.
        """
        return tuple(self._nodes[i] for i in self.path_ids(node))

    def path_ids(self, node: int) -> tuple[int, ...]:
        """Return the ids of the nodes from the root to `node`.

        Args:
            node: Id of the last one.
        """
        return tuple(reversed([*self._ancestors(node)]))

    def tokens(self, node: int) -> tuple[int, ...]:
        """Return the whole context at `node`, as token ids.

        Args:
            node: Id of the node that the context ends with.
        """
        return tuple(token for part in self.context(node) for token in part.token_ids)

    def images(self, node: int) -> tuple[ImageSpan, ...]:
        """Return the images of the context at `node`, with their places in `tokens`.

        Args:
            node: Id of the node that the context ends with.
        """
        end = self._ends[node]
        return tuple(end.spans[: end.images])

    def image_count(self, node: int) -> int:
        """Return the number of images that the context at `node` shows.

        Args:
            node: Id of the node that the context ends with.
        """
        return self._ends[node].images

    def path_images(self, node: int) -> tuple[ImageSpan, ...]:
        """Return the images of the path to `node`, with their places in a `Trajectory`.

        Args:
            node: Id of the node that the path ends with.
        """
        return _collect_image_spans(self.path(node))

    def jumps(self, node: int) -> tuple[tuple[int, int], ...]:
        """Return the jumps of the path to `node`, as in `Trajectory`.

        Args:
            node: Id of the node that the path ends with.
        """
        return self._jumps(self.path_ids(node))

    def context(self, node: int) -> tuple[Node, ...]:
        """Return the nodes of the context at `node`: those of its path that it goes on from.

        Args:
            node: Id of the node that the context ends with.
        """
        context: list[Node] = []
        at: int | None = node
        while at is not None:
            context.append(self._nodes[at])
            at = self._ends[at].before
        return tuple(reversed(context))

    def context_nodes(self, node: int) -> int:
        """Return the number of nodes of the context at `node`.

        Args:
            node: Id of the node that the context ends with.
        """
        return self._ends[node].nodes

    def turn_end(self, node: int, turn: int) -> int:
        """Return the number of nodes from the root to the end of a turn, on the path to `node`.

        Args:
            node: Id of the node that the path ends with.
            turn: Number of the turn, counted from 0.

        Raises:
            ValueError: The turn has nothing on that path.
        """
        path = self.path_ids(node)
        for place in range(len(path), 0, -1):
            if self._nodes[path[place - 1]].turn == turn:
                return place
        raise ValueError(f"turn {turn} is not on the path of {len(path)} nodes to node {node}")

    def trajectory(self, leaf: Leaf) -> Trajectory:
        """Return the path to `leaf` as one flat record.

        Args:
            leaf: End of a trajectory of this tree.
        """
        ids = () if leaf.node is None else self.path_ids(leaf.node)
        path = tuple(self._nodes[i] for i in ids)
        # A context has tens of thousands of tokens: those of a node are repeated, not looped over.
        counts = [len(part.token_ids) for part in path]
        sampled = [part.source == "sampled" for part in path]
        return Trajectory(
            task=self.task,
            sample=leaf.sample,
            outcome=leaf.outcome,
            token_ids=_join(part.token_ids for part in path),
            sources=_join(_repeat_source(part) for part in path),
            turns=_join((part.turn,) * n for part, n in zip(path, counts, strict=True)),
            logprobs=_join(
                part.logprobs if is_sampled else (0.0,) * n
                for part, n, is_sampled in zip(path, counts, sampled, strict=True)
            ),
            versions=_join(
                part.versions if is_sampled else (-1,) * n
                for part, n, is_sampled in zip(path, counts, sampled, strict=True)
            ),
            nodes=_join((i,) * n for i, n in zip(ids, counts, strict=True)),
            turn_rewards=leaf.turn_rewards,
            components=leaf.components,
            seconds=leaf.seconds,
            tool_calls=leaf.tool_calls,
            jumps=self._jumps(ids),
            images=_collect_image_spans(path),
            root=leaf.root,
        )

    def trajectories(self) -> tuple[Trajectory, ...]:
        """Return every ended trajectory, failures too, in sample order."""
        leaves = sorted(self._leaves, key=lambda leaf: leaf.sample)
        return tuple(self.trajectory(leaf) for leaf in leaves)

    def _check(self, node: Node) -> None:
        if node.parent is not None and not 0 <= node.parent < len(self._nodes):
            raise ValueError(f"parent {node.parent} is not one of the tree's {len(self._nodes)}")
        if node.withdraws:
            self._check_withdraws(node)

    def _check_withdraws(self, node: Node) -> None:
        """Raise `ValueError` unless it is one turn that the policy sampled, or a whole context."""
        if node.source == "prompt":
            stands = 0 if node.parent is None else self.context_nodes(node.parent)
            if node.withdraws != stands:
                raise ValueError(
                    f"a prompt withdraws {node.withdraws} nodes of {stands}; a prompt that starts "
                    "a context must withdraw all of the previous one"
                )
            return
        ancestors = () if node.parent is None else self._ancestors(node.parent)
        last = [self._nodes[id] for id in islice(ancestors, node.withdraws)]
        if len(last) < node.withdraws or any(
            (part.source, part.turn) != ("sampled", node.turn) for part in last
        ):
            raise ValueError(
                f"a node of turn {node.turn} withdraws {node.withdraws} nodes, but only nodes "
                "sampled in its own turn, directly before it, can be withdrawn"
            )

    def _context_end(self, node: Node) -> _ContextEnd:
        """Return the context that begins or goes on with a node that is not added yet."""
        before = node.parent
        if node.resumes:
            path = () if before is None else self.path_ids(before)
            if node.resumes > len(path):
                raise ValueError(
                    f"a node resumes {node.resumes} of the {len(path)} nodes before it"
                )
            before = path[node.resumes - 1]
        for _ in range(node.withdraws):
            assert before is not None, "_check_withdraws sees to it"
            before = self._ends[before].before
        nodes, start, spans, images = 1, 0, list[ImageSpan](), 0
        if before is not None:
            end = self._ends[before]
            nodes, spans, images = end.nodes + 1, end.spans, end.images
            start = end.start + len(self._nodes[before].token_ids)
        if node.image_spans:
            if images < len(spans):
                spans = spans[:images]  # another branch has shown more
            spans += _spans(node, start)
            images = len(spans)
        return _ContextEnd(before, nodes, start, spans, images)

    def _jumps(self, ids: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return the places of tokens of a path that do not follow the one before them."""
        last: dict[int | None, int] = {None: -1}
        """By node, the place of the last token of its context."""
        jumps: list[tuple[int, int]] = []
        count = 0
        for id in ids:
            before, size = last[self._ends[id].before], len(self._nodes[id].token_ids)
            if size and before != count - 1:
                jumps.append((count, before))
            count += size
            last[id] = count - 1 if size else before
        return tuple(jumps)

    def _ancestors(self, node: int) -> Iterator[int]:
        at: int | None = node
        while at is not None:
            yield at
            at = self._nodes[at].parent


def context_runs(jumps: Sequence[tuple[int, int]], last: int) -> tuple[tuple[int, int], ...]:
    """Return the runs of places, first and one past the last, of the context ending at `last`.

    Args:
        jumps: Pairs as in `Trajectory.jumps`.
        last: Place of the last token of the context; the context of place -1 is empty.
    """
    starts = [start for start, _ in jumps]
    runs: list[tuple[int, int]] = []
    while last >= 0:
        jump = bisect_right(starts, last) - 1
        start, before = jumps[jump] if jump >= 0 else (0, -1)
        runs.append((start, last + 1))
        last = before
    return tuple(reversed(runs))


def _repeat_source(node: Node) -> tuple[Source, ...]:
    source: tuple[Source, ...] = (node.source,)
    return source * len(node.token_ids)


def _join(parts: Iterable[tuple[_T, ...]]) -> tuple[_T, ...]:
    return tuple(chain.from_iterable(parts))


def _collect_image_spans(path: Sequence[Node]) -> tuple[ImageSpan, ...]:
    """Return the images of nodes, and where in the tokens of all of them."""
    starts = accumulate((len(part.token_ids) for part in path), initial=0)
    return tuple(
        span
        for part, start in zip(path, starts, strict=False)
        if part.image_spans
        for span in _spans(part, start)
    )


def _spans(node: Node, start: int) -> list[ImageSpan]:
    return [
        ImageSpan(image, start + first, start + stop)
        for image, (first, stop) in zip(node.images, node.image_spans, strict=False)
    ]


def _prompt_key(node: Node) -> tuple[object, ...]:
    return node.parent, tuple(node.token_ids), tuple(node.images), node.withdraws, node.resumes

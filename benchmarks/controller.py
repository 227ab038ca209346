"""What a step costs the controller, and every rank, before the first forward pass of a trainer.

Groups of 8 trajectories of 32,768 tokens, of 40 turns sampled and answered, become a batch
(`TrainingBatch.from_trees`). The other ranks, processes of this machine, are given it. Then a rank
decides: shaping, credit (GRPO), selection, the digest that ranks compare, metrics, and which of 8
ranks computes what (layout `tree`). No model computes anything.

The peer is the plain way: trajectories flattened to tuples that become arrays of 64 bits, and
pickled whole into each rank's socket. It is spared the fields besides arrays, and the decisions are
the same. What `Tree.add` does for a batch, while trajectories are played, stands in a row of its
own. `--trajectories 1024` needs 12 GB of memory.
"""

import gc
import multiprocessing
import pickle
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from agentrl.config.learn import LearnSection
from agentrl.config.run import MakePolicySection
from agentrl.learn.batch import TrainingBatch
from agentrl.learn.ranks import TrainerRanks
from agentrl.learn.sequence_layout import SequenceLayout, TokenSequence
from agentrl.learn.sharded.balance import split
from agentrl.learn.sharded.packed_object import SharedObject, pack, receive_object
from agentrl.learn.sharded.rank_link import RankCommand
from agentrl.learn.trainer import PolicyTrainer
from agentrl.models.folders import make_model
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, PackedTokens, Tree
from benchmarks.harness import Benchmark, Contender, Run, parser, positive

GROUP = 8
TURNS = 40
RANKS = 8
VOCABULARY = 150_000
GOAL_S = 1.0
GOAL_TOKENS = 1024 * 32_768
"""Tokens of the batch that the goal is meant for."""


def trees_of(trajectories: int, tokens: int) -> list[Tree]:
    """Return groups of trajectories with random tokens, five parts sampled for three answered."""
    random = np.random.default_rng(0)
    sampled, answered = (share * tokens // (8 * TURNS + 8) for share in (5, 3))

    def draw(count: int) -> tuple[int, ...]:
        return tuple(random.integers(0, VOCABULARY, count).tolist())

    trees: list[Tree] = []
    for group in range(trajectories // GROUP):
        tree = Tree(Task(prompt="q", id=f"t{group}"))
        prompt = draw(tokens - TURNS * (sampled + answered))
        root = tree.add(Node(parent=None, source="prompt", token_ids=prompt, turn=0))
        for sample in range(GROUP):
            at = root
            for turn in range(TURNS):
                at = tree.add(
                    Node(
                        parent=at,
                        source="sampled",
                        token_ids=draw(sampled),
                        turn=turn,
                        logprobs=tuple((-random.random(sampled, dtype=np.float32)).tolist()),
                        versions=(turn // 32,) * sampled,
                    )
                )
                answer = draw(answered)
                at = tree.add(Node(parent=at, source="tool", token_ids=answer, turn=turn))
            tree.end(Leaf(node=at, outcome=Finished(float(sample % 3)), sample=sample))
        trees.append(tree)
    return trees


def flattened(trees: Sequence[Tree]) -> list[list[ndarray]]:
    """Return the arrays of a batch in 64 bits, from trajectories as tuples."""
    return [
        [
            np.fromiter(values, dtype, count=len(values))
            for values, dtype in (
                (one.token_ids, np.int64),
                (one.mask, bool),
                (one.logprobs, np.float64),
                (one.versions, np.int64),
                (one.turns, np.int64),
                (one.nodes, np.int64),
            )
        ]
        for tree in trees
        for one in tree.trajectories()
    ]


class FirstPass(Exception):
    """The decisions are made."""


class DecidingRank(TrainerRanks):
    """The first of several ranks, alone."""

    def plan(self, layout: SequenceLayout, sequences: Sequence[TokenSequence]) -> list[list[int]]:
        """Return its part of the plan for all."""
        return [list(part) for part in split(layout, sequences, ranks=RANKS).passes[0]]

    def check_same(self, digest: Callable[[], str], what: str) -> None:
        """Compute the digest."""
        digest()


class DecidingTrainer(PolicyTrainer):
    """A trainer that stops before its first pass."""

    def _pass(self, *args: Any, **kwargs: Any) -> Any:
        raise FirstPass


def trainer_of(tokens: int) -> PolicyTrainer:
    """Return a trainer of a small model, whose passes take so many tokens."""
    section = MakePolicySection(
        hidden_size=16, layers=1, heads=1, kv_heads=1, head_dim=16, intermediate_size=16
    )
    model = make_model(
        section, vocab_size=16, eos_token_id=1, pad_token_id=0, context_tokens=64, seed=0
    )
    config = LearnSection.model_validate({"micro_batch_tokens": tokens})
    trainer = DecidingTrainer(model, config, seed=0)
    trainer.ranks, trainer.version = DecidingRank(), 1
    return trainer


def decide(trainer: PolicyTrainer, batch: TrainingBatch) -> float:
    """Do what a rank does before its first pass."""
    try:
        trainer.learn(batch)
    except FirstPass:
        return 1.0
    raise RuntimeError("the trainer made no pass; give it trees whose rewards differ")


def follow(connection: Connection) -> None:
    """Be a rank that is given batches, in either way, and says when it has one."""
    while (way := connection.recv()) is not None:
        given = receive_object(connection) if way == "shared" else connection.recv()
        connection.send(True)
        del given


class OtherRanks:
    """Processes that are given batches."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(count)]
        self._connections = [ours for ours, _ in pairs]
        self._processes = [context.Process(target=follow, args=(theirs,)) for _, theirs in pairs]
        for process in self._processes:
            process.start()

    def share(self, value: Any) -> float:
        """Give it to all of them in memory, and wait until they have it."""
        shared = SharedObject(value)
        for connection, process in zip(self._connections, self._processes, strict=True):
            connection.send("shared")
            shared.send(connection, process.pid or 0)
        return self._wait()

    def pickle(self, value: Any) -> float:
        """Give it to all of them pickled whole, and wait until they have it."""
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        for connection in self._connections:
            connection.send("pickled")
            connection.send_bytes(data)
        return self._wait()

    def _wait(self) -> float:
        for connection in self._connections:
            connection.recv()
        return 1.0

    def close(self) -> None:
        """End them."""
        for connection in self._connections:
            connection.send(None)
        for process in self._processes:
            process.join()


def once(work: Callable[[], object]) -> Run:
    """Return a run of something that is one batch's work."""

    def run() -> float:
        work()
        return 1.0

    return run


def main() -> None:
    """Measure and print."""
    made = parser(__doc__)
    made.add_argument("--trajectories", type=positive, help="of a batch (default 256)")
    made.add_argument("--ranks", type=positive, default=1, help="that follow (default 1)")
    given = made.parse_args()
    bench = Benchmark.from_arguments("controller", given)
    trajectories: int = given.trajectories or (16 if bench.quick else 256)
    tokens = 4096 if bench.quick else 32_768
    torch.set_num_threads(1)
    trees = trees_of(trajectories, tokens)
    began_s = time.thread_time()
    for tree in trees:
        for node in tree.nodes:
            PackedTokens.from_node(node)
    added_s = time.thread_time() - began_s
    gc.freeze()
    trainer, batch, plain = trainer_of(tokens), TrainingBatch.from_trees(trees), flattened(trees)
    command, pickled = RankCommand("learn", (batch, False)), RankCommand("learn", (plain, False))
    others = OtherRanks(given.ranks)
    try:
        others.share(command)
        runs = bench.compare(
            {
                "made": Contender(set_up=lambda: once(lambda: TrainingBatch.from_trees(trees))),
                "made, plain": Contender(set_up=lambda: once(lambda: flattened(trees))),
                "given": Contender(set_up=lambda: partial(others.share, command)),
                "given, plain": Contender(set_up=lambda: partial(others.pickle, pickled)),
                "decided": Contender(set_up=lambda: partial(decide, trainer, batch)),
            }
        )
    finally:
        others.close()
    size = f"{trajectories} x {tokens}"
    head, _ = pack(command)
    bench.row("a batch's tokens in `Tree.add`, before", added_s, unit="s")
    for name, title in (("made", "made of trees"), ("given", f"given to {given.ranks} ranks")):
        bench.cost(f"{size} {title}", runs[name], unit="s")
        bench.cost(f"{size} {title}, by the clock", runs[name], unit="s", by="wall")
        bench.cost(f"{size} {title}, plain", runs[f"{name}, plain"], unit="s")
        bench.ratio(f"{title}, ours to plain", runs[name], runs[f"{name}, plain"], peer="plain way")
    bench.cost(f"{size} decided by a rank", runs["decided"], unit="s")
    bench.cost(f"{size} decided by a rank, by the clock", runs["decided"], unit="s", by="wall")
    steps = [*zip(runs["made"], runs["given"], runs["decided"], strict=True)]
    cpu_s = statistics.median(sum(run.cpu_s for run in step) for step in steps)
    wall_s = statistics.median(sum(run.wall_s for run in step) for step in steps)
    # A small batch is mostly what any batch costs.
    goal_s = None if bench.quick else GOAL_S * trajectories * tokens / GOAL_TOKENS
    title = "a step before its first pass"
    bench.row(title, cpu_s, unit="s", goal=goal_s, better="lower")
    bench.row(f"{title}, by the clock", wall_s, unit="s")
    bench.row("through a socket", len(head.pickled) / 2**20, unit="MiB")
    bench.row("in shared memory", head.size_bytes / 2**20, unit="MiB")
    plain_bytes = len(pickle.dumps(pickled, protocol=pickle.HIGHEST_PROTOCOL))
    bench.row("through a socket, plain", plain_bytes / 2**20, unit="MiB")
    bench.finish()


if __name__ == "__main__":
    main()

"""A run folder that nobody trained, of any size, with everything in it that a viewer shows."""

import json
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from agentrl.env import Action, Observation
from agentrl.errors import FailureKind
from agentrl.events.kinds import EnvExchange, GroupsTrained
from agentrl.events.log import EventLog, RolloutEmitter
from agentrl.message import Image, Message, ToolCall
from agentrl.metrics.writer import MetricsWriter
from agentrl.rollout.branching.decision import (
    BranchDecision,
    BranchPoint,
    BranchPointReached,
    PlannedRollout,
)
from agentrl.rollout.branching.entropy import EntropyProbe
from agentrl.rollout.branching.log import BranchLog
from agentrl.rollout.branching.rule import BranchChance
from agentrl.rollout.branching.summary import BranchingSummary
from agentrl.store.settings import StoreSettings
from agentrl.store.token_credit import TokenCredit, TokenCreditLog
from agentrl.store.writer import StoreWriter
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Outcome, Tree, Truncated, reward_of
from benchmarks.store import open_group

CONFIG = """\
run: {{name: {name}, folder: runs, steps: {steps}}}
env: {{id: made/Up-v0}}
policy: {{make: {{hidden_size: 32}}}}
view: {{redact: {redact}}}
"""
SAID = "I call the tool and read what it says before I answer. "


def make_tokenizer() -> Tokenizer:
    """Return a tokenizer with a token per byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: id for id, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def picture(colour: tuple[int, int, int] = (20, 128, 136), *, side: int = 96) -> Image:
    """Return a square of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes(colour) * side) * side)
    data = chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return Image(b"\x89PNG\r\n\x1a\n" + data)


@dataclass(slots=True, kw_only=True)
class MadeRun:
    """What is made. One group in five has a trajectory that failed, one in seven a truncated one;
    the last trajectory of every group branches off the first."""

    folder: Path
    groups: int = 12
    size: int = 8
    per_step: int = 4
    said: str = SAID
    """How a trajectory begins to speak; more of it makes longer ones."""
    secret: str = ""
    """Said by the tool in group 1, and asked about in its prompt."""
    redact: tuple[str, ...] = ()
    name: str = "made"
    tasks_from: int = 0
    """Number of the first task, which groups count from 0."""
    tasks: int = 0
    """Different tasks, which groups have in turns; 0 is one for each."""
    failures: tuple[FailureKind, ...] = ("tool",)
    """Kinds of failure that take turns."""
    tools: tuple[str, ...] = ("multiply",)
    """Names under which the trajectories of a group call the tool, in turns."""
    open_groups: int = 0
    """Left without an end, after the others."""
    tokenizer: Tokenizer = field(default_factory=make_tokenizer)

    def make(self) -> Path:
        """Write the run; return its folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        steps = -(-self.groups // self.per_step)
        (self.folder / "config.yaml").write_text(
            CONFIG.format(name=self.name, steps=steps, redact=json.dumps([*self.redact]))
        )
        (self.folder / "policy").mkdir(exist_ok=True)
        self.tokenizer.save(str(self.folder / "policy" / "tokenizer.json"))
        credit = TokenCreditLog(self.folder, limit_bytes=2**30)
        branches = BranchLog(self.folder)
        with (
            StoreWriter.open(self.folder / "store", StoreSettings()) as store,
            MetricsWriter(self.folder) as metrics,
        ):
            log = EventLog(store)
            for step in range(1, steps + 1):
                first = (step - 1) * self.per_step
                numbers = range(first, min(first + self.per_step, self.groups))
                trees = [self._group(log, number, step) for number in numbers]
                credits = [one for at, tree in enumerate(trees) for one in _credits(at, tree)]
                credit.write(step, credits, groups=numbers)
                log.emit(GroupsTrained(groups=tuple(numbers), step=step))
                for number, tree in zip(numbers, trees, strict=True):
                    branches.write(step, _shaped(number, tree, self.size))
                metrics.write(step, self._figures(step, trees))
            for number in range(self.groups, self.groups + self.open_groups):
                self._group(log, number, steps + 1, ends=False)
        return self.folder

    def _group(self, log: EventLog, number: int, step: int, *, ends: bool = True) -> Tree:
        asked = self.tasks_from + (number % self.tasks if self.tasks else number)
        task = Task(
            prompt=f"What is {asked} * 7?"
            + (f" The key is {self.secret}." if self.secret and number == 1 else ""),
            answer=str(asked * 7),
            id=f"task-{asked}",
            tags=("products",),
        )
        tree = open_group(log, task, order=number, size=self.size, step=step - 1).tree
        root = tree.add(Node(parent=None, source="prompt", token_ids=self._ids(task), turn=0))
        reset = EnvExchange.resetting(Observation(task.messages, tools=({"name": "multiply"},)))
        first: RolloutEmitter | None = None
        for sample in range(self.size):
            fork, at = None, 2
            if first is not None and sample == self.size - 1:
                fork = first.fork_point(at, strategy="copy", why={})
            rollout = log.start_rollout(number, sample=sample, seed=sample, version=0, fork=fork)
            if fork is None:
                rollout.complete_turn(root, reset)
                at = self._called(rollout, root, number, sample, step)
            first = first or rollout
            if ends:
                self._answered(rollout, at, number, sample, step)
        if ends:
            log.complete_group(number)
        return tree

    def _called(
        self, rollout: RolloutEmitter, root: int, number: int, sample: int, step: int
    ) -> int:
        tree = rollout.group.tree
        text = f"{self.said}multiply({number}, 7) #{sample}"
        at = tree.add(self._sampled(root, text, step, turn=0))
        answer = f"{number * 7}" + (f" {self.secret}" if number == 1 else "")
        shown = (answer, picture()) if number == 0 and sample == 0 else answer
        reply = Node(
            parent=at,
            source="tool",
            token_ids=self._ids(f"[{answer}]"),
            turn=1,
            seconds=0.05,
            tool_status="error" if sample == 2 else "ok",
        )
        at = tree.add(reply)
        tool = self.tools[sample % len(self.tools)]
        action = Action(self.said, (ToolCall("c", tool, {"a": number, "b": 7}),))
        seen = Observation((Message("tool", shown, tool_call_id="c", name=tool),))
        answered = (seen, 0.0, False, False, {"tool_results": (None,)})
        rollout.complete_turn(at, EnvExchange.stepping(action, answered, seconds=0.3))
        return at

    def _answered(
        self, rollout: RolloutEmitter, at: int, number: int, sample: int, step: int
    ) -> None:
        tree = rollout.group.tree
        outcome: Outcome = Finished(float(sample % 2))
        if sample == 3 and number % 5 == 4:
            kind = self.failures[number // 5 % len(self.failures)]
            outcome = Failed(kind, "the tool raised ZeroDivisionError")
        elif sample == 4 and number % 7 == 6:
            outcome = Truncated("tokens", 0.25)
        text = f"It is {number * 7 if sample % 2 else number}, says sample {sample}."
        node = tree.add(self._sampled(at, text, step, turn=1))
        leaf = Leaf(
            node=node,
            outcome=outcome,
            sample=sample,
            turn_rewards=(0.0, reward_of(outcome) or 0.0),
            components={"exact": reward_of(outcome) or 0.0},
            seconds=0.5 + 0.1 * sample,
            tool_calls=1,
        )
        tree.end(leaf)
        last = (Observation(()), reward_of(outcome) or 0.0, True, False, {})
        rollout.keep_last_turn(EnvExchange.stepping(Action(text), last, seconds=leaf.seconds))
        rollout.finish(leaf)

    def _ids(self, said: str | Task) -> tuple[int, ...]:
        text = said if isinstance(said, str) else str(said.prompt)
        # Half a surrogate pair, which a policy may write, has no bytes.
        return tuple(self.tokenizer.encode(text.encode(errors="replace").decode()).ids)

    def _sampled(self, parent: int, text: str, step: int, *, turn: int) -> Node:
        ids = self._ids(text)
        return Node(
            parent=parent,
            source="sampled",
            token_ids=ids,
            turn=turn,
            logprobs=tuple(-0.01 * (id % 97) for id in ids),
            versions=(max(0, step - 2),) * len(ids),
            seconds=0.2,
        )

    def _figures(self, step: int, trees: list[Tree]) -> dict[str, float]:
        rewards = [
            r for tree in trees for x in tree.leaves if (r := reward_of(x.outcome)) is not None
        ]
        return {
            "reward/mean": float(np.mean(rewards)),
            "seconds/rollout": 3.0,
            "seconds/learn": 1.0,
            "tokens_per_s": 900.0 + step,
            "entropy": 1.0 / step,
            "age/mean": 1.0,
            "age/max": 1.0,
        }


def _credits(owner: int, tree: Tree) -> list[TokenCredit]:
    rewards = {x.sample: r for x in tree.leaves if (r := reward_of(x.outcome)) is not None}
    mean = float(np.mean([*rewards.values()]))
    found: list[TokenCredit] = []
    for one in tree.trajectories():
        if one.sample in rewards:
            count = sum(one.mask)
            line = np.arange(count, dtype=np.float32)
            credit: dict[str, Any] = {
                "advantages": np.full(count, rewards[one.sample] - mean, dtype=np.float32),
                "log_ratios": np.sin(line) / 10,
                "entropies": np.abs(np.cos(line)),
            }
            found.append(TokenCredit(owner=owner, sample=one.sample, **credit))
    return found


def _shaped(number: int, tree: Tree, size: int) -> BranchingSummary:
    """Return the decisions of a group: its first trajectory branched, its second did not."""
    context = sum(len(tree.node(node).token_ids) for node in tree.path_ids(2))
    branched = _decision(tree, 0, context, reason="branched", draw=0.1, child=size - 1)
    stayed = _decision(tree, 1, context, reason="draw", draw=0.9, child=None)
    decisions = (branched, stayed) if size > 2 else ()
    return BranchingSummary(group=number, tree=tree, decisions=decisions, copies=(), observed=None)


def _decision(
    tree: Tree, sample: int, context: int, *, reason: Any, draw: float, child: int | None
) -> BranchDecision:
    origin = BranchPoint(path=(sample,), turn=1)
    start = PlannedRollout(path=(sample, 1, 0), sample=child or 0, seed=0, origin=origin)
    return BranchDecision(
        task_id=tree.task.id,
        topology="aepo",
        rule={"rule": "Aepo"},
        sample=sample,
        boundary=BranchPointReached(
            path=(sample,),
            turn=1,
            node=2,
            context_tokens=context,
            tokens=20,
            probe=EntropyProbe(value=0.3, lower=0.2, upper=0.4, tokens=20),
        ),
        reason=reason,
        first=0.2,
        rise=0.1,
        chance=BranchChance(value=0.5),
        draws=(draw,),
        open=4,
        children=() if child is None else (start,),
    )

"""Kill runs with SIGKILL in every variant of the config, resume them, and compare their ends.

    python benchmarks/kills.py [--kills 500] [--seed 0] [--only REGEX] [--folder DIR] [--json FILE]

A run is tiny: a model of a few thousand weights, a world that computes a digest, four steps. One is
killed up to five times in a row: around a record of a kind drawn at random (before it is written,
in the middle of it, between log and ledger, after both), while a checkpoint is written, or at any
moment. Then it is resumed to its end. Where docs/durability.md promises the same end, its weights,
metrics, samplers and trace are compared with those of a run that nobody killed. The exit code is 1
when a run could not be resumed, differs where it must not, or trained a group twice.
"""

import argparse
import contextlib
import gc
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, cast

import torch

from agentrl.errors import AgentrlError
from agentrl.events.kinds import KINDS, RunResumed
from agentrl.run.train import train
from agentrl.store.index import StoreIndex
from agentrl.store.segment import SegmentWriter, segment_file, segments
from benchmarks.seen import Seen, position_of

STEPS = 4
LIMIT_S = 600.0
"""A process that takes longer hangs."""

CONFIG = """
run: {{name: first, folder: {folder}, steps: {steps}, checkpoint_every: 2, seed: 3, threads: 1}}
env: {{id: "benchmarks.kills_world:Digest"}}
split_guard: {{allow: true}}
policy: {policy}
engine: {{slots: 8, context_tokens: 96}}
sampling: {{max_turn_tokens: 4}}
rollout: {{tasks_per_step: 2, group_size: 3, concurrency: 8, max_turns: 3, max_failed_fraction: 1}}
learn: {{optimizer: {{learning_rate: 1.0e-2}}}}
evaluate: {{tasks: 1}}
metrics: {{tensorboard: false}}
"""
MODEL = (
    "{make: {hidden_size: 16, layers: 1, heads: 2, kv_heads: 1, head_dim: 8, "
    "intermediate_size: 32}}"
)


@dataclass(frozen=True, slots=True)
class Variant:
    """Config overrides, and whether a killed run must end as one that nobody killed."""

    name: str
    overrides: Mapping[str, Any]
    is_promised: bool


def variant(name: str, is_promised: bool = True, **overrides: Any) -> Variant:
    """Return a variant; `rollout__mode` is the key `rollout.mode`."""
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return Variant(name, keys, is_promised)


PARTIAL: Mapping[str, Any] = {"rollout__mode": "partial", "rollout__over_provision": 2.0}
ASYNC: Mapping[str, Any] = {"rollout__mode": "async", "rollout__max_staleness": 2}
DAPO: Mapping[str, Any] = {"name": "dapo", "max_refills": 4}
FAILS: Mapping[str, Any] = {"fails": 5}
SAMPLED: Mapping[str, Any] = {"env__task_limit": 10}

VARIANTS: Sequence[Variant] = (
    variant("sync"),
    variant("sync, narrow", rollout__concurrency=2),
    variant("sync, power", store__durable="power"),
    variant("sync, interval, small segments", store__durable="interval", store__segment_bytes=4096),
    variant("sync, everything kept", store__keep="all", run__checkpoint_every=1),
    variant("sync, failures and retries", env__kwargs=FAILS, rollout__retries=1),
    variant("sync, second tries", env__kwargs=FAILS, rollout__retries=0, rollout__min_valid=2),
    variant("sync, tasks that repeat", env__task_limit=3, rollout__tasks_per_step=4),
    variant("sync, schedule", rollout__schedule={"period_steps": 2, "min_turn_tokens": 2}),
    variant("sync, dapo", curation__filter=DAPO),
    variant("sync, dapo, repeats", curation__filter=DAPO, env__task_limit=3),
    variant("sync, uniform", curation__sampler={"name": "uniform"}, **SAMPLED),
    variant("sync, uniform, dapo", curation__sampler={"name": "uniform"},
            curation__filter=DAPO, **SAMPLED),
    variant("sync, uniform, revisit", curation__sampler={"name": "uniform"},
            curation__revisit_every=2, curation__filter=DAPO, **SAMPLED),
    variant("sync, cdas, dapo", curation__sampler={"name": "cdas"}, curation__filter=DAPO,
            **SAMPLED),
    variant("sync, vade, dapo", curation__sampler={"name": "vade"}, curation__filter=DAPO,
            **SAMPLED),
    variant("sync, vade, dapo, second tries", curation__sampler={"name": "vade"},
            curation__filter=DAPO, env__kwargs=FAILS, rollout__retries=0, rollout__min_valid=2,
            **SAMPLED),
    variant("sync, dart, pool", curation__allocation={"name": "dart"},
            curation__pool={"name": "success"}, **SAMPLED),
    variant("sync, dars", curation__allocation={"name": "dars", "max_trajectories": 6}),
    variant("sync, dars, dapo, pool", curation__allocation={"name": "dars", "max_trajectories": 6},
            curation__filter=DAPO, curation__pool={"name": "success"}, **SAMPLED),
    variant("sync, xrpo", rollout__group_size=4, env__kwargs=FAILS,
            curation__allocation={"name": "xrpo", "first_round": 2}),
    variant("sync, duet, second tries", rollout__group_size=4, env__kwargs=FAILS,
            rollout__retries=0, rollout__min_valid=2,
            curation__allocation={"name": "duet", "first_round": 2}),
    variant("sync, members, entropies", rollout__group_size=4,
            curation__members={"name": "balanced", "most": 3},
            curation__steps={"name": "high_entropy"}),
    variant("sync, redundancy", False, rollout__redundancy=2),
    variant("sync, drafts", False, rollout__drafts={}, env__task_limit=3),
    variant("sync, drafts with residual", False, env__task_limit=3,
            rollout__drafts={"leniency": 1, "residual": True}),
    variant("sync, drafts trusted", False, rollout__drafts={"reuse": "trust"}, env__task_limit=3),
    variant("sync, aepo static", False, rollout__group_size=4, rollout__branching={
        "topology": "aepo", "split": "static", "probe_tokens": 2}),
    variant("sync, aepo online, replay", False, rollout__group_size=4, rollout__branching={
        "topology": "aepo", "base": 0.2, "probe_tokens": 2}, env__kwargs={"fork": "replay"}),
    variant("sync, arpo, dapo, failures", False, rollout__group_size=4, rollout__branching={
        "topology": "arpo", "probe_tokens": 2}, curation__filter=DAPO, env__kwargs=FAILS),
    variant("sync, tree-grpo", False, rollout__group_size=6,
            rollout__branching={"topology": "tree_grpo"}),
    variant("sync, fan-out", False, rollout__group_size=4,
            rollout__branching={"topology": "fan_out", "turns": [1]}),
    variant("partial", False, **PARTIAL),
    variant("partial, segments", False, rollout__segment={"tokens": 4, "turns": 1, "segments": 4},
            **PARTIAL),
    variant("partial, start lag", False, rollout__max_start_lag=0, **PARTIAL),
    variant("partial, restart", False, rollout__max_age=0, rollout__when_old="restart", **PARTIAL),
    variant("partial, vade, dapo, second tries", False, curation__sampler={"name": "vade"},
            curation__filter=DAPO, env__kwargs=FAILS, rollout__retries=0, rollout__min_valid=2,
            **PARTIAL, **SAMPLED),
    variant("partial, redundancy, dars", False, rollout__redundancy=1,
            curation__allocation={"name": "dars", "max_trajectories": 6}, **PARTIAL),
    variant("partial, aepo, start lag", False, rollout__group_size=4, rollout__max_start_lag=0,
            rollout__branching={"topology": "aepo", "probe_tokens": 2}, **PARTIAL),
    variant("async", False, **ASYNC),
    variant("async, start lag", False, rollout__max_start_lag=1, **ASYNC),
    variant("async, restart", False, rollout__max_age=1, rollout__when_old="restart", **ASYNC),
    variant("async, segments, restart", False, rollout__max_age=1, rollout__when_old="restart",
            rollout__segment={"tokens": 4, "turns": 2, "segments": 3}, **ASYNC),
    variant("async, backlog, masked", False, rollout__backlog=1, rollout__max_age=2, **ASYNC),
    variant("async, drafts, start lag", False, rollout__drafts={}, env__task_limit=3,
            rollout__max_start_lag=1, **ASYNC),
    variant("async, aepo, restart", False, rollout__group_size=4, rollout__max_age=1,
            rollout__when_old="restart",
            rollout__branching={"topology": "aepo", "probe_tokens": 2}, **ASYNC),
    variant("async, cdas, dapo, pool, power", False, curation__sampler={"name": "cdas"},
            curation__filter=DAPO, curation__pool={"name": "success"}, store__durable="power",
            **ASYNC, **SAMPLED),
    variant("async, failures, second tries, start lag", False, env__kwargs=FAILS,
            rollout__retries=1, rollout__min_valid=2, rollout__max_start_lag=0, **ASYNC),
)  # fmt: skip

Where = Literal["before", "torn", "logged", "entered"]
WHERE: Sequence[Where] = ("before", "torn", "logged", "entered")


@dataclass(frozen=True, slots=True)
class Trap:
    """Where a process kills itself: at one record, or while a checkpoint is written."""

    kind: str
    """Name of a record's type, `checkpoint`, or `moment`: then its parent kills it."""
    count: int
    """Which one of them in this process, from 1; milliseconds of a moment."""
    where: Where = "entered"

    def set(self) -> None:
        """Set it in this process."""
        if self.kind == "checkpoint":
            sys.addaudithook(self._on_audit())
        elif self.kind != "moment":
            self._on_records()

    def _on_records(self) -> None:
        append, enter = SegmentWriter.append, StoreIndex.enter
        seen = 0

        def watched_append(log: SegmentWriter, kind: int, payload: bytes) -> Any:
            nonlocal seen
            seen += KINDS[kind].__name__ == self.kind
            is_it = seen == self.count and KINDS[kind].__name__ == self.kind
            if is_it and self.where == "before":
                die()
            result = append(log, kind, payload)
            if is_it and self.where == "torn":
                place = result[1]
                file = segment_file(log.folder, place.segment)
                os.truncate(file, place.offset + place.length // 2)
            if is_it and self.where in ("torn", "logged"):
                die()
            return result

        def watched_enter(ledger: StoreIndex, sequence: int, place: Any, event: Any) -> None:
            enter(ledger, sequence, place, event)
            if seen == self.count and type(event).__name__ == self.kind:
                die()

        setattr(SegmentWriter, "append", watched_append)  # noqa: B010 - a method of its own name
        setattr(StoreIndex, "enter", watched_enter)  # noqa: B010

    def _on_audit(self) -> Callable[[str, tuple[Any, ...]], None]:
        seen = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            if event in ("open", "os.rename") and "/checkpoints/" in str(arguments[0]):
                seen += 1
                if seen == self.count:
                    die()

        return hook


def die() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(slots=True)
class Figures:
    """What became of a campaign."""

    kills: Counter[str] = field(default_factory=Counter[str])
    """By what they fell on."""
    runs: int = 0
    kills_of: Counter[str] = field(default_factory=Counter[str])
    """By variant."""
    unresumable: list[str] = field(default_factory=list[str])
    different: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])
    """Groups trained twice, trajectories reset twice."""

    @property
    def is_clean(self) -> bool:
        """Return whether all that is promised held."""
        return not (self.unresumable or self.different or self.wrong)

    def plain(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def table(self) -> str:
        """Return the figures as Markdown."""
        spots = ", ".join(f"{count} {kind}" for kind, count in self.kills.most_common())
        rows = [
            ("variants", len(self.kills_of)),
            ("runs that were killed and resumed to their end", self.runs),
            ("kills", f"{self.kills.total()}: {spots}"),
            ("runs that could not be resumed", len(self.unresumable)),
            ("runs that differ where the same end is promised", len(self.different)),
            ("groups trained twice, trajectories reset twice", len(self.wrong)),
        ]
        return "\n".join(["| | |", "| --- | --- |", *(f"| {a} | {b} |" for a, b in rows)])


class Campaign:
    """Runs in one folder, each process a fork of this one, which has imported everything."""

    def __init__(self, folder: Path, *, seed: int, say: Callable[[str], None] = print) -> None:
        self.folder = folder
        self.figures = Figures()
        self._seed = seed
        self._say = say
        self._log = folder / "log"
        self._config = folder / "kills.yaml"
        self._write_config(MODEL, steps=1)
        if code := self._process("first", {}):
            raise RuntimeError(f"the first run ended with {code}: {self._told()}")
        self._import_what_runs_import()
        self._write_config(f"{{path: {folder}/first/policy}}", steps=STEPS)

    def strike(self, one: Variant, *, kills: int) -> None:
        """Kill runs of a variant so often, and look at how each of them ends."""
        whole = f"{_slug(one.name)}-whole"
        if code := self._process(whole, one.overrides):
            self.figures.unresumable.append(f"{one.name}: ends itself with {code}: {self._told()}")
            return
        spots = Counter(type(event).__name__ for _, event in Seen.of(self.folder / whole).events)
        number = 0
        while self.figures.kills_of[one.name] < kills:
            self._kill_a_run(one, number, spots, most=kills - self.figures.kills_of[one.name])
            number += 1
        shutil.rmtree(self.folder / whole)

    def _kill_a_run(self, one: Variant, number: int, spots: Counter[str], *, most: int) -> None:
        draw = random.Random(f"{self._seed} {one.name} {number}")
        name = f"{_slug(one.name)}-{number}"
        label = f"{one.name} #{number}"
        traps: list[Trap] = []
        while len(traps) < min(most, draw.choice((1, 2, 3, 5))):
            trap = _drawn(draw, spots, again=bool(traps))
            code = self._process(name, one.overrides, resume=bool(traps), trap=trap)
            traps.append(trap)
            if code == 0:
                break
            if code != -signal.SIGKILL:
                self._failed(label, traps, code)
                return
            self.figures.kills[trap.kind] += 1
            self.figures.kills_of[one.name] += 1
        else:
            if code := self._process(name, one.overrides, resume=True):
                self._failed(label, traps, code)
                return
        self.figures.runs += 1
        self._compare(one, label, name, traps)

    def _failed(self, label: str, traps: Sequence[Trap], code: int) -> None:
        self.figures.unresumable.append(f"{label} {traps}: {code}: {self._told()}")
        self._say(f"UNRESUMABLE {self.figures.unresumable[-1]}")

    def _compare(self, one: Variant, label: str, name: str, traps: Sequence[Trap]) -> None:
        run = self.folder / name
        seen = Seen.of(run)
        twice = [n for n, c in seen.trained_until(position_of(run)[1]).items() if c > 1]
        again = [n for n, c in seen.resets().items() if c > 1]
        if twice or again:
            self.figures.wrong.append(f"{label} {traps}: groups {twice}, trajectories {again}")
            self._say(f"WRONG {self.figures.wrong[-1]}")
        elif one.is_promised:
            whole = ending_of(self.folder / f"{_slug(one.name)}-whole")
            differs = differences(whole, ending_of(run))
            if differs:
                self.figures.different.append(f"{label} {traps}: {differs}")
                self._say(f"DIFFERENT {self.figures.different[-1]}")
                return
        shutil.rmtree(run)

    def _import_what_runs_import(self) -> None:
        """Import it once here: a run takes a second, and its imports take several."""
        for name in (self.folder / "modules").read_text().split():
            if name not in sys.modules:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
        gc.freeze()

    def _write_config(self, policy: str, *, steps: int) -> None:
        text = CONFIG.format(folder=self.folder, policy=policy, steps=steps)
        self._config.write_text(text)

    def _told(self) -> str:
        return self._log.read_text()[-1500:]

    def _process(
        self,
        name: str,
        overrides: Mapping[str, Any],
        *,
        resume: bool = False,
        trap: Trap | None = None,
    ) -> int:
        """Run one process to its end, and return its exit code; below 0 is a signal."""
        resume = resume and len(segments(self.folder / name / "store" / "segments")) > 0
        if not resume:  # killed before it had written anything
            shutil.rmtree(self.folder / name, ignore_errors=True)
        pid = os.fork()
        if pid == 0:
            self._child({"run.name": name, **overrides}, resume=resume, trap=trap)
        ends = time.monotonic() + LIMIT_S
        kills = None
        if trap is not None and trap.kind == "moment":
            kills = time.monotonic() + trap.count / 1000
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if kills is not None and time.monotonic() > kills:
                os.kill(pid, signal.SIGKILL)
                kills = None
            if time.monotonic() > ends:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                self._log.write_text(f"it did not end within {LIMIT_S:.0f} s")
                return 124
            time.sleep(0.002)

    def _child(self, overrides: Mapping[str, Any], *, resume: bool, trap: Trap | None) -> None:
        code = 1
        try:
            with self._log.open("w") as log:
                for descriptor in (1, 2):
                    os.dup2(log.fileno(), descriptor)
            torch.set_num_threads(1)
            if trap is not None:
                trap.set()
            train(self._config, overrides, resume=resume)
            if overrides["run.name"] == "first":
                (self.folder / "modules").write_text("\n".join(sys.modules))
            code = 0
        except AgentrlError as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            code = 2
        finally:
            if (error := sys.exc_info()[1]) is not None:
                os.write(2, "".join(traceback.format_exception(error)).encode())
            os._exit(code)


def _drawn(draw: random.Random, spots: Counter[str], *, again: bool) -> Trap:
    what = draw.random()
    if what < 0.1:
        return Trap("checkpoint", draw.randrange(1, 60))
    if what < 0.2:
        return Trap("moment", draw.randrange(200, 4000))
    kind = draw.choice(sorted(spots))
    if again and draw.random() < 0.2:
        kind = RunResumed.__name__
    # What was done before a kill is not done again: there are fewer of them in a second process.
    count = draw.randrange(1, max(2, spots[kind] // (1 + again) + 1))
    return Trap(kind, count, draw.choice(WHERE))


def ending_of(run: Path) -> dict[str, Any]:
    """Return what a run leaves that a resume must leave as it is."""
    newest = max((run / "checkpoints").glob("step-*"))
    state = json.loads((newest / "state.json").read_text())
    state["samplers"].pop("store", None)
    state["samplers"].pop("trace", None)
    state["samplers"]["gate"]["outcomes"].sort(key=str)  # in the order of time
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if any(state["samplers"]["gate"]["outcomes"]):  # docs/durability.md names this one
        metrics = [{k: v for k, v in m.items() if k != "rollout/sampled_tokens"} for m in metrics]
    trace = [json.loads(line) for line in (run / "trace.jsonl").read_text().splitlines()]
    return {
        **{
            file.name: sha256(file.read_bytes()).hexdigest()
            for file in newest.glob("*.safetensors")
        },
        "samplers": _without_times(state["samplers"]),
        "metrics": [
            {k: v for k, v in line.items() if not is_of_this_process(k)} for line in metrics
        ],
        "trace": [[turn[0] for turn in line.get("turns", ())] for line in trace],
    }


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: _without_times(item) for key, item in items if key != "seconds"}
    return list(map(_without_times, cast("list[Any]", value))) if isinstance(value, list) else value


def is_of_this_process(name: str) -> bool:
    """Return whether a metric is a time, or counts what the process itself has done."""
    last = name.split("/")[-1]
    is_time = last.endswith("_s") or last in ("time", "tokens_per_s") or "seconds" in name
    return is_time or name.startswith("store/")


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return what differs between two endings, in a few words each."""
    found: list[str] = []
    for key in sorted({*one, *other}):
        if one.get(key) == other.get(key):
            continue
        if key != "metrics":
            found.append(f"{key}: {one.get(key)!s:.400} -> {other.get(key)!s:.400}")
            continue
        for before, after in zip(one[key], other[key], strict=False):
            names = [n for n in sorted({*before, *after}) if before.get(n) != after.get(n)]
            found += [
                f"step {before.get('step')} {n}: {before.get(n)} -> {after.get(n)}"
                for n in names[:4]
            ]
    return found


def _slug(name: str) -> str:
    return re.sub("[^a-z0-9]+", "-", name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a regular expression of variants' names")
    parser.add_argument("--folder", type=Path, help="keep what differs there")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    variants = [one for one in VARIANTS if re.search(given.only, one.name)]
    each = -(-given.kills // len(variants))
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        campaign = Campaign(folder, seed=given.seed)
        for one in variants:
            began = time.monotonic()
            campaign.strike(one, kills=each)
            took_s = time.monotonic() - began
            print(
                f"{one.name}: {campaign.figures.kills_of[one.name]} kills, {took_s:.0f} s",
                flush=True,
            )
        print(campaign.figures.table())
        if given.json is not None:
            given.json.write_text(json.dumps(campaign.figures.plain(), indent=1))
        return 0 if campaign.figures.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())

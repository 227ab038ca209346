"""Exports: what was recorded is what is told, and it can be read again.

Mutants seen caught: the mask turned round; turns without their number; a prompt miscounted.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from agentrl.cli.app import app
from agentrl.env import Action, Observation
from agentrl.errors import ConfigError
from agentrl.events.kinds import EnvExchange
from agentrl.export import ExportSummary, export
from agentrl.export.atif import atif_of
from agentrl.export.choice import ExportCondition
from agentrl.export.episode import ExportedTrajectory, ExportedTurn, TrajectoryTokens, episodes_of
from agentrl.export.row import episode_of, line_of, read_jsonl, row_of
from agentrl.message import Image, Message, ToolCall
from agentrl.runtime.image_files import ImageFiles
from agentrl.store.settings import StoreSettings
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Source, Tree, Truncated
from tests.support.foreign_packages import atif_errors, export_with_pyarrow
from tests.support.scripted_store import ScriptedStore

PICTURE = Image(b"\x89PNG a picture")
TASK = Task(
    prompt="What is on the picture?", answer=["cat", 1], id="t1", tags=("easy",), data={"a": None}
)
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {}}}
LOOK = Action("Let me look.", (ToolCall("call_0", "look", {"at": "é"}),), ("no JSON",))


def node(parent: int | None, source: Any, turn: int, *ids: int) -> Node:
    own = source == "sampled"
    return Node(
        parent=parent,
        source=source,
        token_ids=ids,
        turn=turn,
        logprobs=tuple(-i / 10 for i in ids) if own else (),
        versions=(3,) * len(ids) if own else (),
    )


def play(store: ScriptedStore) -> None:
    """Record a group: two turns with an image that end well, a failure, and one still going on."""
    group = store.open_group(TASK, order=0, seed=7, size=3, step=4)
    tree = Tree(TASK)
    opening = Observation((Message("system", "Look."), *TASK.messages), tools=(TOOL,))
    trajectory = store.begin(group, sample=0, seed=1)
    at = tree.share(node(None, "prompt", 0, 1, 2, 3))
    store.turn(trajectory, tree, at, EnvExchange.resetting(opening))
    seen = Observation(
        (
            Message("tool", "no JSON", tool_call_id="malformed_0", name=""),
            Message("tool", ("see:", PICTURE), tool_call_id="call_0", name="look"),
        )
    )
    at = tree.add(node(at, "sampled", 0, 11, 12))
    at = tree.add(node(at, "tool", 1, 4))
    store.turn(trajectory, tree, at, EnvExchange.stepping(LOOK, (seen, 0.25, False, False, {})))
    last = (Observation(()), 0.5, True, False, {"reward_components": {"right": 0.5}})
    at = tree.add(node(at, "sampled", 1, 13))
    leaf = Leaf(
        node=at,
        outcome=Finished(0.75),
        sample=0,
        turn_rewards=(0.25, 0.5),
        components={"right": 0.5},
        seconds=1.5,
        tool_calls=1,
    )
    store.finish(trajectory, tree, leaf, EnvExchange.stepping(Action("A cat."), last))
    broken = store.begin(group, sample=1, seed=2)
    lost = Leaf(node=None, outcome=Failed("tool", "the server died"), sample=1)
    store.finish(broken, tree, lost, None)
    going = store.begin(group, sample=2, seed=3)
    store.turn(
        going, tree, tree.share(node(None, "prompt", 0, 1, 2, 3)), EnvExchange.resetting(opening)
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "my-run"
    with ScriptedStore.open(folder / "store") as store:
        play(store)
    return folder


def episodes(run: Path, *, tokens: bool = True) -> list[ExportedTrajectory]:
    found = list(episodes_of(run, tokens=tokens))
    assert all(isinstance(e, ExportedTrajectory) for e in found)
    return [e for e in found if isinstance(e, ExportedTrajectory)]


def test_what_ended_is_told_as_it_was_recorded(run: Path) -> None:
    whole, broken = episodes(run)
    assert (whole.run, whole.group, whole.step, whole.sample) == ("my-run", 0, 4, 0)
    assert whole.task == TASK
    assert (whole.group_state, whole.outcome_name, whole.reward) == ("open", "finished", 0.75)
    assert [m.text for m in whole.opening] == ["Look.", "What is on the picture?"]
    assert whole.tools == (TOOL,)
    assert [t.said for t in whole.turns] == [LOOK.message, Message("assistant", "A cat.")]
    assert [t.reward for t in whole.turns] == [0.25, 0.5]
    assert [t.malformed for t in whole.turns] == [("no JSON",), ()]
    assert whole.turns[0].answers[1].images == (PICTURE,)
    assert whole.components == {"right": 0.5}
    assert whole.tokens == TrajectoryTokens(
        ids=(1, 2, 3, 11, 12, 4, 13),
        sources=("prompt", "prompt", "prompt", "sampled", "sampled", "tool", "sampled"),
        turns=(0, 0, 0, 0, 0, 1, 1),
        logprobs=(0.0, 0.0, 0.0, -1.1, -1.2, 0.0, -1.3),
        versions=(-1, -1, -1, 3, 3, -1, 3),
        jumps=(),
    )
    assert (broken.outcome, broken.reward, broken.turns) == (
        Failed("tool", "the server died"),
        None,
        (),
    )
    assert episodes(run, tokens=False)[0].tokens is None


def test_json_lines_are_these(run: Path, tmp_path: Path) -> None:
    assert export(run, tmp_path / "out", to="jsonl", tokens=True) == ExportSummary(
        written=2, left_out=0, pruned_groups=0
    )
    row, broken = map(json.loads, (tmp_path / "out/trajectories.jsonl").read_text().splitlines())
    image = f"images/{PICTURE.digest}.png"
    assert (tmp_path / "out" / image).read_bytes() == PICTURE.data
    assert row.pop("messages") == [
        {"role": "system", "content": "Look."},
        {"role": "user", "content": "What is on the picture?"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [{"id": "call_0", "name": "look", "arguments": {"at": "é"}}],
            "turn": 0,
            "malformed": ["no JSON"],
        },
        {"role": "tool", "content": "no JSON", "tool_call_id": "malformed_0", "name": ""},
        {
            "role": "tool",
            "content": [
                {"type": "text", "text": "see:"},
                {"type": "image", "path": image, "media_type": "image/png"},
            ],
            "tool_call_id": "call_0",
            "name": "look",
        },
        {"role": "assistant", "content": "A cat.", "turn": 1},
    ]
    assert row.pop("tokens") == {
        "ids": [1, 2, 3, 11, 12, 4, 13],
        "mask": [False, False, False, True, True, False, True],
        "sources": ["prompt", "prompt", "prompt", "sampled", "sampled", "tool", "sampled"],
        "turns": [0, 0, 0, 0, 0, 1, 1],
        "logprobs": [None, None, None, -1.1, -1.2, None, -1.3],
        "versions": [None, None, None, 3, 3, None, 3],
        "jumps": [],
    }
    assert row == {
        "format": 2,
        "run": "my-run",
        "group": 0,
        "group_state": "open",
        "step": 4,
        "trajectory": 0,
        "sample": 0,
        "forked_from": None,
        "task": {
            "id": "t1",
            "split": "train",
            "seed": 0,
            "tags": ["easy"],
            "prompt": "What is on the picture?",
            "answer": ["cat", 1],
            "data": {"a": None},
        },
        "outcome": "finished",
        "reward": 0.75,
        "error": None,
        "turn_rewards": [0.25, 0.5],
        "components": {"right": 0.5},
        "seconds": 1.5,
        "tool_calls": 1,
        "tools": [TOOL],
    }
    assert (broken["outcome"], broken["reward"], broken["error"]) == (
        "failed_tool",
        None,
        "the server died",
    )


def test_json_lines_are_read_back_as_what_was_recorded(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "out", to="jsonl", tokens=True)
    assert list(read_jsonl(tmp_path / "out")) == episodes(run)


texts = st.text(max_size=8)
images = st.builds(Image, st.binary(max_size=8), st.sampled_from(["image/png", "image/tiff"]))
contents = texts | st.lists(texts | images, max_size=3).map(tuple)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=3,
)
calls = st.builds(ToolCall, texts, texts, st.dictionaries(texts, values, max_size=2))
told = st.builds(Message, st.sampled_from(["system", "user", "tool"]), contents)
answers = st.builds(
    Message, st.just("tool"), contents, tool_call_id=st.none() | texts, name=st.none() | texts
)
finite = st.floats(allow_nan=False, allow_infinity=False)
turns = st.builds(
    ExportedTurn,
    said=st.builds(Message, st.just("assistant"), texts, st.lists(calls, max_size=2).map(tuple)),
    malformed=st.lists(texts, max_size=2).map(tuple),
    answers=st.lists(
        told | answers | st.builds(Message, st.just("assistant"), texts), max_size=2
    ).map(tuple),
    reward=finite,
)
outcomes = (
    st.builds(Finished, finite)
    | st.builds(Truncated, st.sampled_from(["turns", "tokens", "seconds"]), finite)
    | st.builds(Failed, st.sampled_from(["env", "tool"]), texts)
)


@st.composite
def token_rows(draw: st.DrawFn) -> TrajectoryTokens:
    kinds: list[Source] = ["prompt", "sampled", "tool"]
    sources = draw(st.lists(st.sampled_from(kinds), max_size=5))
    own = [source == "sampled" for source in sources]
    return TrajectoryTokens(
        ids=tuple(range(len(own))),
        sources=tuple(sources),
        turns=tuple(range(len(own))),
        logprobs=tuple(draw(finite) if x else 0.0 for x in own),
        versions=tuple(draw(st.integers(0, 9)) if x else -1 for x in own),
        jumps=((1, -1),) if own else (),
    )


written = st.builds(
    ExportedTrajectory,
    run=texts,
    group=st.integers(),
    group_state=st.sampled_from(["open", "trained"]),
    step=st.integers(),
    trajectory=st.integers(),
    sample=st.integers(),
    task=st.builds(
        Task,
        prompt=st.text(min_size=1, max_size=5) | st.lists(told, min_size=1, max_size=2).map(tuple),
        answer=values,
        id=st.text(min_size=1, max_size=5),
        tags=st.lists(texts, max_size=2).map(tuple),
        data=st.dictionaries(texts, values, max_size=2),
    ),
    outcome=outcomes,
    opening=st.lists(told | st.builds(Message, st.just("assistant"), texts), max_size=3).map(tuple),
    tools=st.lists(st.dictionaries(texts, values, max_size=2), max_size=2).map(tuple),
    turns=st.lists(turns, max_size=3).map(tuple),
    components=st.dictionaries(texts, finite, max_size=2),
    seconds=finite,
    tool_calls=st.integers(),
    forked_from=st.none() | st.integers(0, 9),
    tokens=st.none() | token_rows(),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(written)
def test_any_episode_survives_being_written(tmp_path: Path, episode: ExportedTrajectory) -> None:
    files = ImageFiles(tmp_path)
    line = line_of(row_of(episode, files))
    assert "\n" not in line[:-1]
    again = episode_of(json.loads(line), files)
    assert again == episode


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(written)
def test_any_episode_is_a_valid_atif_document(tmp_path: Path, episode: ExportedTrajectory) -> None:
    """By the rules that documents of ours could break; harbor's own models check the rest."""
    document = atif_of(episode, ImageFiles(tmp_path))
    if document is None:
        assert not episode.opening
        assert not episode.turns
        return
    json.dumps(document, allow_nan=False)
    assert [step["step_id"] for step in document["steps"]] == [
        *range(1, len(document["steps"]) + 1)
    ]
    for step in document["steps"]:
        known = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        results = step.get("observation", {"results": ()})["results"]
        assert {r["source_call_id"] for r in results if "source_call_id" in r} <= known
        if step["source"] != "agent":
            assert not step.keys() & {"tool_calls", "metrics", "model_name", "llm_call_count"}
        if step.get("llm_call_count") == 0:
            assert "metrics" not in step


@pytest.mark.harbor
def test_atif_is_this_and_harbor_takes_it(run: Path, tmp_path: Path) -> None:
    done = export(run, tmp_path / "out", to="atif", tokens=True)
    # In the second nothing was said, and a document without steps is none.
    assert done == ExportSummary(written=1, left_out=1, pruned_groups=0)
    document = json.loads((tmp_path / "out/000000.json").read_text())
    assert document["schema_version"] == "ATIF-v1.7"
    assert document["extra"]["reward"] == 0.75
    assert document["agent"]["tool_definitions"] == [TOOL]
    system, user, look, answer = document["steps"]
    assert (system["source"], user["source"], answer["message"]) == ("system", "user", "A cat.")
    assert look["tool_calls"] == [
        {"tool_call_id": "call_0", "function_name": "look", "arguments": {"at": "é"}}
    ]
    assert look["metrics"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "completion_token_ids": [11, 12],
        "logprobs": [-1.1, -1.2],
    }
    assert answer["metrics"]["prompt_tokens"] == 6
    unread, seen = look["observation"]["results"]
    assert unread == {"content": "no JSON"}
    assert seen["source_call_id"] == "call_0"
    path = seen["content"][1]["source"]["path"]
    assert (tmp_path / "out" / path).read_bytes() == PICTURE.data
    assert atif_errors(tmp_path / "out") == []


def test_a_call_has_one_id_whatever_it_is_exported_to(tmp_path: Path) -> None:
    """Behind the gateway a program answers calls under ids of the gateway's."""
    with ScriptedStore.open(tmp_path / "run" / "store") as store:
        group = store.open_group(TASK, order=0, seed=7, size=1, step=4)
        tree = Tree(TASK)
        trajectory = store.begin(group, sample=0, seed=1)
        at = tree.share(node(None, "prompt", 0, 1, 2, 3))
        store.turn(trajectory, tree, at, EnvExchange.resetting(Observation(TASK.messages)))
        calls = tuple(ToolCall(f"call_{n}", "look", {}) for n in range(3))
        seen = Observation(
            tuple(Message("tool", "", tool_call_id=id) for id in ("call_7_0", "call_7_1", "call_2"))
        )
        at = tree.add(node(at, "sampled", 0, 11, 12))
        answer = EnvExchange.stepping(Action("", calls), (seen, 0.25, True, False, {}))
        leaf = Leaf(node=at, outcome=Finished(0.25), sample=0, turn_rewards=(0.25,))
        store.finish(trajectory, tree, leaf, answer)
    export(tmp_path / "run", tmp_path / "jsonl", to="jsonl")
    export(tmp_path / "run", tmp_path / "atif", to="atif")
    row = json.loads((tmp_path / "jsonl/trajectories.jsonl").read_text())
    document = json.loads((tmp_path / "atif/000000.json").read_text())
    ids = ["call_7_0", "call_7_1", "call_2"]
    said, *answers = (message for message in row["messages"] if message["role"] != "user")
    assert [call["id"] for call in said["tool_calls"]] == ids
    assert [answer["tool_call_id"] for answer in answers] == ids
    step = document["steps"][-1]
    assert [call["tool_call_id"] for call in step["tool_calls"]] == ids
    assert [result["source_call_id"] for result in step["observation"]["results"]] == ids


@pytest.mark.harbor
def test_tokens_without_log_probs_are_exported(tmp_path: Path) -> None:
    """As those of an evaluated endpoint, which are nan. Mutants seen caught: nan in JSON, in either
    format; a sampled token read back with a log-prob of 0, which is a probability of 1."""
    with ScriptedStore.open(tmp_path / "run" / "store") as store:
        group = store.open_group(TASK, order=0, seed=7, size=1, step=0)
        tree = Tree(TASK)
        trajectory = store.begin(group, sample=0, seed=1)
        at = tree.share(node(None, "prompt", 0, 1))
        store.turn(trajectory, tree, at, EnvExchange.resetting(Observation(TASK.messages)))
        at = tree.add(replace(node(at, "sampled", 0, 11, 12), logprobs=(math.nan, math.nan)))
        answer = EnvExchange.stepping(Action("A cat."), (Observation(()), 1.0, True, False, {}))
        leaf = Leaf(node=at, outcome=Finished(1.0), sample=0, turn_rewards=(1.0,))
        store.finish(trajectory, tree, leaf, answer)
    for to in ("jsonl", "atif"):
        export(tmp_path / "run", tmp_path / to, to=to, tokens=True)
    row = json.loads((tmp_path / "jsonl/trajectories.jsonl").read_text())
    assert row["tokens"]["logprobs"] == [None, None, None]
    (episode,) = read_jsonl(tmp_path / "jsonl")
    assert episode.tokens is not None
    assert [*map(math.isnan, episode.tokens.logprobs)] == [False, True, True]
    metrics = json.loads((tmp_path / "atif/000000.json").read_text())["steps"][-1]["metrics"]
    assert metrics["completion_token_ids"] == [11, 12]
    assert "logprobs" not in metrics


def test_harbor_refuses_what_is_no_atif(tmp_path: Path) -> None:
    """The check of the check."""
    (tmp_path / "a.json").write_text('{"schema_version": "ATIF-v1.7", "steps": []}')
    assert atif_errors(tmp_path) != []


@pytest.mark.pyarrow
def test_a_dataset_is_read_by_arrow(run: Path, tmp_path: Path) -> None:
    rows = export_with_pyarrow(run, tmp_path / "out")
    assert [row["reward"] for row in rows] == [0.75, None]
    first = rows[0]
    assert (first["task_id"], first["split"], first["answer"]) == ("t1", "train", '["cat", 1]')
    assert [m["role"] for m in first["messages"]][-2:] == ["tool", "assistant"]
    assert json.loads(first["messages"][2]["tool_calls"][0]["arguments"]) == {"at": "é"}
    assert first["messages"][4]["content"] == "see:"
    assert first["messages"][4]["parts"][1]["path"] == f"images/{PICTURE.digest}.png"
    assert first["tokens"]["logprobs"] == [None, None, None, -1.1, -1.2, None, -1.3]
    assert "path: data/train-*.parquet" in (tmp_path / "out/README.md").read_text()


@pytest.mark.pyarrow
def test_half_a_surrogate_pair_is_written_as_it_was_shown(tmp_path: Path) -> None:
    """A tool can answer it and a policy can say it, but no file of valid Unicode holds it."""
    half = "a\ud800é"
    run = tmp_path / "my-run"
    with ScriptedStore.open(run / "store") as store:
        group = store.open_group(TASK, order=0, seed=7, size=1, step=4)
        tree, trajectory = Tree(TASK), store.begin(group, sample=0, seed=1)
        at = tree.share(node(None, "prompt", 0, 1, 2, 3))
        store.turn(
            trajectory, tree, at, EnvExchange.resetting(Observation(TASK.messages, tools=(TOOL,)))
        )
        called = Action(half, (ToolCall("call_0", "look", {half: half}),))
        seen = Observation((Message("tool", half, tool_call_id="call_0", name="look"),))
        end = tree.add(node(at, "sampled", 0, 11))
        leaf = Leaf(node=end, outcome=Finished(1.0), sample=0)
        exchange = EnvExchange.stepping(called, (seen, 1.0, True, False, {}))
        store.finish(trajectory, tree, leaf, exchange)
    (row,) = export_with_pyarrow(run, tmp_path / "hf")
    assert [m["content"] for m in row["messages"]][-2:] == ["a?é", "a?é"]
    for to in ("jsonl", "atif"):
        export(run, tmp_path / to, to=to)
    for file in (tmp_path / "jsonl/trajectories.jsonl", *(tmp_path / "atif").glob("*.json")):
        assert '"a?\\u00e9"' in json.dumps(json.loads(file.read_text(encoding="utf-8")))
        assert "\\ud800" not in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("reward>=0.75", [True, False]),
        ("reward > 0.75", [False, False]),
        ("reward<1", [True, False]),
        ("outcome=finished", [True, False]),
        ("outcome=failed", [False, True]),
        ("outcome!=failed_tool", [True, False]),
        ("tag=easy", [True, True]),
        ("tag!=easy", [False, False]),
        ("turns=2", [True, False]),
        ("sample!=0", [False, True]),
        ("split=heldout", [False, False]),
        ("task=t1", [True, True]),
        ("group_state=open", [True, True]),
    ],
)
def test_a_filter_keeps_what_it_says(run: Path, condition: str, holds: list[bool]) -> None:
    assert [ExportCondition.parse(condition).holds(e) for e in episodes(run)] == holds


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("reward", "is not a condition"),
        ("rewrd>1", "did you mean 'reward'"),
        ("zzz=1", "the fields are group"),
        ("reward>much", "must be compared with a number"),
        ("reward>=nan", "must be compared with a number"),
        ("outcome>finished", "with = or !="),
    ],
)
def test_a_filter_that_is_none_is_refused(condition: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ExportCondition.parse(condition)


def test_nothing_is_left_of_an_export_that_failed(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no recorded trajectories"):
        export(tmp_path, tmp_path / "out", to="jsonl")
    assert not [p for p in tmp_path.iterdir() if "out" in p.name]
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        export(run, tmp_path / "out", to="jsonl")


def test_a_pruned_group_is_counted_and_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = StoreSettings(keep="untrained", segment_bytes=1)
    with ScriptedStore.open(folder / "store", settings) as store:
        play(store)
        group = store.open_group(TASK, order=1, seed=0, size=1, step=0)
        trajectory = store.begin(group, sample=0, seed=0)
        leaf = Leaf(node=None, outcome=Failed("env", "lost"), sample=0)
        store.finish(trajectory, Tree(TASK), leaf, None)
        store.group_complete(group)
        store.trained([group], step=1)
        position = store.checkpoint(1)
        assert store.prune(position=position) > 0
    done = export(folder, tmp_path / "out", to="jsonl")
    assert done == ExportSummary(written=2, left_out=0, pruned_groups=1)


def test_the_command_says_what_it_did(run: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    words = ["export", str(run), "--output", output, "--filter", "reward>0", "--split", "train"]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    assert "exported 1 trajectories to" in ran.output
    assert [e.reward for e in read_jsonl(tmp_path / "out")] == [0.75]

"""What a page holds of a run: rows, stories, what is left out, and what must not be seen.

Mutants seen caught: a secret that spans nodes not found; ids of hidden tokens kept; keys of JSON
objects not redacted; MONKEY taken for a key; a limit that drops the first group; credit of another
sample.
"""

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from typer.testing import CliRunner

from agentrl.cli.app import app
from agentrl.env import Action, Observation
from agentrl.errors import ConfigError
from agentrl.events.kinds import EnvExchange
from agentrl.message import Message, ToolCall
from agentrl.store.reader import GroupIndexRow, StoreReader
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree
from agentrl.view.document import PageChunks, page
from agentrl.view.group_choice import StepRange, choose_groups
from agentrl.view.group_page import GroupPageBuilder
from agentrl.view.redaction import HIDDEN, SecretRedaction, key_values
from agentrl.view.run_reader import RunReader
from agentrl.view.token_texts import TokenTexts, find_vocabulary
from agentrl.view.tokens import HIDDEN_ID, hidden_tokens, short
from benchmarks.made_run import MadeRun, make_tokenizer
from tests.support.scripted_store import ScriptedStore

SECRET = "correct-horse-battery"
ENVIRON = {"MY_API_KEY": SECRET, "PATH": "/usr/local/bin", "HF_TOKEN": "short"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "made"
    return MadeRun(folder=folder, secret=SECRET, redact=("#[0-9]+",), open_groups=1).make()


def parts_of(html: str) -> dict[str, Any]:
    """Return the index and all stories of a page, decompressed."""
    found = re.findall(
        r'<script type="text/plain" id="agentrl-([a-z0-9-]+)">([^<]*)</script>', html
    )
    return {name: json.loads(gzip.decompress(base64.b64decode(text))) for name, text in found}


def page_of(folder: Path, *, steps: str | None = None, limit: int = 1000) -> dict[str, Any]:
    with RunReader(folder, environ=ENVIRON) as source:
        return parts_of("".join(page([source], steps=StepRange.parse(steps), limit=limit)))


def test_a_page_holds_every_group_with_its_story(run: Path) -> None:
    parts = page_of(run)
    index = parts["index"]
    assert index["groups"]["id"] == [*range(13)]
    assert index["groups"]["step"] == [*sorted([1, 2, 3] * 4), 4]
    assert index["groups"]["state"] == ["trained"] * 12 + ["open"]
    assert index["groups"]["size"] == [8] * 13
    assert len(index["trajectories"]["id"]) == 13 * 8
    assert index["leftOut"] == []
    assert [story["id"] for story in parts["chunk-0"]] == [*range(13)]
    assert index["groups"]["chunk"] == [0] * 13


def test_the_page_of_an_evaluation_holds_its_scores_by_family(tmp_path: Path) -> None:
    folder = MadeRun(folder=tmp_path / "made", open_groups=1).make()
    assert page_of(folder)["index"]["run"]["evaluation"] is None
    estimate = {"mean": 0.5, "low": 0.2, "high": 0.8, "tasks": 6}
    scores = {"pass@1": estimate, "reward": {**estimate, "mean": 0.6}, "turns": 2}
    report = {"confidence": 0.95, **scores, "tags": {"sums": scores, "odd": {"pass@1": None}}}
    (folder / "report.json").write_text(json.dumps(report))
    evaluation = page_of(folder)["index"]["run"]["evaluation"]
    assert evaluation["overall"] == {"pass@1": estimate, "reward": scores["reward"]}
    assert evaluation["families"]["sums"]["pass@1"] == estimate
    assert evaluation["families"]["odd"] == {"pass@1": None}


def test_a_trajectory_is_told_with_all_its_numbers(run: Path) -> None:
    parts = page_of(run)
    (story,) = [one for one in parts["chunk-0"] if one["id"] == 4]
    told = {one["sample"]: one for one in story["trajectories"]}
    assert told[3]["outcome"] == "failed_tool"
    assert told[3]["error"] == "the tool raised ZeroDivisionError"
    assert told[3]["reward"] is None
    assert "credit" not in told[3]
    assert told[1]["reward"] == 1
    assert told[1]["components"] == {"exact": 1.0}
    assert told[1]["credit"]["advantages"] == pytest.approx(1 - 3 / 7, abs=1e-4)
    assert told[7]["fork"] == {"parent": told[0]["id"], "node": 2, "strategy": "copy"}
    said = told[1]["messages"]
    assert [one["role"] for one in said] == ["user", "assistant", "tool", "assistant"]
    assert said[1]["calls"] == [{"name": "multiply", "arguments": {"a": "4", "b": "7"}}]
    assert said[2]["text"] == "28"
    assert [one["reason"] for one in story["decisions"]] == ["branched", "draw"]
    assert story["answer"] == "28"
    node = story["nodes"][1]
    text = "".join(story["vocabulary"][str(id)] for id in node["ids"] if id != HIDDEN_ID)
    assert text.startswith("I call the tool")
    assert node["versions"] == 0


def test_nodes_that_were_never_told_of_leave_no_gap(tmp_path: Path) -> None:
    """A kill took a turn that was being sampled; what came after it in the tree is shown."""
    with ScriptedStore.open(tmp_path / "store") as store:
        group = store.open_group(Task(prompt="q"), order=0, seed=0, size=2, step=0)
        tree = Tree(Task(prompt="q"))
        first = store.begin(group, sample=0, seed=0)
        root = tree.add(Node(parent=None, source="prompt", token_ids=(1,), turn=0))
        store.turn(first, tree, root, EnvExchange.resetting(Observation(())))
        _, said = (
            tree.add(
                Node(
                    parent=root,
                    source="sampled",
                    token_ids=(id,),
                    turn=0,
                    logprobs=(-1.0,),
                    versions=(0,),
                )
            )
            for id in (2, 3)
        )
        answer = tree.add(Node(parent=said, source="tool", token_ids=(4,), turn=1))
        turn = EnvExchange.stepping(Action(""), (Observation(()), 0.0, False, False, {}))
        store.turn(first, tree, answer, turn)
        store.fork(first, tree, answer, sample=1, seed=1, strategy="copy")
    with StoreReader(tmp_path / "store") as reader:
        story = GroupPageBuilder(vocabulary=TokenTexts()).story(reader.group(group), credit={})
    shown = [(node["parent"], node["ids"]) for node in story["nodes"]]
    assert shown == [(None, [1]), (0, [3]), (1, [4])]
    one, branch = story["trajectories"]
    assert (one["at"], branch["at"], branch["fork"]["node"]) == (2, 2, 2)


def test_the_picture_is_on_the_page(run: Path) -> None:
    (story,) = [one for one in page_of(run)["chunk-0"] if one["id"] == 0]
    (name,) = story["trajectories"][0]["messages"][2]["pictures"]
    assert story["pictures"][name].startswith("data:image/png;base64,iVBOR")


def test_the_tables_say_what_the_stories_do(run: Path) -> None:
    index = page_of(run)["index"]
    rows = index["trajectories"]
    first = 8 * 4
    assert [index["outcomes"][rows["outcome"][first + at]] for at in (0, 3)] == [
        "finished",
        "failed_tool",
    ]
    # The branch shares all but its answer with the first one, `28` where that says `4`.
    assert rows["tokens"][first + 7] == rows["tokens"][first] + 1
    assert rows["errors"][first + 2] == 1
    assert [index["tools"][at] for at in rows["tools"][first]] == ["multiply"]
    assert rows["advantage"][first] == pytest.approx(-3 / 7, abs=1e-4)
    assert rows["advantage"][first + 3] is None


def test_no_secret_is_anywhere_on_a_page(run: Path) -> None:
    with RunReader(run, environ={}) as source:
        assert SECRET in json.dumps(parts_of("".join(page([source], steps=StepRange(), limit=99))))
    parts = page_of(run)
    text = json.dumps(parts)
    assert SECRET not in text
    assert HIDDEN in text
    assert "sample 1" in text
    assert not re.search(r"\) #[0-9]", text)
    (story,) = [one for one in parts["chunk-0"] if one["id"] == 1]
    for one in story["trajectories"]:
        path: list[int] = []
        at = one["at"]
        while at is not None:
            path.append(at)
            at = story["nodes"][at]["parent"]
        ids = [id for node in reversed(path) for id in story["nodes"][node]["ids"]]
        said = "".join(story["vocabulary"][str(id)] for id in ids)
        assert SECRET not in said
        assert said.count("█" * len(SECRET)) == 2


def test_no_secret_is_in_the_names_of_a_story(tmp_path: Path) -> None:
    """Mutants seen caught: each of the four names as it is."""
    with ScriptedStore.open(tmp_path / "store") as store:
        task = Task(prompt="q", id=f"task-{SECRET}")
        group = store.open_group(task, order=0, seed=0, size=1, step=0)
        tree = Tree(task)
        one = store.begin(group, sample=0, seed=0)
        root = tree.add(Node(parent=None, source="prompt", token_ids=(1,), turn=0))
        store.turn(one, tree, root, EnvExchange.resetting(Observation(())))
        said = Node(
            parent=root, source="sampled", token_ids=(2,), turn=0, logprobs=(-1.0,), versions=(0,)
        )
        end = tree.add(said)
        action = Action("", (ToolCall("1", f"call-{SECRET}", {}),))
        answer = Observation((Message(role="tool", content="", name=f"tool-{SECRET}"),))
        turn = EnvExchange.stepping(action, (answer, 0.0, True, False, {}))
        leaf = Leaf(node=end, outcome=Finished(0.0), sample=0, components={f"part-{SECRET}": 1.0})
        store.finish(one, tree, leaf, turn)
    with StoreReader(tmp_path / "store") as reader:
        builder = GroupPageBuilder(vocabulary=TokenTexts(), redaction=SecretRedaction(ENVIRON))
        text = json.dumps(builder.story(reader.group(group), credit={}))
    assert SECRET not in text
    for kind in ("task", "call", "tool", "part"):
        assert f'"{kind}-{HIDDEN}"' in text


def test_keys_are_known_by_their_names() -> None:
    environ = {
        "OPENAI_API_KEY": "aaaaaaaaaa",
        "WANDB_TOKEN": "bbbbbbbbbbbb",
        "DB_PASSWORD": "cccccccc",
        "MONKEY": "dddddddddd",
        "KEYBOARD": "eeeeeeeeee",
        "SECRET": "fff",
    }
    assert key_values(environ) == ("b" * 12, "a" * 10, "c" * 8)


@given(st.text(), st.text())
def test_a_secret_is_hidden_wherever_it_stands(before: str, after: str) -> None:
    redaction = SecretRedaction(ENVIRON, ("x+y|z", "ab"))
    assert SECRET not in redaction.text(f"{before}{SECRET}{after}")
    nested = redaction.value({SECRET: [f"{before}{SECRET}", {"deep": SECRET}]})
    assert SECRET not in json.dumps(nested)


def test_patterns_stand_alone() -> None:
    redaction = SecretRedaction({}, ("x+y|z", "(?i)ab"))
    assert redaction.text("xxy ABz b") == f"{HIDDEN} {HIDDEN}{HIDDEN} b"
    assert sorted(redaction.spans("xxy ABz b")) == [(0, 3), (4, 6), (6, 7)]


@pytest.mark.parametrize("key", ["sk-" + "a" * 24, "hf_" + "b" * 34, "AKIA" + "C" * 16])
def test_known_shapes_of_keys_are_hidden(key: str) -> None:
    assert SecretRedaction({}).text(f"use {key}!") == f"use {HIDDEN}!"


def test_a_secret_across_nodes_is_hidden_in_both(tmp_path: Path) -> None:
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    vocabulary = TokenTexts.from_file(tmp_path / "tokenizer.json")
    ids = [make_tokenizer().encode(text).ids for text in ("say corr", "ect-horse-battery now")]
    tree = Tree(Task(prompt="q"))
    first = tree.add(Node(parent=None, source="prompt", token_ids=tuple(ids[0]), turn=0))
    last = tree.add(Node(parent=first, source="tool", token_ids=tuple(ids[1]), turn=0))
    hidden = hidden_tokens(tree, [last], redaction=SecretRedaction(ENVIRON), vocabulary=vocabulary)
    assert hidden == {first: {4, 5, 6, 7}, last: {*range(len("ect-horse-battery"))}}


def test_tokens_have_the_texts_of_their_bytes(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    made = make_tokenizer()
    made.save(str(tmp_path / "policy" / "tokenizer.json"))
    vocabulary = find_vocabulary(tmp_path, None)
    ids = made.encode("a b\n€").ids
    assert [vocabulary.text(id) for id in ids] == ["a", " ", "b", "\n", "<e2>", "<82>", "<ac>"]
    assert vocabulary.text(99_999) == "<99999>"
    assert find_vocabulary(tmp_path / "nowhere", None).text(5) == "<5>"


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel({"a": 1, "b": 0}, unk_token="a"),
        models.BPE({"a": 1, "b": 0, "ab": 2}, [("a", "b")]),
        models.Unigram([("<unk>", 0.0), ("\u2581a", -1.0), ("b", -2.0)], unk_id=0),
        models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"),
    ],
)
def test_a_vocabulary_is_that_of_its_tokenizer(model: models.Model, tmp_path: Path) -> None:
    made = Tokenizer(model)
    made.add_special_tokens(["<|end|>"])
    made.save(str(tmp_path / "tokenizer.json"))
    vocabulary = TokenTexts.from_file(tmp_path / "tokenizer.json")
    known = [made.id_to_token(id) for id in range(6)]
    assert sum(piece is not None for piece in known) >= 3
    assert [vocabulary.text(id) for id in range(6)] == [
        f"<{id}>" if piece is None else piece.replace("\u2581", " ")
        for id, piece in enumerate(known)
    ]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.5, 0.5], 0.5),
        ([], []),
        ([1.0, 2.0], [1, 2]),
        ([float("nan"), 1.23456789], [None, 1.2346]),
        ([float("nan")] * 2, None),
        ([float("inf"), 0.0], [None, 0]),
    ],
)
def test_numbers_are_short(values: list[float], shown: object) -> None:
    assert short(values) == shown


def facts(id: int, *, size: int = 4, step: int | None = None) -> GroupIndexRow:
    return GroupIndexRow(
        id=id,
        task="t",
        state="trained",
        size=size,
        step=id if step is None else step,
        reason="",
        is_pruned=False,
    )


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 300))
def test_what_is_chosen_fits_and_holds_both_ends(count: int, size: int, limit: int) -> None:
    groups = [facts(id, size=size) for id in range(count)]
    taken, said = choose_groups(groups, steps=StepRange(), limit=limit)
    ids = [one.id for one in taken]
    assert ids == sorted({*ids})
    assert len(taken) == 1 or len(taken) * size <= limit
    assert ids[-1] == count - 1
    assert len(taken) == 1 or ids[0] == 0
    assert bool(said) == (len(taken) < count)


def test_steps_are_ranges_with_both_ends() -> None:
    groups = [facts(id) for id in range(1, 10)]
    for text, want in (("3:5", [3, 4, 5]), ("8:", [8, 9]), (":2", [1, 2]), ("4", [4])):
        taken, said = choose_groups(groups, steps=StepRange.parse(text), limit=99)
        assert [one.step for one in taken] == want
        assert f"{9 - len(want)} groups of other steps" in said[0]
    for wrong in ("", ":", "a", "5:3", "-1"):
        with pytest.raises(ConfigError, match="--step"):
            StepRange.parse(wrong)


def test_a_page_without_room_says_so() -> None:
    chunks = PageChunks(limit_bytes=1)
    for group in range(3):
        chunks.add(group, {"id": group, "text": "x" * 2_000_000})
    chunks.close()
    assert (chunks.places, chunks.left_out) == ({0: 0}, 2)


def test_what_was_pruned_keeps_its_row(tmp_path: Path) -> None:
    folder = MadeRun(folder=tmp_path / "made", groups=4).make()
    from agentrl.store.index import StoreIndex

    ledger = StoreIndex(folder / "store" / "ledger.sqlite")
    ledger.mark_pruned([0], position=0)
    ledger.close()
    parts = page_of(folder)
    index = parts["index"]
    assert [*parts] == ["index"]
    assert index["groups"]["chunk"] == [-1] * 4
    assert "store.keep=all" in index["groups"]["why"][0]
    assert index["trajectories"]["reward"][:2] == [0, 1]


def test_the_command_writes_a_file_and_refuses_what_is_no_run(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "run.html"
    options = ["view", str(run), "--no-open", "--out", str(output), "--step", "2:3", "--limit", "9"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    index = parts_of(output.read_text())["index"]
    assert index["groups"]["id"] == [11]
    assert len(index["leftOut"]) == 2
    result = CliRunner().invoke(app, ["view", str(tmp_path), "--no-open"])
    assert isinstance(result.exception, ConfigError)
    assert "is not a run folder" in str(result.exception)
    assert [*tmp_path.iterdir()] == [output]
    (tmp_path / "config.yaml").write_text("run: {na")
    result = CliRunner().invoke(app, ["view", str(tmp_path), "--no-open"])
    assert isinstance(result.exception, ConfigError)
    assert "config.yaml:1: not valid YAML" in str(result.exception)

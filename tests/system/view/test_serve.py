"""The served page: for who knows the token, with what is new, and nothing that is secret.

Mutants seen caught: a story without a token; any host's name taken; tables that never change.
"""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agentrl.env import Observation
from agentrl.events.kinds import EnvExchange
from agentrl.task import Task
from agentrl.trajectory import Node, Tree
from agentrl.view.group_choice import StepRange
from agentrl.view.run_reader import RunReader
from agentrl.view.serve import LiveRun, build_app, serve
from benchmarks.made_run import MadeRun
from tests.support.scripted_store import ScriptedStore

SECRET = "correct-horse-battery"
TOKEN = "token-of-this-server"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return MadeRun(folder=tmp_path / "made", groups=4, secret=SECRET).make()


@pytest.fixture
def live(folder: Path) -> Iterator[LiveRun]:
    with RunReader(folder, environ={"A_SECRET": SECRET}) as source:
        yield LiveRun(source, steps=StepRange())


def play(folder: Path) -> None:
    """Open one more group, whose trajectory has made its reset."""
    task = Task(prompt="one more", id="more")
    with ScriptedStore.open(folder / "store", resume=True) as store:
        store.restore(position=store.position, step=1)
        group = store.open_group(task, order=9, seed=0, size=1, step=1)
        tree = Tree(task)
        root = tree.add(Node(parent=None, source="prompt", token_ids=(1, 2), turn=0))
        id = store.begin(group, sample=0, seed=0)
        store.turn(id, tree, root, EnvExchange.resetting(Observation(task.messages)))


def test_tables_follow_the_run_and_are_read_once(folder: Path, live: LiveRun) -> None:
    first = json.loads(live.index())
    tag = live.tag
    assert first["groups"]["id"] == [0, 1, 2, 3]
    live.index()
    assert live.tag == tag
    play(folder)
    second = json.loads(live.index())
    assert live.tag != tag
    assert second["groups"]["id"] == [0, 1, 2, 3, 4]
    assert second["groups"]["state"][4] == "open"
    assert second["groups"]["chunk"][4] == 4
    assert SECRET not in json.dumps(second)


def test_stories_come_one_by_one(live: LiveRun) -> None:
    story = live.story(1)
    assert story is not None
    assert json.loads(story)["id"] == 1
    assert SECRET not in story
    assert live.story(99) is None


def test_only_who_knows_the_token_gets_anything(live: LiveRun) -> None:
    from starlette.testclient import TestClient

    app = build_app([live], token=TOKEN)
    with TestClient(app) as client:
        for path in ("/", "/index", "/live", "/story/0"):
            for wrong in ("", "?token=", "?token=guess"):
                assert client.get(path + wrong).status_code == 403, path + wrong
            answer = client.get(f"{path}?token={TOKEN}")
            assert answer.status_code == 200
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            elsewhere = client.get(f"{path}?token={TOKEN}", headers={"Host": "evil.example"})
            assert elsewhere.status_code == 400
        assert "agentrlBegin({ runs: 1, isServed: true })" in client.get(f"/?token={TOKEN}").text
        assert client.get(f"/story/99?token={TOKEN}").status_code == 404
        tag = client.get(f"/index?token={TOKEN}").headers["ETag"]
        same = client.get(f"/index?token={TOKEN}", headers={"If-None-Match": tag})
        assert (same.status_code, same.content) == (304, b"")


def test_an_address_is_answered_from_when_it_is_announced(folder: Path) -> None:
    """Before the server listens somebody else may have the port, and be told the token."""

    class Announced(Exception):
        pass

    def announce(url: str) -> None:
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port), timeout=10):
            raise Announced

    with pytest.raises(Announced):
        serve([folder], steps=StepRange(), port=0, announce=announce)

"""What a record says comes back exactly: types, bits and all, and nothing that could run code."""

import math
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.chat.call_json import CALL_LIMITS
from agentrl.env import Action, Observation
from agentrl.errors import FailureKind
from agentrl.events.kinds import (
    KINDS,
    BranchesPlanned,
    CheckpointStarted,
    ComponentNoted,
    EnvExchange,
    Event,
    ForkPoint,
    GroupCompleted,
    GroupDropped,
    GroupOpened,
    GroupRequest,
    GroupResized,
    GroupsTrained,
    RolloutAbandoned,
    RolloutFinished,
    RolloutStarted,
    RunResumed,
    TurnCompleted,
    TurnExtended,
)
from agentrl.message import Image, Message, ToolCall
from agentrl.runtime.json_limits import check_json
from agentrl.store.blobs import BlobStore
from agentrl.store.codec import decode, encode, pack, unpack
from agentrl.store.errors import DamagedStore, StoreError
from agentrl.store.record import LogRecord
from agentrl.store.trajectory_copy import TrajectoryCopy
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Source, Truncated


def nested(depth: int, key: str = "a") -> Any:
    """Return objects as deep as that."""
    value: Any = 1
    for _ in range(depth):
        value = {key: value}
    return value


@pytest.mark.parametrize("key", ["a", "$a"])
def test_arguments_that_are_no_malformed_call_can_be_recorded(key: str) -> None:
    """The deepest there are, in the form that takes the most levels, far down the stack."""
    arguments = nested(63, key) | {"b": "[{" * 1_000}
    check_json(arguments, CALL_LIMITS)
    task = Task(prompt="p", data={"actions": (Action("", (ToolCall("c", "f", arguments),)),)})

    def deep_in_the_stack(frames: int) -> Any:
        return deep_in_the_stack(frames - 1) if frames else unpack(pack(task))

    assert deep_in_the_stack(150) == task


@pytest.mark.parametrize("depth", [300, 700, 100_000])
def test_what_is_too_deep_to_be_read_again_is_not_recorded(depth: int) -> None:
    task = Task(prompt="p", data={"a": nested(depth)})
    with pytest.raises(ValueError, match="would have more than 256 levels"):
        pack(task)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"$": "Ended", ', b"\xff", b"9" * 5_000])
def test_a_record_that_nobody_wrote_is_damage(tmp_path: Path, text: bytes) -> None:
    record = LogRecord(kind=0, sequence=7, payload=len(text).to_bytes(4, "little") + text)
    with pytest.raises(StoreError, match="record 7"):
        decode(record, BlobStore(tmp_path))
    with pytest.raises(DamagedStore):
        decode(LogRecord(kind=0, sequence=7, payload=b"\1"), BlobStore(tmp_path))


texts = st.text(st.characters(codec=None), max_size=20)
"""Lone surrogates too: a byte-level tokenizer can decode to them."""
numbers = st.floats(allow_nan=False)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(
            texts | st.integers() | st.sampled_from(["$", "$tuple"]), inner, max_size=3
        )
        | st.frozensets(st.integers(), max_size=3)
        | st.sets(texts, max_size=3)
    ),
    max_leaves=8,
)
images = st.builds(Image, st.binary(max_size=8), st.sampled_from(["image/png", "image/jpeg"]))
calls = st.builds(ToolCall, texts, texts, st.dictionaries(texts, plain, max_size=2))
contents = texts | st.lists(texts | images, max_size=3).map(tuple)
messages = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    contents,
    st.lists(calls, max_size=2).map(tuple),
    st.none() | texts,
    st.none() | texts,
)
observations = st.builds(
    Observation,
    st.lists(messages, max_size=2).map(tuple),
    st.none() | st.lists(st.dictionaries(texts, plain, max_size=2), max_size=2).map(tuple),
)
actions = st.builds(
    Action, texts, st.lists(calls, max_size=2).map(tuple), st.lists(texts, max_size=2).map(tuple)
)
exchanges = st.builds(
    EnvExchange,
    action=st.none() | actions,
    observation=observations,
    fingerprint=texts,
    reward=numbers,
    terminated=st.booleans(),
    truncated=st.booleans(),
    components=st.dictionaries(texts, numbers, max_size=2),
    tool_calls=st.integers(0, 9),
    seconds=numbers,
)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    ids = draw(st.lists(st.integers(0, 2**32 - 1), max_size=5))
    source = draw(st.sampled_from(get_args(Source)))
    own = len(ids) if source == "sampled" else 0
    known = len(ids) if draw(st.booleans()) else 0
    seen = draw(st.lists(images, max_size=min(2, len(ids))))
    is_shown = source != "sampled" and draw(st.booleans())
    return Node(
        parent=draw(st.none() | st.integers(0, 9)),
        source=source,
        token_ids=tuple(ids),
        turn=draw(st.integers(0, 9)),
        logprobs=tuple(draw(st.lists(numbers, min_size=own, max_size=own))),
        versions=tuple(draw(st.lists(st.integers(0, 2**31 - 1), min_size=own, max_size=own))),
        entropies=tuple(draw(st.lists(numbers, min_size=known, max_size=known))),
        images=tuple(seen),
        image_spans=tuple((at, at + 1) for at in range(len(seen))) if is_shown else (),
        seconds=draw(numbers),
        tool_status=draw(texts),
    )


tasks = st.builds(
    Task,
    prompt=texts.filter(bool) | st.lists(messages, min_size=1, max_size=2).map(tuple),
    answer=plain,
    id=texts.filter(bool),
    split=st.sampled_from(["train", "heldout"]),
    seed=st.integers(0, 2**64 - 1),
    data=st.dictionaries(texts, plain, max_size=2),
    tags=st.lists(texts, max_size=2).map(tuple),
)
outcomes = (
    st.builds(Finished, numbers)
    | st.builds(Truncated, st.sampled_from(["turns", "tokens", "seconds"]), numbers)
    | st.builds(
        Failed,
        st.sampled_from(["env", "tool", "sandbox", "verifier", "engine", "cancelled"]),
        texts,
    )
)
leaves = st.builds(
    Leaf,
    node=st.none() | st.integers(0, 9),
    outcome=outcomes,
    sample=st.integers(0, 9),
    turn_rewards=st.lists(numbers, max_size=2).map(tuple),
    components=st.dictionaries(texts, numbers, max_size=2),
    seconds=numbers,
    tool_calls=st.integers(0, 9),
)
ids = st.integers(0, 2**40)
several = st.lists(nodes(), max_size=3).map(tuple)
forks = st.builds(
    ForkPoint,
    parent=ids,
    node=ids,
    shared=ids,
    strategy=st.sampled_from(["native", "copy", "replay", "none"]),
    why=st.dictionaries(texts, plain, max_size=2),
)
requests = st.builds(
    GroupRequest,
    task=tasks,
    trajectories=st.none() | ids,
    max_turns=st.none() | ids,
    max_turn_tokens=st.none() | ids,
    round=ids,
    round_size=ids,
    tries=ids,
    retry_of=st.none() | ids,
)
places = st.lists(ids, max_size=3).map(tuple)
events: list[st.SearchStrategy[Event]] = [
    st.builds(
        GroupOpened,
        group=ids,
        request=requests,
        order=ids,
        seed=ids,
        size=ids,
        step=ids,
    ),
    st.builds(GroupResized, group=ids, size=ids),
    st.builds(
        RolloutStarted,
        trajectory=ids,
        group=ids,
        sample=ids,
        seed=st.integers(0, 2**64 - 1),
        version=ids,
        attempt=ids,
        fork=st.none() | forks,
        nodes=several,
        node_ids=places,
    ),
    st.builds(
        BranchesPlanned, trajectory=ids, group=ids, fork=forks, nodes=several, node_ids=places
    ),
    st.builds(
        TurnCompleted,
        trajectory=ids,
        group=ids,
        at=st.none() | ids,
        exchange=exchanges,
        nodes=several,
        node_ids=places,
    ),
    st.builds(TurnExtended, trajectory=ids, group=ids, at=ids, nodes=several, node_ids=places),
    st.builds(
        RolloutFinished,
        trajectory=ids,
        group=ids,
        leaf=leaves,
        exchange=st.none() | exchanges,
        nodes=several,
        node_ids=places,
    ),
    st.builds(
        RolloutAbandoned,
        trajectory=ids,
        group=ids,
        reason=texts,
        turns=ids,
        failure=st.none() | st.sampled_from(get_args(FailureKind)),
    ),
    st.builds(
        ComponentNoted,
        group=ids,
        trajectory=st.none() | ids,
        note=st.dictionaries(texts, plain, max_size=2),
        with_end=st.booleans(),
    ),
    st.builds(GroupCompleted, group=ids),
    st.builds(GroupDropped, group=ids, reason=texts, requeued=st.booleans(), counts=st.booleans()),
    st.builds(GroupsTrained, groups=st.lists(ids, max_size=3).map(tuple), step=ids),
    st.builds(CheckpointStarted, step=ids),
    st.builds(RunResumed, position=ids, step=ids, torn_bytes=ids),
]


def there_and_back(event: Event, folder: Path) -> Event:
    """Return an event that was written and read by two different processes, as it were."""
    kind, payload = encode(event, BlobStore(folder))
    return decode(LogRecord(kind=kind, sequence=0, payload=payload), BlobStore(folder))


def exact(value: Any) -> str:
    """Return a text that is equal for equal values of equal types."""
    match value:
        case dict():
            return f"dict{[(exact(key), exact(item)) for key, item in value.items()]}"
        case set() | frozenset():
            return f"{type(value).__name__}{sorted(map(exact, value))}"
        case list() | tuple():
            return f"{type(value).__name__}{[exact(item) for item in value]}"
        case _ if hasattr(value, "__dataclass_fields__"):
            inner = [exact(getattr(value, name)) for name in value.__dataclass_fields__]
            return f"{type(value).__name__}{inner}"
        case _:
            return f"{type(value).__name__}:{value!r}"


@given(st.data())
def test_every_event_comes_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "objects"
    event = data.draw(st.one_of(events))
    assert exact(there_and_back(event, folder)) == exact(event)


@given(st.dictionaries(texts, st.builds(TrajectoryCopy, nodes=several, leaf=leaves), max_size=2))
def test_what_is_packed_comes_back_with_its_images(branches: dict[str, TrajectoryCopy]) -> None:
    assert exact(unpack(pack(branches))) == exact(branches)


def test_there_is_a_strategy_for_every_kind_in_their_fixed_order() -> None:
    assert len(events) == len(KINDS)
    assert [kind.__name__ for kind in KINDS] == [
        *("GroupOpened", "GroupResized", "RolloutStarted", "BranchesPlanned", "TurnCompleted"),
        *("TurnExtended", "RolloutFinished", "RolloutAbandoned", "ComponentNoted"),
        *("GroupCompleted", "GroupDropped", "GroupsTrained", "CheckpointStarted", "RunResumed"),
    ]


def test_log_probs_keep_their_bits(tmp_path: Path) -> None:
    values = (-0.1, -1e-300, -math.inf, -0.0, 5e-324)
    node = Node(
        parent=None,
        source="sampled",
        token_ids=(1,) * 5,
        turn=0,
        logprobs=values,
        versions=(2,) * 5,
    )
    grown = TurnExtended(trajectory=0, group=0, at=0, nodes=(node,), node_ids=(0,))
    back = there_and_back(grown, tmp_path)
    assert isinstance(back, TurnExtended)
    assert [x.hex() for x in back.nodes[0].logprobs] == [x.hex() for x in values]


def test_the_bytes_of_an_event_are_fixed(tmp_path: Path) -> None:
    node = Node(
        parent=0,
        source="sampled",
        token_ids=(258,),
        turn=1,
        logprobs=(-0.5,),
        versions=(3,),
        entropies=(2.0,),
        seconds=0.25,
    )
    grown = TurnExtended(trajectory=5, group=4, at=2, nodes=(node,), node_ids=(2,))
    text = (
        '{"$":"TurnExtended","trajectory":5,"group":4,"at":2,"nodes":{"$tuple":[{"$node":'
        '[0,"sampled",1,0.25,"",[],1,1]}]},"node_ids":{"$tuple":[2]}}'
    )
    numbers = "02010000 03000000 000000000000e0bf 0000000000000040"
    want = len(text).to_bytes(4, "little") + text.encode() + bytes.fromhex(numbers)
    assert encode(grown, BlobStore(tmp_path)) == (5, want)


def test_a_value_that_cannot_be_read_back_is_refused(tmp_path: Path) -> None:
    task = Task(prompt="q", data={"when": Path("x")})
    request = GroupRequest(task=task)
    event = GroupOpened(group=0, request=request, order=0, seed=0, size=1, step=0)
    with pytest.raises(ValueError, match=r"a PosixPath cannot be recorded: .*text, numbers"):
        encode(event, BlobStore(tmp_path))


@pytest.mark.parametrize(
    "text", ['{"$":"Popen","args":"rm"}', '{"$":"GroupCompleted","group":1,"new":2}', '{"$what":1}']
)
def test_another_versions_record_is_refused(tmp_path: Path, text: str) -> None:
    payload = len(text).to_bytes(4, "little") + text.encode()
    with pytest.raises(StoreError, match="written by another version"):
        decode(LogRecord(kind=9, sequence=0, payload=payload), BlobStore(tmp_path))


def test_an_image_is_stored_once_and_checked(tmp_path: Path) -> None:
    heard: list[Path] = []
    objects = BlobStore(tmp_path, written=heard.append)
    digest = objects.put(b"picture")
    assert objects.put(b"picture") == BlobStore(tmp_path).put(b"picture") == digest
    assert heard.count(objects.file(digest)) == 1
    objects.file(digest).write_bytes(b"picturE")
    with pytest.raises(DamagedStore, match=f"{digest} is damaged"):
        objects.get(digest)
    objects.file(digest).write_bytes(b"pict")
    assert BlobStore(tmp_path).put(b"picture") == digest
    assert objects.get(digest) == b"picture"
    objects.file(digest).unlink()
    with pytest.raises(DamagedStore, match=f"{digest} is missing"):
        objects.get(digest)


def test_half_written_objects_are_removed(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / ".abcd.17.partial").write_bytes(b"ha")
    BlobStore(tmp_path).clean()
    assert not [*(tmp_path / "ab").iterdir()]

"""Objects whose arrays travel apart: every bit arrives, once, aligned, and nobody can change it.

Mutants seen caught: places that are not aligned; sizes of another order; arrays left in the pickle;
a mapping that may be written into; a descriptor that stays open.
"""

import os
import socket
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from agentrl.learn.batch import TrainingBatch
from agentrl.learn.sharded.packed_object import (
    ALIGNMENT_BYTES,
    MEMORY_NAME,
    SharedObject,
    pack,
    receive_object,
)
from tests.support.learning import trees_of

ARRAYS = hnp.arrays(
    st.sampled_from([np.int32, np.int64, np.float32, np.float64, np.bool_]),
    hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=70),
)


def memory_files() -> int:
    """Return how many files and mappings of arrays this process has."""
    count = Path("/proc/self/maps").read_text().count(MEMORY_NAME)
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # it is closed meanwhile
            count += MEMORY_NAME in str(Path(f"/proc/self/fd/{name}").readlink())
    return count


def travelled(value: Any) -> Any:
    """Return what arrives at the other end of a socket."""
    ours, theirs = Pipe()
    with ours, theirs:
        SharedObject(value).send(ours, os.getpid())
        return receive_object(theirs)


@given(st.lists(ARRAYS, max_size=6), st.text())
def test_every_bit_arrives_aligned_and_nobody_writes_into_it(
    arrays: list[np.ndarray], text: str
) -> None:
    found, said = travelled((arrays, text))
    assert said == text
    for mine, theirs in zip(arrays, found, strict=True):
        assert (theirs.dtype, theirs.shape) == (mine.dtype, mine.shape)
        assert theirs.tobytes() == mine.tobytes()
        if mine.size:
            assert theirs.ctypes.data % ALIGNMENT_BYTES == 0
            with pytest.raises(ValueError, match="read-only"):
                theirs.flat[0] = 0


def test_arrays_are_apart_and_what_is_held_twice_is_there_once() -> None:
    one = np.arange(10_000)
    packed, arrays = pack({"a": one, "b": one, "c": "text"})
    assert (packed.sizes, len(arrays)) == ((one.nbytes,), 1)
    assert len(packed.pickled) < 1000
    assert np.shares_memory(np.frombuffer(arrays[0], one.dtype), one), "nothing is copied"
    found = packed.unpack(arrays[0])
    assert found["a"] is found["b"]


def test_a_batch_is_its_arrays_and_little_else() -> None:
    batch = TrainingBatch.from_trees(trees_of(3))
    packed, _ = pack(batch)
    samples = [sample for group in batch.groups for sample in group.samples]
    # Of each token its id, log-prob and mask; of each span of tokens what they have in common.
    token_bytes = sum(9 * len(sample.token_ids) for sample in samples)
    assert sum(packed.sizes) == token_bytes + sum(17 * len(sample.spans) for sample in samples)
    found: TrainingBatch = travelled(batch)
    assert (found.owners, found.trees, found.failed) == (batch.owners, batch.trees, batch.failed)
    theirs = [sample for group in found.groups for sample in group.samples]
    for one, other in zip(samples, theirs, strict=True):
        assert (one.task_id, one.sample, one.reward) == (other.task_id, other.sample, other.reward)
        for name in ("token_ids", "mask", "behaviour", "spans"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
            assert getattr(one, name).dtype == getattr(other, name).dtype
            assert not getattr(one, name).flags.writeable, "as on the other ranks"


def test_memory_goes_with_the_last_array_of_it() -> None:
    before = memory_files()
    found = travelled([np.arange(1000), np.arange(1000)])
    kept = found[1][500:]
    del found
    assert memory_files() > before
    assert kept.tolist() == [*range(500, 1000)]
    del kept
    assert memory_files() == before


def test_memory_goes_with_a_receiver_that_never_takes_it() -> None:
    before = memory_files()
    ours, theirs = Pipe()
    shared = SharedObject(np.arange(1000))
    shared.send(ours, os.getpid())
    del shared
    theirs.close()
    ours.close()
    assert memory_files() == before


def test_a_closed_socket_is_the_end() -> None:
    ours, theirs = Pipe()
    ours.close()
    with theirs, pytest.raises(EOFError):
        receive_object(theirs)


def test_what_has_no_arrays_needs_no_descriptor() -> None:
    ours, theirs = Pipe()
    with ours, theirs, socket.socket(fileno=os.dup(theirs.fileno())) as raw:
        SharedObject(("forget", 3, np.zeros(0))).send(ours, os.getpid())
        name, version, empty = receive_object(theirs)
        assert (name, version, len(empty)) == ("forget", 3, 0)
        raw.setblocking(False)
        with pytest.raises(BlockingIOError):
            raw.recv(1)

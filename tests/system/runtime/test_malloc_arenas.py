"""Threads of a trainer share one arena of malloc. Mutant seen caught: the call left out."""

import re
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, tempfile, threading
from agentrl.runtime.machine import share_malloc_arena

if sys.argv[1] == "shared":
    share_malloc_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.fdopen.restype = ctypes.c_void_p
barrier = threading.Barrier(4)

def work():
    barrier.wait()
    libc.malloc(100_000)
    barrier.wait()

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
with tempfile.TemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fdopen(file.fileno(), b"w"))
    libc.malloc_info(0, stream)
    libc.fflush(stream)
    file.seek(0)
    sys.stdout.write(file.read().decode())
"""


def count_arenas(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
    )
    return len(re.findall("<heap nr=", done.stdout))


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone has these arenas")
def test_threads_share_an_arena() -> None:
    assert count_arenas("shared") == 1
    assert count_arenas("apart") > 1

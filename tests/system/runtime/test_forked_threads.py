"""Threads after a fork, which has none but the one that forked.

Mutant seen caught: a child is given its parent's threads, so that its first call never returns.
"""

import asyncio
import os
import threading

from agentrl.runtime.threads import list_idle_threads, run_in_thread

TIME_S = 30


def test_the_child_of_a_fork_starts_threads_of_its_own() -> None:
    asyncio.run(run_in_thread(threading.current_thread))
    while not list_idle_threads():
        pass
    if (pid := os.fork()) == 0:
        os._exit(asyncio.run(asyncio.wait_for(run_in_thread(lambda: 7), TIME_S)))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7

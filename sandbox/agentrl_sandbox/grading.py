"""Sessions to grade in: fresh, under limits of their own, isolated as the run's settings say."""

from dataclasses import replace

from agentrl.grading import OpenSession
from agentrl.sandbox import Limits, Sandbox, sandbox_settings, using_sandbox
from agentrl_sandbox import open_session

CHECKER_LIMITS = Limits(
    wall_s=20.0,
    cpu_s=3.0,
    memory_bytes=256 * 2**20,
    processes=8,
    open_files=64,
    file_bytes=2 * 2**20,
    disk_bytes=32 * 2**20,
    output_bytes=2 * 2**10,
)
"""Of one test. An endless loop ends by CPU time, which a busy machine does not shorten."""


def checker_sessions(limits: Limits = CHECKER_LIMITS) -> OpenSession:
    """Return a function that opens sessions to grade in: never one that an episode has had.

    Inside a run's scope they share one pool, apart from the pool of the episodes.
    """

    async def open_one() -> Sandbox:
        settings = replace(sandbox_settings(), limits=limits, after_timeout="fresh")
        with using_sandbox(settings):
            return await open_session()

    return open_one

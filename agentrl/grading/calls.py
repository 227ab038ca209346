"""Tests that call a function of an artefact: run in fresh sessions, judged on the host."""

import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.errors import ConfigError
from agentrl.grading import harness
from agentrl.grading.artefacts import ArtefactSet
from agentrl.grading.equality import TOLERANCE, check_json, read_json, same
from agentrl.grading.grade import GradeReport, TestResult
from agentrl.sandbox import Sandbox

OpenSession = Callable[[], Awaitable[Sandbox]]
"""Opens a fresh session under the checker's own settings; a pool's `open` is one."""

RESULT_BYTES = 256 * 2**10
"""Of one returned value, as JSON."""
_RESULT = ".agentrl-result.json"
_CPU_LIMIT = "CPU time"
"""In the error of a session that has used up its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTest:
    """One call with hidden arguments, and what it must return. Both are JSON values."""

    id: str
    arguments: tuple[Any, ...]
    wanted: Any

    def __post_init__(self) -> None:
        check_json(self.arguments, f"the arguments of test {self.id!r}")
        check_json(self.wanted, f"what test {self.id!r} wants")


async def grade_calls(
    artefacts: ArtefactSet,
    tests: Sequence[CallTest],
    *,
    open_session: OpenSession,
    entry: str = "solution.py",
    function: str = "solve",
    timeout_s: float = 10.0,
    tolerance: float = TOLERANCE,
    timeouts_max: int = 2,
) -> GradeReport:
    """Call `function` of the artefact `entry` once per test, each time in a session of its own.

    A session gets the artefacts and one test's arguments. What comes back is a JSON value, compared
    here by `same`. An exception, a timeout (`timeout_s`, or the CPU limit of the session), too much
    memory or a crash fails the test; after `timeouts_max` tests that ran out of time the rest is
    not run, and fails. `SandboxError` when a session could not be had.
    """
    if not tests:
        raise ConfigError("there are no tests to grade by; pass at least one CallTest")
    results: list[TestResult] = []
    late = 0
    for test in tests:
        if artefacts.get(entry) is None:
            why = artefacts.refused.get(entry, "the file does not exist")
            results.append(TestResult(id=test.id, status="missing", error=f"{entry}: {why}"))
        elif late >= timeouts_max:
            why = f"{late} tests before this one ran out of time"
            results.append(TestResult(id=test.id, status="skipped", error=why))
        else:
            session = await open_session()
            try:
                code = _build_cell(entry, function, test)
                results.append(
                    await _grade_one(session, artefacts, test, code, timeout_s, tolerance)
                )
            finally:
                await session.close()
            late += _is_out_of_time(results[-1])
    return GradeReport(tests=tuple(results), artefacts=artefacts.manifest())


def _is_out_of_time(result: TestResult) -> bool:
    return result.status == "timeout" or (result.status == "limit" and _CPU_LIMIT in result.error)


def _build_cell(entry: str, function: str, test: CallTest) -> str:
    arguments = json.dumps(test.arguments)
    call = f"call_function({entry!r}, {function!r}, {arguments!r}, {_RESULT!r})"
    return f"{inspect.getsource(harness)}\n\n{call}\n"


async def _grade_one(
    session: Sandbox,
    artefacts: ArtefactSet,
    test: CallTest,
    code: str,
    timeout_s: float,
    tolerance: float,
) -> TestResult:
    try:
        for file in artefacts.files:
            await session.write(file.path, file.data)
    except OSError as error:
        # Names that the sandbox refuses, or more bytes than a checker's session holds.
        why = f"the artefacts do not fit in the checker's session: {error}"
        return TestResult(id=test.id, status="missing", error=why)
    ran = await session.exec(code, timeout_s=timeout_s)
    if not ran.ok:
        return TestResult(id=test.id, status=ran.status, error=ran.error or "", seconds=ran.seconds)
    try:
        got = read_json(await session.read(_RESULT), limit_bytes=RESULT_BYTES)
    except (OSError, ValueError) as error:
        why = f"no value was returned: {error}"
        return TestResult(id=test.id, status="error", error=why, seconds=ran.seconds)
    wanted = json.loads(json.dumps(test.wanted))  # tuples are lists now
    if same(wanted, got, tolerance=tolerance):
        return TestResult(id=test.id, status="ok", seconds=ran.seconds)
    return TestResult(
        id=test.id, status="wrong", error=f"returned {_shorten(got)}", seconds=ran.seconds
    )


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."

"""A checker's own program, in a fresh session of its own, over artefacts that are only data.

For what no call can test: a report, a picture, a table. The program and its files come from the
environment and the episode never saw them. The artefacts lie below `artefacts/` as bytes. A program
that imports, executes or unpickles one of them hands the grade to it, so it must not; to run graded
code, run it with `grade_calls` and judge what comes back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from agentrl.errors import EnvError
from agentrl.grading.artefacts import ArtefactSet
from agentrl.grading.calls import OpenSession
from agentrl.grading.equality import read_json
from agentrl.grading.grade import GradeReport, TestResult
from agentrl.sandbox import Sandbox

VERDICT = "verdict.json"
_VERDICT_BYTES = 256 * 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtefactChecker:
    """A trusted program that judges artefacts by reading them."""

    program: str
    """Python, run as one cell. It writes `verdict.json`: `{"<test id>": ""}` for a test passed, or
    the reason as text for one that failed."""
    tests: Sequence[str]
    """The ids the verdict must name, no more and no fewer."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Files that the episode never saw, by path below `checker/`."""
    timeout_s: float = 30.0


async def judge_with(
    checker: ArtefactChecker, artefacts: ArtefactSet, *, open_session: OpenSession
) -> GradeReport:
    """Run a checker's program over artefacts and return what it found.

    Only a whole verdict counts: a program that ends in any other way than by writing one, `exit(0)`
    included, is broken, and raises `EnvError`; a broken checker is nobody's score. Artefacts that
    do not fit in its session pass no test. `SandboxError` when no session could be had.
    """
    session = await open_session()
    try:
        await _write_files(session, checker)
        try:
            for file in artefacts.files:
                await session.write(f"artefacts/{file.path}", file.data)
        except OSError as error:
            why = f"the artefacts do not fit in the checker's session: {error}"
            missing = (TestResult(id=name, status="missing", error=why) for name in checker.tests)
            return GradeReport(tests=tuple(missing), artefacts=artefacts.manifest())
        ran = await session.exec(checker.program, timeout_s=checker.timeout_s)
        if not ran.ok:
            raise EnvError(f"the checker's program failed ({ran.status}): {ran.error}")
        try:
            raw_verdict = read_json(await session.read(VERDICT), limit_bytes=_VERDICT_BYTES)
        except (OSError, ValueError) as error:
            raise EnvError(f"the checker's program wrote no {VERDICT}: {error}") from error
    finally:
        await session.close()
    verdict = _check_verdict(raw_verdict, checker.tests)
    results = tuple(
        TestResult(id=name, status="wrong" if verdict[name] else "ok", error=verdict[name])
        for name in checker.tests
    )
    return GradeReport(tests=results, artefacts=artefacts.manifest())


async def _write_files(session: Sandbox, checker: ArtefactChecker) -> None:
    for path, data in checker.files.items():
        try:
            await session.write(f"checker/{path}", data)
        except OSError as error:
            raise EnvError(f"the checker's files do not fit in its session: {error}") from error


def _check_verdict(found: Any, tests: Sequence[str]) -> dict[str, str]:
    """Return a verdict that names exactly the tests, each with text; `EnvError` otherwise."""
    if isinstance(found, dict):
        verdict = cast("dict[str, Any]", found)
        if verdict.keys() == set(tests) and all(type(why) is str for why in verdict.values()):
            return verdict
    raise EnvError(
        f"the checker's {VERDICT} must map each of {list(tests)} to text, which is empty for a "
        f"passed test; it has {str(found)[:200]}"
    )

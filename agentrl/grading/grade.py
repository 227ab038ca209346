"""A grade is data: what passed, what did not and why, and of which artefacts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agentrl.sandbox import ExecStatus

TestStatus = ExecStatus | Literal["wrong", "missing", "skipped"]
"""`ok`: passed. `wrong`: ran, and returned something else. `missing`: the artefact to run is not
there. `skipped`: not run, because too many tests before it ran out of time. Everything else is what
the sandbox says of the graded code."""
ERROR_CHARACTERS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """Result of one hidden test. Two results are equal whatever time they took."""

    __test__ = False  # for pytest: this is no test of ours

    id: str
    status: TestStatus
    error: str = ""
    """For people: bounded, and without what was wanted."""
    seconds: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        if len(self.error) > ERROR_CHARACTERS:
            object.__setattr__(self, "error", "..." + self.error[3 - ERROR_CHARACTERS :])

    @property
    def passed(self) -> bool:
        """Whether the test passed."""
        return self.status == "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeReport:
    """The tests of one set of artefacts. No clock enters the score."""

    tests: tuple[TestResult, ...]
    artefacts: Mapping[str, Any]
    """The manifest of what was graded; see `ArtefactSet.manifest`."""

    def __post_init__(self) -> None:
        names = [test.id for test in self.tests]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a grade needs tests with distinct ids, got {names}")

    @property
    def score(self) -> float:
        """Return the share of tests passed, from 0 to 1."""
        return sum(test.passed for test in self.tests) / len(self.tests)

    def to_json(self) -> dict[str, Any]:
        """Return the grade in JSON's types."""
        tests = [{**asdict(test), "passed": test.passed} for test in self.tests]
        return {"score": self.score, "tests": tests, "artefacts": dict(self.artefacts)}

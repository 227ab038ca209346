"""Student's quantiles: those of the tables, and the normal ones in the limit."""

import statistics

import pytest

from agentrl.runtime.student import two_sided_t


@pytest.mark.parametrize(
    ("degrees", "t"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (10, 2.22814), (199, 1.97196)],
)
def test_student_quantiles_are_those_of_the_tables(degrees: int, t: float) -> None:
    assert two_sided_t(0.95, degrees) == pytest.approx(t, rel=2e-6)


def test_student_becomes_normal() -> None:
    normal = statistics.NormalDist().inv_cdf(0.995)
    assert two_sided_t(0.99, 20_000) == pytest.approx(normal, rel=1e-3)


@pytest.mark.parametrize(("confidence", "degrees"), [(0.95, 0), (0.0, 5), (1.0, 5)])
def test_student_refuses_what_it_has_no_answer_for(confidence: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="degrees"):
        two_sided_t(confidence, degrees)

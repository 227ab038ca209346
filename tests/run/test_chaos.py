"""Parts of a run on a Ray cluster of three machines are killed: benchmarks/chaos.py, short."""

from pathlib import Path

import pytest

from benchmarks.chaos import SHARES, Kind, chaos, strikes

KINDS: list[Kind] = ["machine", "trainer"]
"""A machine goes with its workers and its engine; `benchmarks/chaos.py` kills those alone too."""


def test_every_kind_has_its_share_in_any_order() -> None:
    kinds = strikes(20, seed=1)
    assert sorted(kinds) == sorted(SHARES * 2 + SHARES[:4])
    assert kinds == strikes(20, seed=1)
    assert kinds != strikes(20, seed=2)


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_run_whose_parts_are_killed_loses_nothing(tmp_path: Path) -> None:
    lost = chaos(tmp_path, KINDS, seed=1)
    assert lost.is_clean, lost.table()
    assert lost.turns > 0
    assert lost.groups > 0
    assert sum(lost.kills.values()) == len(KINDS)

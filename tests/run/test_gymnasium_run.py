"""The example with an environment of Gymnasium's: in words of its own, from recordings."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.metrics.writer import read_metrics
from agentrl.run.train import train

EXAMPLE = Path(__file__).parents[2] / "examples" / "gymnasium"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_policy_that_hits_at_random_learns_when_to_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("blackjack.py", "blackjack.yaml"):
        shutil.copy(EXAMPLE / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    subprocess.run([sys.executable, "blackjack.py"], check=True, timeout=120)
    result = train("blackjack.yaml")
    rewards = [line["reward/mean"] for line in read_metrics(result.folder)]
    # A player at random loses 0.35 of its stake, one who plays by the book 0.05.
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.12

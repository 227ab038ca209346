"""A run over three of Harbor's tasks, each episode in a container: its reward rises.

The policy starts from what the oracle does and from guesses, half of each; what is left to learn is
to do it.
"""

from pathlib import Path

import pytest

from agentrl.metrics.writer import read_metrics
from agentrl.run.train import train

pytestmark = pytest.mark.docker
ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_three_tasks_are_learnt(tmp_path: Path) -> None:
    config = ROOT / "configs" / "harbor.yaml"
    result = train(
        config, {"run.folder": str(tmp_path), "env.id": f"harbor:{ROOT / 'examples' / 'harbor'}"}
    )
    rewards = [line["reward/mean"] for line in read_metrics(result.folder)]
    assert result.before["pass@1"] < 0.75
    assert rewards[0] < rewards[-1]
    assert sum(rewards[-2:]) / 2 > 0.85
    assert result.after["pass@1"] > 0.85

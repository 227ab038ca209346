"""Steps of the local engine take turns of the event loop that a test can count."""

import math

import pytest

from agentrl.engine import local


@pytest.fixture(autouse=True)
def never_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep passes on the event loop however long a busy machine takes for one."""
    monkeypatch.setattr(local, "THREAD_S", math.inf)

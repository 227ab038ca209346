"""reasoning-gym's verifiers, in workers that can be killed."""

import importlib
import os
from collections.abc import Mapping
from typing import Any

from agentrl_envs.adapters.hosted.verdict_worker import VerdictWorker


def preload() -> None:
    """Import the library, on one thread: there are as many workers as may be busy at once."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    importlib.import_module("agentrl_envs.reasoning.mixture")
    importlib.import_module("agentrl_envs.reasoning.optional_pycosat").import_factory()


class ReasoningWorker(VerdictWorker):
    """Gives the verdicts of families' verifiers."""

    def score(
        self,
        settings: Mapping[str, Any],
        question: str,
        reference: Any,
        entry: Mapping[str, Any],
        answer: str,
    ) -> float:
        from agentrl_envs.reasoning.mixture import family_of
        from agentrl_envs.reasoning.record import from_json

        family = family_of(**settings)
        problem = {"question": question, "answer": reference, **from_json(entry)}
        with self.limited():
            return family.judge(answer, problem)


EPISODE = ReasoningWorker

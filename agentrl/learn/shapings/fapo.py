"""FAPO: a right answer that came of a wrong step is worth less than a sound one."""

from agentrl.authoring.step_judge import FIRST_ERROR_TURN
from agentrl.config.learning.shaping import FapoShaping
from agentrl.learn.method import LearnMethod, bind_knobs
from agentrl.learn.sample import TrainingSample


def fapo(
    sample: TrainingSample,
    *,
    component: str = FIRST_ERROR_TURN,
    right_above: float = 0.0,
    right: float = 1.0,
    wrong: float = -1.0,
    flaw: float = 1.0,
) -> float:
    """Return `wrong`, `right`, or `right` - `flaw` for what is right and has a wrong turn.

    The judge's verdict is the reward component of that name: the first wrong turn, negative for
    none. Without one a right trajectory is sound, so a judge that fails costs nobody anything.
    With flaw = 1 a flawed trajectory's advantage in its group is positive while flawed ones
    outnumber the sound ones, and negative after. Source: FAPO (arXiv 2510.22543) and its code.
    """
    if sample.reward <= right_above:
        return wrong
    return right - flaw if sample.components.get(component, -1.0) >= 0 else right


METHOD = LearnMethod(FapoShaping, bind_knobs(fapo), "FAPO, arXiv 2510.22543; yyDing1/FAPO")

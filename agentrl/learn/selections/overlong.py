"""DAPO's overlong filter: what a limit of ours cut off has a reward, and does not train."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agentrl.config.learning.selection import OverlongSelection
from agentrl.learn.method import LearnMethod, bind_knobs
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.selection import SelectionContext


def overlong(rows: Sequence[CreditedSample], moment: SelectionContext) -> list[CreditedSample]:
    """Return the rows that were not truncated.

    The others stay in the baseline of their group, which is behind them, and are in no denominator.
    Where nothing is left that could train, every row comes back without credit: the step leaves the
    weights alone. Source: Yu et al. 2025 (arXiv 2503.14476), overlong filtering.
    """
    complete_rows = [row for row in rows if not row.sample.truncated]
    if any(row.sample.sampled_tokens for row in complete_rows):
        return complete_rows
    return [replace(row, advantages=np.zeros_like(row.advantages)) for row in rows]


METHOD = LearnMethod(OverlongSelection, bind_knobs(overlong), "Yu et al. 2025, arXiv 2503.14476")

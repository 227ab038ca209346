"""Answer in the agent's last message."""

import re

from agentrl.rewards import tagged_answer

_LABELLED = re.compile(r"\banswer:", re.IGNORECASE)
_THOUGHTS_END = "</think>"


def final_answer(text: str) -> str:
    """Return the answer a text gives, stripped of white space.

    The last `<answer>...</answer>` counts, else what follows the last `Answer:`, else all of it;
    thoughts up to `</think>` never do.
    """
    text = text.rpartition(_THOUGHTS_END)[2]
    tagged = tagged_answer(text)
    return (_LABELLED.split(text)[-1] if tagged is None else tagged).strip()

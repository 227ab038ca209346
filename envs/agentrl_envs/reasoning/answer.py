"""What the agent's last message gives as its answer."""

import re

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_LABELLED = re.compile(r"\banswer:", re.IGNORECASE)
_THOUGHTS_END = "</think>"


def final_answer(text: str) -> str:
    """Return the answer a text gives, stripped of white space.

    The last `<answer>...</answer>` counts, else what follows the last `Answer:`, else all of it;
    thoughts up to `</think>` never do.
    """
    text = text.rpartition(_THOUGHTS_END)[2]
    if tagged := _TAGGED.findall(text):
        return tagged[-1].strip()
    return _LABELLED.split(text)[-1].strip()

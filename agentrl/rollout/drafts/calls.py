"""Position in a turn of the tool call that a cut would leave incomplete."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from agentrl.env import Action


def find_call_cut(parse: Callable[[Sequence[int]], Action], tokens: Sequence[int], cut: int) -> int:
    """Return `cut`, or where the call begins that is open there.

    A call is open where its first tokens cannot be read as one. Takes a number of readings that
    grows with the logarithm of the cut.
    """
    here = parse(tokens[:cut])
    if not here.malformed:
        return cut
    begun, whole = _count_calls(here), len(here.tool_calls)
    opened = bisect_left(range(cut), begun, key=lambda n: _count_calls(parse(tokens[:n])))
    text_length = len(parse(tokens[:opened]).text.rstrip())

    # The mark that opens a call may be several tokens, which are read as text before the last.
    def is_before(n: int) -> bool:
        action = parse(tokens[:n])
        return len(action.tool_calls) >= whole and len(action.text.rstrip()) >= text_length

    return bisect_left(range(opened), True, key=is_before)


def _count_calls(action: Action) -> int:
    return len(action.tool_calls) + len(action.malformed)

"""Stop strings: the text of a completion is watched while its tokens come."""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, as a tokenizer's `decode` without clean-up."""


def ends_with_stop(tokens: Sequence[int], stops: Sequence[str], decode: Decode) -> bool:
    """Return whether the last token completed a stop string.

    Called after every token, so only a tail long enough to hold the longest string is decoded. A
    tail may begin inside a character; twice the length keeps what that garbles out of the way.
    """
    if not stops:
        return False
    enough = 2 * max(map(len, stops)) + 4
    window = 8
    while True:
        text = decode(tokens[-window:])
        if len(text) >= enough or window >= len(tokens):
            return any(stop in text for stop in stops)
        window *= 2

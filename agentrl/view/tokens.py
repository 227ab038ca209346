"""The tokens of a group's tree as the page takes them: short numbers, and no secrets."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import isfinite
from typing import Any

from agentrl.trajectory import Node, Tree
from agentrl.view.redaction import SecretRedaction
from agentrl.view.token_texts import TokenTexts

HIDDEN_ID = -1
"""Stands for a token that is part of a secret."""
_HIDDEN_TEXT = "\u2588"
MAX_TOKEN = 400
"""Letters of one token; a vocabulary may hold longer ones."""

_SHORT = "%.5g"


def hidden_tokens(
    tree: Tree, ends: Iterable[int], *, redaction: SecretRedaction, vocabulary: TokenTexts
) -> dict[int, set[int]]:
    """Return the tokens of each node that are part of a secret, on the paths to `ends`.

    A secret may begin in one node and end in the next, so whole paths are searched.
    """
    positions: dict[int, set[int]] = {}
    for end in {*ends}:
        path = [(id, enumerate(tree.node(id).token_ids)) for id in tree.path_ids(end)]
        tokens = [(id, at, token) for id, numbered in path for at, token in numbered]
        texts = [vocabulary.text(token) for _, _, token in tokens]
        stops = [*accumulate(map(len, texts))]
        for first, last in redaction.spans("".join(texts)):
            for (id, at, _), stop, text in zip(tokens, stops, texts, strict=True):
                if stop > first and stop - len(text) < last:
                    positions.setdefault(id, set()).add(at)
    return positions


def render_nodes(
    tree: Tree,
    places: Mapping[int, int],
    hidden: Mapping[int, set[int]],
    vocabulary: TokenTexts,
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Return nodes of a tree, and the texts of all tokens in them by id.

    `places` has the nodes to show, in order, with their places among each other.
    """
    nodes = [_render_node(tree.node(id), hidden.get(id, set()), places) for id in places]
    used = {id for node in nodes for id in node["ids"]}
    texts = {id: cut(text, MAX_TOKEN) for id, text in vocabulary.texts(used - {HIDDEN_ID}).items()}
    return nodes, texts | {HIDDEN_ID: _HIDDEN_TEXT}


def cut(text: str, limit: int) -> str:
    """Return a text of at most `limit` letters, and how many more there were."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[{len(text) - limit:,} more characters are left out]"


def short(values: Sequence[float]) -> Any:
    """Return numbers with five digits; one for all where they are equal, None for NaN."""
    if values and [*values].count(values[0]) == len(values):
        # Most columns are: the versions of a turn, the advantages of a trajectory.
        return _round(values[0])
    numbers = [*map(_round, values)]
    return numbers[0] if numbers and all(value == numbers[0] for value in numbers) else numbers


def _render_node(node: Node, hidden: set[int], places: Mapping[int, int]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "parent": None if node.parent is None else places[node.parent],
        "source": node.source,
        "turn": node.turn,
        "s": round(node.seconds, 4),
        "ids": [HIDDEN_ID if at in hidden else id for at, id in enumerate(node.token_ids)],
    }
    if node.source == "sampled":
        fields |= {"logprobs": short(node.logprobs), "versions": short(node.versions)}
    if node.entropies:
        fields["entropies"] = short(node.entropies)
    named = {"status": node.tool_status, "withdraws": node.withdraws, "resumes": node.resumes}
    return fields | {name: value for name, value in named.items() if value}


def _round(value: float) -> float | None:
    number = float(_SHORT % value)
    if not isfinite(number):
        return None
    return int(number) if number.is_integer() else number

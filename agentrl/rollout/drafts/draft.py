"""A trajectory that was played, as a proposal for the next one of its task."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.rollout.drafts.verify import Alternatives
from agentrl.trajectory import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedTurn:
    """Tokens the policy sampled in one turn, with log-probs, versions and alternatives."""

    start: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probs under the policy that wrote each token, in nats."""
    versions: tuple[int, ...]
    entropies: tuple[float, ...] = ()
    alternatives: tuple[Alternatives, ...] = ()
    """Per token the likeliest tokens of the policy that wrote it, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTrajectory:
    """One trajectory: its whole context, and the turns in it that were sampled."""

    token_ids: tuple[int, ...]
    turns: tuple[DraftedTurn, ...]

    @classmethod
    def from_path(
        cls, path: Sequence[Node], alternatives: Mapping[int, Alternatives] | None = None
    ) -> "DraftTrajectory | None":
        """Return a path from the root as a draft, `alternatives` by position in the context.

        None for a path that shows images: tokens do not tell which, so they cannot be compared;
        and for one with several contexts.
        """
        if any(node.images or node.withdraws or node.resumes for node in path):
            return None
        return cls(
            token_ids=tuple(token for node in path for token in node.token_ids),
            turns=tuple(_turns(path, alternatives or {})),
        )

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens the policy wrote."""
        return sum(len(turn.token_ids) for turn in self.turns)

    @property
    def oldest(self) -> int | None:
        """Return the version of the oldest token; None where nothing was sampled."""
        return min((v for turn in self.turns for v in turn.versions), default=None)

    def plain(self) -> dict[str, Any]:
        """Return the draft as what `agentrl.store.codec` packs; `from_plain` takes it back."""
        context = Node(parent=None, source="prompt", token_ids=self.token_ids, turn=0)
        turns = tuple(
            Node(
                parent=turn.start,
                source="sampled",
                token_ids=turn.token_ids,
                logprobs=turn.logprobs,
                versions=turn.versions,
                entropies=turn.entropies,
                turn=number,
            )
            for number, turn in enumerate(self.turns)
        )
        alternatives = tuple(tuple(tuple(a) for a in turn.alternatives) for turn in self.turns)
        return {"context": context, "turns": turns, "alternatives": alternatives}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "DraftTrajectory":
        """Return the draft of `plain`'s values."""
        turns = (
            DraftedTurn(
                start=node.parent,
                token_ids=node.token_ids,
                logprobs=node.logprobs,
                versions=node.versions,
                entropies=node.entropies,
                alternatives=alternatives,
            )
            for node, alternatives in zip(plain["turns"], plain["alternatives"], strict=True)
        )
        return cls(token_ids=plain["context"].token_ids, turns=tuple(turns))


def _turns(path: Sequence[Node], alternatives: Mapping[int, Alternatives]) -> Iterator[DraftedTurn]:
    start = 0
    parts: list[Node] = []
    for node in path:
        if parts and node.source != "sampled":
            yield _turn(start, parts, alternatives)
            start += sum(len(part.token_ids) for part in parts)
            parts = []
        if node.source == "sampled":
            parts.append(node)
        else:
            start += len(node.token_ids)
    if parts:
        yield _turn(start, parts, alternatives)


def _turn(
    start: int, parts: Sequence[Node], alternatives: Mapping[int, Alternatives]
) -> DraftedTurn:
    tokens = tuple(token for part in parts for token in part.token_ids)
    options = [alternatives.get(at) for at in range(start, start + len(tokens))]
    entropies = tuple(x for part in parts for x in part.entropies)
    return DraftedTurn(
        start=start,
        token_ids=tokens,
        logprobs=tuple(x for part in parts for x in part.logprobs),
        versions=tuple(v for part in parts for v in part.versions),
        entropies=entropies if len(entropies) == len(tokens) else (),
        alternatives=tuple(a for a in options if a is not None) if all(options) else (),
    )

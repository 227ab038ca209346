"""Questions about a world: a chain of facts, each about the object of the one before."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from agentrl.errors import ConfigError
from agentrl.runtime.seeds import derive
from agentrl.task import Split
from agentrl_envs.facts.articles import EVENT_RELATIONS, LINKED
from agentrl_envs.facts.world import FactWorld

HOPS_MAX = 4
_NOUNS = {
    "capital": "the capital of {}",
    "president": "the president of {}",
    "country": "the country of {}",
    "mayor": "the mayor of {}",
    "birthplace": "the birthplace of {}",
    "teacher": "the teacher of {}",
    "author": "the author of {}",
    "setting": "the setting of {}",
    "venue": "the venue of {}",
    "opener": "the opener of {}",
    "theme": "the theme of {}",
}
_QUESTIONS = {
    "capital": "What is the capital of {}?",
    "president": "Who is the president of {}?",
    "country": "In which country is {}?",
    "river": "What is the river of {}?",
    "mayor": "Who is the mayor of {}?",
    "founded": "When was {} founded?",
    "birthplace": "Where was {} born?",
    "born": "What is the birth year of {}?",
    "teacher": "Who was the teacher of {}?",
    "author": "Who wrote {}?",
    "setting": "Where is {} set?",
    "published": "When was {} published?",
    "venue": "Where is {} held?",
    "opener": "Who opens {}?",
    "theme": "What does {} honour?",
    "held": "When was {} first held?",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FactHop:
    """One fact of a chain."""

    subject: str
    relation: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FactQuestion:
    """Question, and the chain of facts that leads to the answer."""

    hops: tuple[FactHop, ...]

    @property
    def answer(self) -> str:
        """Return the object of the last fact."""
        return self.hops[-1].value

    @property
    def text(self) -> str:
        """Return the question, the first subject innermost."""
        subject = self.hops[0].subject
        if self.hops[0].relation in EVENT_RELATIONS:
            subject = f"the {subject}"
        for hop in self.hops[:-1]:
            subject = _NOUNS[hop.relation].format(subject)
        return _QUESTIONS[self.hops[-1].relation].format(subject)


def questions(
    world: FactWorld,
    split: Split,
    seed: int,
    *,
    hops: Sequence[int] = (1, 2, 3, 4),
    heldout_fraction: float = 0.25,
) -> Iterator[FactQuestion]:
    """Yield every question of a split once; lengths of chains take turns.

    A country is in one split with all of its facts, so no fact of a held-out chain is ever asked in
    training. Raises `ConfigError` for lengths that there are not, or a fraction out of range.
    """
    check_hops(hops)
    countries = set(countries_of(world, split, heldout_fraction=heldout_fraction))
    random = Random(derive("questions", world.seed, split, seed))
    pools: list[list[FactQuestion]] = []
    for length in dict.fromkeys(hops):
        pool = [
            FactQuestion(hops=chain)
            for entity in world.entities.values()
            if entity.country in countries
            for chain in chains(world, entity.name, length)
        ]
        random.shuffle(pool)
        pools.append(pool)
    while pools := [pool for pool in pools if pool]:
        for pool in pools:
            yield pool.pop()


def check_hops(hops: Sequence[int]) -> None:
    """Raise `ConfigError` unless these are lengths of chains that there are."""
    if not hops or any(not 1 <= length <= HOPS_MAX for length in hops):
        raise ConfigError(
            f"hops={list(hops)!r} must list one or more chain lengths, from 1 to {HOPS_MAX} facts"
        )


def countries_of(world: FactWorld, split: Split, *, heldout_fraction: float) -> tuple[str, ...]:
    """Return the countries of a split; each split has at least one."""
    if not 0 < heldout_fraction < 1:
        raise ConfigError(
            f"heldout_fraction must be between 0 and 1, got {heldout_fraction}; 0.25 is the default"
        )
    every = sorted(world.countries, key=lambda name: derive("country", world.seed, name))
    held_out = min(len(every) - 1, max(1, round(heldout_fraction * len(every))))
    return tuple(every[:held_out] if split == "heldout" else every[held_out:])


def chains(
    world: FactWorld, subject: str, length: int, before: tuple[FactHop, ...] = ()
) -> Iterator[tuple[FactHop, ...]]:
    """Yield the chains of `length` more facts, which come to no entity twice."""
    met = {hop.subject for hop in before} | {subject}
    for relation, value in world.entities[subject].facts.items():
        if value in met:
            continue
        chain = (*before, FactHop(subject=subject, relation=relation, value=value))
        if length == 1:
            yield chain
        elif relation in LINKED:
            yield from chains(world, value, length - 1, chain)

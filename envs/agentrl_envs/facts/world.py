"""A world of facts: people, towns, works, events and countries, and what relates them.

A relation gives a subject one object. No fact leads from one country to another, so what is asked
about one says nothing about the rest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from random import Random
from typing import Literal

from agentrl.errors import ConfigError
from agentrl.runtime.seeds import derive
from agentrl_envs.facts import names

Kind = Literal["person", "town", "work", "event", "country"]
COUNTRIES_MAX = len(names.COUNTRIES)
_TOWNS, _PEOPLE, _WORKS, _EVENTS = 4, 12, 8, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FactEntity:
    """One thing that an article is about."""

    name: str
    kind: Kind
    country: str
    what: str
    """A trade, a form of art, or the kind again."""
    facts: Mapping[str, str]
    """The object by relation: the name of another entity of the country, or a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactWorld:
    """All entities by name, country after country."""

    seed: int
    entities: Mapping[str, FactEntity]

    @property
    def countries(self) -> tuple[str, ...]:
        """Return the names of the countries in order."""
        return tuple(entity.name for entity in self.of_kind("country"))

    def of_kind(self, kind: Kind) -> tuple[FactEntity, ...]:
        """Return the entities of one kind in order."""
        return tuple(entity for entity in self.entities.values() if entity.kind == kind)


@lru_cache(maxsize=8)
def fact_world(seed: int, *, countries: int = 12) -> FactWorld:
    """Return the world of a seed; equal arguments give one object.

    Raises `ConfigError` for a number of countries that there are no names for.
    """
    if not 2 <= countries <= COUNTRIES_MAX:
        raise ConfigError(
            f"countries must be from 2 to {COUNTRIES_MAX}, got {countries}; 12 is the default"
        )
    random = Random(derive("fact world", seed, countries))
    supply = _Supply.shuffle(random)
    entities: dict[str, FactEntity] = {}
    for country in random.sample(names.COUNTRIES, countries):
        entities |= {entity.name: entity for entity in _country(country, supply, random)}
    return FactWorld(seed=seed, entities=entities)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Supply:
    """Names that were not used yet."""

    people: list[str]
    towns: list[str]
    works: list[str]
    events: list[str]

    @classmethod
    def shuffle(cls, random: Random) -> "_Supply":
        def shuffle_names(separator: str, *parts: Sequence[str]) -> list[str]:
            phrases = [separator.join(choice) for choice in product(*parts)]
            random.shuffle(phrases)
            return phrases

        return cls(
            people=shuffle_names(" ", names.GIVEN, names.FAMILY),
            towns=shuffle_names("", names.TOWN_BEGINNINGS, names.TOWN_ENDINGS),
            works=shuffle_names(" ", ("The",), names.WORK_ADJECTIVES, names.WORK_NOUNS),
            events=shuffle_names(" ", names.EVENT_BEGINNINGS, names.EVENT_ENDINGS),
        )


def _take(supply: list[str], count: int) -> list[str]:
    return [supply.pop() for _ in range(count)]


def _country(name: str, supply: _Supply, random: Random) -> Iterable[FactEntity]:
    towns = _take(supply.towns, _TOWNS)
    people = _take(supply.people, _PEOPLE)
    works = _take(supply.works, _WORKS)
    born = sorted(random.randrange(1790, 1960) for _ in people)
    written = {work: random.randrange(len(people)) for work in works}
    rulers = random.sample(people, _TOWNS + 1)

    yield FactEntity(
        name=name,
        kind="country",
        country=name,
        what="country",
        facts={"capital": towns[0], "president": rulers[0]},
    )
    for town, mayor in zip(towns, rulers[1:], strict=True):
        facts = {
            "country": name,
            "river": random.choice(names.RIVERS),
            "mayor": mayor,
            "founded": str(random.randrange(1100, 1700)),
        }
        yield FactEntity(name=town, kind="town", country=name, what="town", facts=facts)
    for place, person in enumerate(people):
        facts = {"birthplace": random.choice(towns), "born": str(born[place])}
        if place:
            facts["teacher"] = people[random.randrange(place)]
        what = random.choice(names.TRADES)
        yield FactEntity(name=person, kind="person", country=name, what=what, facts=facts)
    years: dict[str, int] = {}
    for work in works:
        years[work] = born[written[work]] + random.randrange(20, 61)
        facts = {
            "author": people[written[work]],
            "setting": random.choice(towns),
            "published": str(years[work]),
        }
        what = random.choice(names.FORMS)
        yield FactEntity(name=work, kind="work", country=name, what=what, facts=facts)
    for event in _take(supply.events, _EVENTS):
        theme = random.choice(works)
        facts = {
            "venue": random.choice(towns),
            "opener": random.choice(people),
            "theme": theme,
            "held": str(years[theme] + random.randrange(1, 40)),
        }
        yield FactEntity(name=event, kind="event", country=name, what="event", facts=facts)

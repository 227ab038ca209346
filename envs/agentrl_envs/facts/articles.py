"""The articles of a world: each fact is stated once, in the article about its subject."""

from agentrl_envs.facts.world import FactEntity

_SENTENCES = {
    "capital": "The capital of {name} is {value}.",
    "president": "The president of {name} is {value}.",
    "country": "{name} lies in {value}.",
    "river": "The river of {name} is the {value}.",
    "mayor": "The mayor of {name} is {value}.",
    "founded": "{name} was founded in {value}.",
    "birthplace": "{name} was born in {value}.",
    "born": "The birth year of {name} is {value}.",
    "teacher": "The teacher of {name} was {value}.",
    "author": "{name} was written by {value}.",
    "setting": "{name} is set in {value}.",
    "published": "{name} was published in {value}.",
    "venue": "The {name} is held in {value}.",
    "opener": "The {name} is opened by {value}.",
    "theme": "The {name} honours {value}.",
    "held": "The {name} was first held in {value}.",
}
RELATIONS = tuple(_SENTENCES)
"""All there are."""
LINKED = frozenset(
    {
        *("capital", "president", "country", "mayor", "birthplace", "teacher"),
        *("author", "setting", "venue", "opener", "theme"),
    }
)
"""Relations whose object has an article."""
EVENT_RELATIONS = frozenset({"venue", "opener", "theme", "held"})
"""Relations of events, whose names take an article."""


def fact_sentence(name: str, relation: str, value: str) -> str:
    """Return the sentence that states one fact."""
    return _SENTENCES[relation].format(name=name, value=value)


def sentences_of(entity: FactEntity, *, linked: bool = False) -> list[str]:
    """Return an article's sentences; with `linked` objects that have an article are `[[so]]`."""
    of_country = (
        "" if entity.kind in ("country", "town") else f" of {_link(entity.country, linked)}"
    )
    article = "an" if entity.what[0] in "aeiou" else "a"
    opening = f"{entity.name} is {article} {entity.what}{of_country}."
    if entity.kind == "event":
        opening = f"The {opening}"
    return [opening] + [
        fact_sentence(entity.name, relation, _link(value, linked and relation in LINKED))
        for relation, value in entity.facts.items()
    ]


def _link(name: str, linked: bool) -> str:
    return f"[[{name}]]" if linked else name

"""State of a wiki: every revision of every article, and the articles that the reader watches."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self

from agentrl.runtime.seeds import derive
from agentrl_envs.facts.articles import sentences_of
from agentrl_envs.facts.world import FactEntity, FactWorld, fact_world
from agentrl_envs.web.sites.asgi import SiteRefusal

COUNTRIES = 3
READER = "You"
_EDITORS = ("Agnes", "Bertil", "Carla", "Dmitri", "Elin", "Fiona", "Gustav", "Hilde")
_AFTER_CONSONANT = re.compile(r"(?<=[^aeiou])ys\Z")
_PLURALS = {"person": "People", "town": "Towns", "work": "Works", "event": "Events"}
TITLE_CHARS_MAX = 80
TEXT_CHARS_MAX = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ArticleRevision:
    """An article as somebody left it."""

    text: str
    categories: tuple[str, ...]
    editor: str
    comment: str


class WikiFacts:
    """The facts that a wiki was written from; never changed, so copies share it."""

    def __init__(self, facts: FactWorld) -> None:
        self.facts = facts

    def __deepcopy__(self, memo: Any) -> Self:
        return self


@dataclass(slots=True, kw_only=True)
class WikiState:
    """The articles by title, in order, and the watch list."""

    world: WikiFacts
    articles: dict[str, list[ArticleRevision]]
    watched: list[str] = field(default_factory=list[str])

    def latest(self, title: str) -> ArticleRevision:
        """Return an article as it is now."""
        if title not in self.articles:
            raise SiteRefusal("There is no such article.")
        return self.articles[title][-1]

    def edit(self, title: str, text: str, categories: Sequence[str], comment: str) -> None:
        """Change an article."""
        self.latest(title)
        self._save(title, text, categories, comment)

    def create(self, title: str, text: str, categories: Sequence[str]) -> str:
        """Begin an article; return its title."""
        title = " ".join(title.split())
        if not title or len(title) > TITLE_CHARS_MAX or not set("/_[]").isdisjoint(title):
            raise SiteRefusal("Please give a title in plain words.")
        if title in self.articles:
            raise SiteRefusal("There is such an article already.")
        self._save(title, text, categories, "new")
        return title

    def restore(self, title: str, number: int) -> None:
        """Make an older revision, counted from 1, the latest again."""
        self.latest(title)
        if not 1 <= number <= len(self.articles[title]):
            raise SiteRefusal("There is no such revision.")
        old = self.articles[title][number - 1]
        self._save(title, old.text, old.categories, f"restored revision {number}")

    def watch(self, title: str) -> None:
        """Put an article on the watch list."""
        self.latest(title)
        if title not in self.watched:
            self.watched.append(title)

    def unwatch(self, title: str) -> None:
        """Take an article off the watch list."""
        self.watched = [watched for watched in self.watched if watched != title]

    @property
    def categories(self) -> list[str]:
        """Return all categories that have an article, in order."""
        return sorted({name for title in self.articles for name in self.latest(title).categories})

    def list_category(self, name: str) -> list[str]:
        """Return the titles of the articles in a category, in order."""
        return sorted(title for title in self.articles if name in self.latest(title).categories)

    def links_to(self, title: str) -> list[str]:
        """Return the titles of the articles that link to one, in order."""
        link = f"[[{title}]]"
        return sorted(other for other in self.articles if link in self.latest(other).text)

    def search(self, query: str) -> list[str]:
        """Return the titles of articles with every word of the query, those in the title first."""
        words = query.casefold().split()
        if not words:
            return []
        title_matches = [t for t in self.articles if all(word in t.casefold() for word in words)]
        title_matches.sort(key=lambda title: (title.casefold() != query.casefold(), title))
        texts = {title: self.latest(title).text.casefold() for title in self.articles}
        text_matches = [t for t, text in texts.items() if all(word in text for word in words)]
        return [
            *title_matches,
            *sorted(title for title in text_matches if title not in title_matches),
        ]

    def _save(self, title: str, text: str, categories: Sequence[str], comment: str) -> None:
        text = "\n".join(line.rstrip() for line in text.replace("\r\n", "\n").split("\n")).strip()
        if not text or len(text) > TEXT_CHARS_MAX:
            raise SiteRefusal("Please write a text.")
        category_names = sorted({" ".join(name.split()) for name in categories} - {""})
        revision = ArticleRevision(
            text=text,
            categories=tuple(category_names),
            editor=READER,
            comment=" ".join(comment.split()),
        )
        self.articles.setdefault(title, []).append(revision)


def wiki(seed: int) -> WikiState:
    """Return the wiki of a seed: every article with a history."""
    facts = fact_world(seed, countries=COUNTRIES)
    random = Random(derive("wiki state", seed))
    articles = {entity.name: _history(entity, random) for entity in facts.entities.values()}
    return WikiState(world=WikiFacts(facts), articles=dict(sorted(articles.items())))


def _history(entity: FactEntity, random: Random) -> list[ArticleRevision]:
    lines = "\n".join(sentences_of(entity, linked=True)).split("\n")
    categories = tuple(sorted(_categories(entity)))
    return [
        ArticleRevision(
            text="\n".join(lines[:length]),
            categories=categories,
            editor=random.choice(_EDITORS),
            comment="begun" if length == 1 else "more facts",
        )
        for length in sorted({1, random.randrange(1, len(lines) + 1), len(lines)})
    ]


def _categories(entity: FactEntity) -> list[str]:
    if entity.kind == "country":
        return ["Countries"]
    categories = [f"{_PLURALS[entity.kind]} of {entity.country}"]
    if entity.kind in ("person", "work"):
        categories.append(_AFTER_CONSONANT.sub("ies", f"{entity.what.capitalize()}s"))
    return categories

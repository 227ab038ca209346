"""Tasks of changing the wiki."""

from random import Random

from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.facts.articles import fact_sentence
from agentrl_envs.web.sites.play import Script, click, fill
from agentrl_envs.web.sites.template import SiteTemplate, UnfitChoice, Wanted
from agentrl_envs.web.sites.wiki.moves import to_article
from agentrl_envs.web.sites.wiki.state import WikiState

_NONSENSE = ("Bananas rule the world.", "I was here!!!", "asdf asdf asdf", "Buy cheap watches.")
_NEW_CATEGORIES = ("Good articles", "To be checked", "Stubs", "With pictures")
_SUBJECTS = ("Bridge", "Library", "Theatre", "Market", "Lighthouse", "School")


def _watch_make(random: Random, wiki: WikiState) -> Wanted:
    title = random.choice(list(wiki.articles))
    return {"goal": f"Put the article {title} on your watch list.", "titles": [title]}


def _watch_do(wiki: WikiState, wanted: Wanted) -> None:
    for title in wanted["titles"]:
        wiki.watch(title)


def _watch_play(page: ObservedPage, wanted: Wanted) -> Script:
    for title in wanted["titles"]:
        page = yield from to_article(page, title)
        page = yield click(page, "button", "Watch")


def _works_make(random: Random, wiki: WikiState) -> Wanted:
    facts = wiki.world.facts
    written: dict[str, list[str]] = {}
    for work in facts.of_kind("work"):
        written.setdefault(work.facts["author"], []).append(work.name)
    fitting = [(author, titles) for author, titles in written.items() if 2 <= len(titles) <= 3]
    if not fitting:
        raise UnfitChoice
    author, titles = random.choice(fitting)
    goal = f"Put every article about a work written by {author} on your watch list."
    return {"goal": goal, "author": author, "titles": sorted(titles)}


def _works_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from to_article(page, wanted["author"])
    for title in wanted["titles"]:
        page = yield click(page, "link", "What links here")
        page = yield click(page, "link", title)
        page = yield click(page, "button", "Watch")
        if title != wanted["titles"][-1]:
            page = yield click(page, "link", wanted["author"])


def _correct_make(random: Random, wiki: WikiState) -> Wanted:
    person = random.choice(wiki.world.facts.of_kind("person"))
    year = person.facts["born"]
    right = str(int(year) + random.choice((-3, -2, -1, 1, 2, 3)))
    sentence = fact_sentence(person.name, "born", year)
    text = wiki.latest(person.name).text.replace(
        sentence, fact_sentence(person.name, "born", right)
    )
    goal = (
        f"The article {person.name} gives a wrong birth year. It must be {right}. Correct it and "
        "change nothing else."
    )
    categories = list(wiki.latest(person.name).categories)
    return {"goal": goal, "title": person.name, "text": text, "categories": categories}


def _edit_do(wiki: WikiState, wanted: Wanted) -> None:
    wiki.edit(wanted["title"], wanted["text"], wanted["categories"], "")


def _correct_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from to_article(page, wanted["title"])
    page = yield click(page, "link", "Edit")
    page = yield fill(page, "Text", wanted["text"])
    yield click(page, "button", "Save")


def _categorise_make(random: Random, wiki: WikiState) -> Wanted:
    title, category = random.choice(list(wiki.articles)), random.choice(_NEW_CATEGORIES)
    goal = f"Put the article {title} into the category {category}, beside those it is in."
    latest = wiki.latest(title)
    return {
        "goal": goal,
        "title": title,
        "text": latest.text,
        "categories": [*latest.categories, category],
    }


def _categorise_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from to_article(page, wanted["title"])
    page = yield click(page, "link", "Edit")
    page = yield fill(page, "Categories", ", ".join(wanted["categories"]))
    yield click(page, "button", "Save")


def _restore_make(random: Random, wiki: WikiState) -> Wanted:
    title = random.choice(list(wiki.articles))
    goal = (
        f"Somebody has put nonsense into the article {title}. Make it as it was before that change."
    )
    revisions = len(wiki.articles[title])
    return {
        "goal": goal,
        "title": title,
        "revision": revisions,
        "nonsense": random.choice(_NONSENSE),
    }


def _restore_prepare(wiki: WikiState, wanted: Wanted) -> None:
    latest = wiki.latest(wanted["title"])
    wiki.edit(wanted["title"], wanted["nonsense"], latest.categories, "better")


def _restore_do(wiki: WikiState, wanted: Wanted) -> None:
    wiki.restore(wanted["title"], wanted["revision"])


def _restore_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from to_article(page, wanted["title"])
    page = yield click(page, "link", "History")
    yield click(page, "button", f"Restore revision {wanted['revision']}")


def _create_make(random: Random, wiki: WikiState) -> Wanted:
    town = random.choice(wiki.world.facts.of_kind("town"))
    subject = random.choice(_SUBJECTS)
    year = random.randrange(1700, 1990)
    text = f"The {subject.lower()} of [[{town.name}]] was opened in {year}."
    title, category = f"{town.name} {subject}", f"Buildings of {town.country}"
    goal = f'Write a new article with the title "{title}", the text "{text}" and the category '
    return {
        "goal": f'{goal}"{category}".',
        "title": title,
        "text": text,
        "categories": [category],
    }


def _create_do(wiki: WikiState, wanted: Wanted) -> None:
    wiki.create(wanted["title"], wanted["text"], wanted["categories"])


def _create_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "link", "New article")
    page = yield fill(page, "Title", wanted["title"])
    page = yield fill(page, "Text", wanted["text"])
    page = yield fill(page, "Categories", wanted["categories"][0])
    yield click(page, "button", "Save")


WRITING: tuple[SiteTemplate[WikiState], ...] = (
    SiteTemplate(name="watch", level=1, make=_watch_make, do=_watch_do, play=_watch_play),
    SiteTemplate(name="watch_works", level=3, make=_works_make, do=_watch_do, play=_works_play),
    SiteTemplate(name="correct", level=2, make=_correct_make, do=_edit_do, play=_correct_play),
    SiteTemplate(
        name="categorise", level=2, make=_categorise_make, do=_edit_do, play=_categorise_play
    ),
    SiteTemplate(
        name="restore",
        level=2,
        make=_restore_make,
        prepare=_restore_prepare,
        do=_restore_do,
        play=_restore_play,
    ),
    SiteTemplate(name="create", level=2, make=_create_make, do=_create_do, play=_create_play),
)
"""Kinds of tasks that leave the wiki changed."""

"""Tasks of changing the wiki."""

from random import Random

from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.facts.articles import fact_sentence
from agentrl_envs.templates import UnfitChoice, Wanted
from agentrl_envs.web.sites.play import Script, click, fill
from agentrl_envs.web.sites.template import SiteTemplate
from agentrl_envs.web.sites.wiki.reading import go_to_article
from agentrl_envs.web.sites.wiki.state import WikiState

_NONSENSE = ("Bananas rule the world.", "I was here!!!", "asdf asdf asdf", "Buy cheap watches.")
_NEW_CATEGORIES = ("Good articles", "To be checked", "Stubs", "With pictures")
_SUBJECTS = ("Bridge", "Library", "Theatre", "Market", "Lighthouse", "School")


def _make_watch(random: Random, wiki: WikiState) -> Wanted:
    title = random.choice(list(wiki.articles))
    return {"goal": f"Put the article {title} on your watch list.", "titles": [title]}


def _do_watch(wiki: WikiState, wanted: Wanted) -> None:
    for title in wanted["titles"]:
        wiki.watch(title)


def _play_watch(page: ObservedPage, wanted: Wanted) -> Script:
    for title in wanted["titles"]:
        page = yield from go_to_article(page, title)
        page = yield click(page, "button", "Watch")


def _make_works(random: Random, wiki: WikiState) -> Wanted:
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


def _play_works(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from go_to_article(page, wanted["author"])
    for title in wanted["titles"]:
        page = yield click(page, "link", "What links here")
        page = yield click(page, "link", title)
        page = yield click(page, "button", "Watch")
        if title != wanted["titles"][-1]:
            page = yield click(page, "link", wanted["author"])


def _make_correct(random: Random, wiki: WikiState) -> Wanted:
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


def _do_edit(wiki: WikiState, wanted: Wanted) -> None:
    wiki.edit(wanted["title"], wanted["text"], wanted["categories"], "")


def _play_correct(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from go_to_article(page, wanted["title"])
    page = yield click(page, "link", "Edit")
    page = yield fill(page, "Text", wanted["text"])
    yield click(page, "button", "Save")


def _make_categorise(random: Random, wiki: WikiState) -> Wanted:
    title, category = random.choice(list(wiki.articles)), random.choice(_NEW_CATEGORIES)
    goal = f"Put the article {title} into the category {category}, beside those it is in."
    latest = wiki.latest(title)
    return {
        "goal": goal,
        "title": title,
        "text": latest.text,
        "categories": [*latest.categories, category],
    }


def _play_categorise(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from go_to_article(page, wanted["title"])
    page = yield click(page, "link", "Edit")
    page = yield fill(page, "Categories", ", ".join(wanted["categories"]))
    yield click(page, "button", "Save")


def _make_restore(random: Random, wiki: WikiState) -> Wanted:
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


def _prepare_restore(wiki: WikiState, wanted: Wanted) -> None:
    latest = wiki.latest(wanted["title"])
    wiki.edit(wanted["title"], wanted["nonsense"], latest.categories, "better")


def _do_restore(wiki: WikiState, wanted: Wanted) -> None:
    wiki.restore(wanted["title"], wanted["revision"])


def _play_restore(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from go_to_article(page, wanted["title"])
    page = yield click(page, "link", "History")
    yield click(page, "button", f"Restore revision {wanted['revision']}")


def _make_create(random: Random, wiki: WikiState) -> Wanted:
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


def _do_create(wiki: WikiState, wanted: Wanted) -> None:
    wiki.create(wanted["title"], wanted["text"], wanted["categories"])


def _play_create(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "link", "New article")
    page = yield fill(page, "Title", wanted["title"])
    page = yield fill(page, "Text", wanted["text"])
    page = yield fill(page, "Categories", wanted["categories"][0])
    yield click(page, "button", "Save")


WRITING: tuple[SiteTemplate[WikiState], ...] = (
    SiteTemplate(name="watch", level=1, make=_make_watch, do=_do_watch, play=_play_watch),
    SiteTemplate(name="watch_works", level=3, make=_make_works, do=_do_watch, play=_play_works),
    SiteTemplate(name="correct", level=2, make=_make_correct, do=_do_edit, play=_play_correct),
    SiteTemplate(
        name="categorise", level=2, make=_make_categorise, do=_do_edit, play=_play_categorise
    ),
    SiteTemplate(
        name="restore",
        level=2,
        make=_make_restore,
        prepare=_prepare_restore,
        do=_do_restore,
        play=_play_restore,
    ),
    SiteTemplate(name="create", level=2, make=_make_create, do=_do_create, play=_play_create),
)
"""Kinds of tasks that leave the wiki changed."""

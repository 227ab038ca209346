"""Tasks of finding something out."""

from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any

from agentrl.env import call
from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.facts.questions import FactQuestion, chains
from agentrl_envs.templates import UnfitChoice, Wanted
from agentrl_envs.web.sites.play import Moves, Script, answer, click
from agentrl_envs.web.sites.template import SiteTemplate, is_same_amount, is_same_text
from agentrl_envs.web.sites.wiki.state import WikiState


def go_to_article(page: ObservedPage, title: str) -> Moves:
    """Search for an article and go to it."""
    page = yield call("fill", id=page.id(name="Search articles"), text=title)
    page = yield click(page, "button", "Search")
    return (yield click(page, "link", title))


def follow_chain(page: ObservedPage, hops: list[Mapping[str, Any]]) -> Moves:
    """Go to the article that states the last fact of a chain, from link to link."""
    page = yield from go_to_article(page, hops[0]["subject"])
    for hop in hops[:-1]:
        page = yield click(page, "link", hop["value"])
    return page


def _make_facts(random: Random, wiki: WikiState, *, lengths: tuple[int, ...]) -> Wanted:
    facts = wiki.world.facts
    entity = random.choice(list(facts.entities.values()))
    hop_chains = list(chains(facts, entity.name, random.choice(lengths)))
    if not hop_chains:
        raise UnfitChoice
    question = FactQuestion(hops=random.choice(hop_chains))
    hops = [{"subject": hop.subject, "value": hop.value} for hop in question.hops]
    return {"goal": question.text, "hops": hops, "answer": question.answer}


def _play_facts(page: ObservedPage, wanted: Wanted) -> Script:
    yield from follow_chain(page, wanted["hops"])
    yield answer(wanted["answer"])


def _make_older(random: Random, wiki: WikiState) -> Wanted:
    pair = random.sample(wiki.world.facts.of_kind("person"), 2)
    years = [int(person.facts["born"]) for person in pair]
    if years[0] == years[1]:
        raise UnfitChoice
    first, second = (person.name for person in pair)
    goal = f"Who was born earlier, {first} or {second}? Answer with the name."
    return {"goal": goal, "names": [first, second], "answer": [first, second][years[1] < years[0]]}


def _play_older(page: ObservedPage, wanted: Wanted) -> Script:
    for name in wanted["names"]:
        page = yield from go_to_article(page, name)
    yield answer(wanted["answer"])


def _make_count(random: Random, wiki: WikiState) -> Wanted:
    # As many works and people of a country as of any other: their number is no secret.
    categories = random.sample([name for name in wiki.categories if " of " not in name], 2)
    goal = (
        f"How many articles are in the categories {categories[0]} and {categories[1]} together? "
        "Answer with the number."
    )
    answer = sum(len(wiki.list_category(name)) for name in categories)
    return {"goal": goal, "categories": categories, "answer": str(answer)}


def _play_count(page: ObservedPage, wanted: Wanted) -> Script:
    first, second = wanted["categories"]
    page = yield click(page, "link", first)
    page = yield click(page, "link", "Main page")
    yield click(page, "link", second)
    yield answer(wanted["answer"])


def _make_editor(random: Random, wiki: WikiState) -> Wanted:
    title = random.choice(list(wiki.articles))
    goal = f"Who made the latest change to the article {title}? Answer with the name."
    return {"goal": goal, "title": title, "answer": wiki.latest(title).editor}


def _play_editor(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from go_to_article(page, wanted["title"])
    yield click(page, "link", "History")
    yield answer(wanted["answer"])


READING: tuple[SiteTemplate[WikiState], ...] = (
    *(
        SiteTemplate(
            name=name,
            level=level,
            make=partial(_make_facts, lengths=lengths),
            play=_play_facts,
            right=is_same_text,
        )
        for name, level, lengths in (
            ("fact", 1, (1,)),
            ("two_facts", 2, (2,)),
            ("chain", 3, (3, 4)),
        )
    ),
    SiteTemplate(name="older", level=2, make=_make_older, play=_play_older, right=is_same_text),
    SiteTemplate(name="count", level=1, make=_make_count, play=_play_count, right=is_same_amount),
    SiteTemplate(name="editor", level=1, make=_make_editor, play=_play_editor, right=is_same_text),
)
"""Kinds of tasks that end with an answer."""

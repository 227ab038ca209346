"""Tasks of finding something out."""

from functools import partial
from random import Random

from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.facts.questions import FactQuestion, chains
from agentrl_envs.web.sites.answers import same_amount, same_text
from agentrl_envs.web.sites.play import Script, answer, click
from agentrl_envs.web.sites.template import SiteTemplate, UnfitChoice, Wanted
from agentrl_envs.web.sites.wiki.moves import along, to_article
from agentrl_envs.web.sites.wiki.state import WikiState


def _facts_make(random: Random, wiki: WikiState, *, lengths: tuple[int, ...]) -> Wanted:
    facts = wiki.world.facts
    entity = random.choice(list(facts.entities.values()))
    hop_chains = list(chains(facts, entity.name, random.choice(lengths)))
    if not hop_chains:
        raise UnfitChoice
    question = FactQuestion(hops=random.choice(hop_chains))
    hops = [{"subject": hop.subject, "value": hop.value} for hop in question.hops]
    return {"goal": question.text, "hops": hops, "answer": question.answer}


def _facts_play(page: ObservedPage, wanted: Wanted) -> Script:
    yield from along(page, wanted["hops"])
    yield answer(wanted["answer"])


def _older_make(random: Random, wiki: WikiState) -> Wanted:
    pair = random.sample(wiki.world.facts.of_kind("person"), 2)
    years = [int(person.facts["born"]) for person in pair]
    if years[0] == years[1]:
        raise UnfitChoice
    first, second = (person.name for person in pair)
    goal = f"Who was born earlier, {first} or {second}? Answer with the name."
    return {"goal": goal, "names": [first, second], "answer": [first, second][years[1] < years[0]]}


def _older_play(page: ObservedPage, wanted: Wanted) -> Script:
    for name in wanted["names"]:
        page = yield from to_article(page, name)
    yield answer(wanted["answer"])


def _count_make(random: Random, wiki: WikiState) -> Wanted:
    # As many works and people of a country as of any other: their number is no secret.
    categories = random.sample([name for name in wiki.categories if " of " not in name], 2)
    goal = (
        f"How many articles are in the categories {categories[0]} and {categories[1]} together? "
        "Answer with the number."
    )
    answer = sum(len(wiki.in_category(name)) for name in categories)
    return {"goal": goal, "categories": categories, "answer": str(answer)}


def _count_play(page: ObservedPage, wanted: Wanted) -> Script:
    first, second = wanted["categories"]
    page = yield click(page, "link", first)
    page = yield click(page, "link", "Main page")
    yield click(page, "link", second)
    yield answer(wanted["answer"])


def _editor_make(random: Random, wiki: WikiState) -> Wanted:
    title = random.choice(list(wiki.articles))
    goal = f"Who made the latest change to the article {title}? Answer with the name."
    return {"goal": goal, "title": title, "answer": wiki.latest(title).editor}


def _editor_play(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield from to_article(page, wanted["title"])
    yield click(page, "link", "History")
    yield answer(wanted["answer"])


READING: tuple[SiteTemplate[WikiState], ...] = (
    SiteTemplate(
        name="fact",
        level=1,
        make=partial(_facts_make, lengths=(1,)),
        play=_facts_play,
        right=same_text,
    ),
    SiteTemplate(
        name="two_facts",
        level=2,
        make=partial(_facts_make, lengths=(2,)),
        play=_facts_play,
        right=same_text,
    ),
    SiteTemplate(
        name="chain",
        level=3,
        make=partial(_facts_make, lengths=(3, 4)),
        play=_facts_play,
        right=same_text,
    ),
    SiteTemplate(name="older", level=2, make=_older_make, play=_older_play, right=same_text),
    SiteTemplate(name="count", level=1, make=_count_make, play=_count_play, right=same_amount),
    SiteTemplate(name="editor", level=1, make=_editor_make, play=_editor_play, right=same_text),
)
"""Kinds of tasks that end with an answer."""

"""The corpus, the questions and the player of a made-up world."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from agentrl.env import Action, call, say
from agentrl.message import Message
from agentrl.task import Split, Task
from agentrl_envs.facts.articles import fact_sentence, sentences_of
from agentrl_envs.facts.questions import FactQuestion, questions
from agentrl_envs.facts.world import FactWorld, fact_world
from agentrl_envs.reasoning.env import format_answer
from agentrl_tools.search import CorpusDocument, SearchCorpus

_ASKED_BY = {
    "birthplace": "born in",
    "born": "birth year",
    "author": "written by",
    "country": "lies in",
    "setting": "set in",
    "venue": "held in",
    "opener": "opened by",
    "theme": "honours",
    "held": "first held",
}
"""Words of the sentence that states a relation, where its name is none of them."""


@lru_cache(maxsize=8)
def corpus_of(seed: int, countries: int) -> SearchCorpus:
    """Return the articles of a world; equal arguments give one object."""
    world = fact_world(seed, countries=countries)
    articles = [
        CorpusDocument(id=entity.name, text="\n".join(sentences_of(entity)))
        for entity in world.entities.values()
    ]
    return SearchCorpus(articles, source=f"the wiki of world {seed}")


def wiki_tasks(
    world: FactWorld, *, hops: Sequence[int], heldout_fraction: float, size: int | None
) -> Callable[[Split, int], Iterator[Task]]:
    """Return the task source of a world's questions."""

    def tasks(split: Split, seed: int) -> Iterator[Task]:
        fact_questions = questions(world, split, seed, hops=hops, heldout_fraction=heldout_fraction)
        for number, question in enumerate(fact_questions):
            if number == size:
                return
            yield _task(question, split)

    return tasks


def play(task: Task, seen: Sequence[Message]) -> Action:
    """Look up one fact after the other, by a search or else in the article; then answer."""
    hops: list[dict[str, Any]] = task.data["hops"]
    read = "\n".join(message.text for message in seen if message.role == "tool")
    for hop in hops:
        if fact_sentence(hop["subject"], hop["relation"], hop["value"]) not in read:
            return _look_up(hop, seen)
    return say(format_answer(str(task.answer), seen))


def _look_up(hop: dict[str, Any], seen: Sequence[Message]) -> Action:
    query = f"{hop['subject']} {_ASKED_BY.get(hop['relation'], hop['relation'])}"
    past_calls = [call for message in seen for call in message.tool_calls]
    if {"query": query} not in [call.arguments for call in past_calls]:
        return call("search", query=query)
    pages = sum(call.arguments.get("document") == hop["subject"] for call in past_calls)
    return call("open", document=hop["subject"], page=pages + 1)


def _task(question: FactQuestion, split: Split) -> Task:
    hops = [
        {"subject": hop.subject, "relation": hop.relation, "value": hop.value}
        for hop in question.hops
    ]
    return Task(
        prompt=question.text,
        answer=question.answer,
        split=split,
        data={"hops": hops},
        tags=(f"{len(hops)} hops",),
    )

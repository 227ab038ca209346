"""Questions with search tools at hand: one corpus, many questions, an answer in tags.

Answers are compared as Rajpurkar et al. 2016 (SQuAD) do: without case, punctuation and articles.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from agentrl.authoring.tool_env import Tasks, ToolEnv
from agentrl.env import Action
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.rewards import last_text
from agentrl.task import Task
from agentrl_envs.facts.questions import check_hops, countries_of
from agentrl_envs.facts.world import fact_world
from agentrl_envs.reasoning.env import final_answer
from agentrl_envs.retrieval.corpus_questions import (
    make_question_tasks,
    play_question,
    read_questions,
)
from agentrl_envs.retrieval.wiki import corpus_of, play, wiki_tasks
from agentrl_tools.search import Search, SearchCorpus, read_corpus

Scoring = Literal["exact", "f1"]
SCORINGS: tuple[Scoring, ...] = ("exact", "f1")

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = re.compile(
    rf"(?!(?<=\d)\.\d|(?<![\w.])[-.]\.?\d|(?<=\w)[+#])[{re.escape(string.punctuation)}]"
)
"""Not the point and the sign of a number, nor what tells C++ from C."""
SYSTEM = (
    "Answer the question from the documents. Look for them with the tool `search`, read them with "
    "`open`, and find words in them with `find`; some questions take several documents, one after "
    "the other. When you know the answer, give it as short as you can between <answer> and "
    "</answer>."
)


class RetrievalEnv(ToolEnv):
    """Asks questions about a corpus and scores the last message's answer.

    The answer is read as the reasoning environments read it. The tools have no state, so forks
    share them.
    """

    def __init__(
        self,
        corpus: SearchCorpus,
        tasks: Tasks,
        *,
        results: int,
        snippet_words: int,
        page_words: int,
        scoring: Scoring,
        system: str,
        gold: Callable[[Task, Sequence[Message]], Action] | None,
    ) -> None:
        """Offer the tools over `corpus`; the settings are those of `WikiEnv` and `Search`."""
        if scoring not in SCORINGS:
            raise ConfigError(f"scoring is {scoring!r}; it must be {' or '.join(SCORINGS)}")
        tools = partial(
            Search, corpus, results=results, snippet_words=snippet_words, page_words=page_words
        )
        super().__init__(
            tasks=tasks, reward=_reward(scoring), tools=(tools,), system=system, gold=gold
        )


class WikiEnv(RetrievalEnv):
    """Questions about a made-up world, of one to four facts each, answered from its articles."""

    def __init__(
        self,
        *,
        world: int = 0,
        countries: int = 12,
        hops: Sequence[int] = (1, 2, 3, 4),
        heldout_fraction: float = 0.25,
        size: int | None = None,
        results: int = 5,
        snippet_words: int = 40,
        page_words: int = 300,
        scoring: Scoring = "exact",
        system: str = SYSTEM,
    ) -> None:
        """Choose a world and questions.

        Args:
            world: The seed of the world.
            countries: How large it is; a country has 28 articles.
            hops: How many facts a question takes; several lengths take turns.
            heldout_fraction: Share of the countries that only held-out questions are about.
            size: At most so many tasks per split; None gives all there are.
            results: Documents a search shows, at most.
            snippet_words: Words shown of each.
            page_words: Words of a page of a document that is opened.
            scoring: `exact` pays 1 for the answer but for its case, punctuation and articles; `f1`
                pays the overlap of words.
            system: The system message; empty for none.
        """
        facts = fact_world(world, countries=countries)
        check_hops(hops)
        countries_of(facts, "train", heldout_fraction=heldout_fraction)
        _check_size(size)
        super().__init__(
            corpus_of(world, countries),
            wiki_tasks(facts, hops=hops, heldout_fraction=heldout_fraction, size=size),
            results=results,
            snippet_words=snippet_words,
            page_words=page_words,
            scoring=scoring,
            system=system,
            gold=play,
        )


class CorpusEnv(RetrievalEnv):
    """A user's own questions about a user's own corpus."""

    def __init__(
        self,
        *,
        corpus: str | Path,
        questions: str | Path,
        heldout_fraction: float = 0.1,
        size: int | None = None,
        results: int = 5,
        snippet_words: int = 40,
        page_words: int = 300,
        scoring: Scoring = "exact",
        system: str = SYSTEM,
    ) -> None:
        """Read both; other settings are those of `WikiEnv`.

        There is a gold player if every question names the documents that answer it.

        Args:
            corpus: A JSONL file or a folder of texts; see `agentrl_tools.search.read_corpus`.
            questions: A JSONL file; see `agentrl_envs.retrieval.corpus_questions.read_questions`.
            heldout_fraction: Share held out of the questions that name no split.
        """
        _check_size(size)
        documents = read_corpus(corpus)
        corpus_questions = read_questions(questions, documents, heldout_fraction=heldout_fraction)
        has_documents = all(question.documents for question in corpus_questions)
        super().__init__(
            documents,
            make_question_tasks(corpus_questions, size=size),
            results=results,
            snippet_words=snippet_words,
            page_words=page_words,
            scoring=scoring,
            system=system,
            gold=play_question if has_documents else None,
        )


def _reward(scoring: Scoring) -> Callable[[Task, Sequence[Message]], float]:
    score = exact if scoring == "exact" else f1

    def reward(task: Task, messages: Sequence[Message]) -> float:
        ground_truths = [str(task.answer), *task.data.get("aliases", ())]
        return score(final_answer(last_text(messages)), ground_truths)

    return reward


def _check_size(size: int | None) -> None:
    if size is not None and size < 1:
        raise ConfigError(
            f"size must be at least 1 task per split, got {size}; omit it to use all tasks"
        )


def normalise(text: str) -> str:
    """Return a text as answers are compared: as SQuAD does, but numbers keep sign and point.

    A text of nothing but articles, such as the answer A, is itself.
    """
    plain = _PUNCTUATION.sub("", text.casefold().replace("\N{MINUS SIGN}", "-"))
    words = _ARTICLE.sub(" ", plain).split()
    return " ".join(words or plain.split())


def exact(answer: str, wanted: Sequence[str]) -> float:
    """Return 1.0 if the answer is one of those wanted."""
    prediction = normalise(answer)
    return float(bool(prediction) and any(prediction == normalise(text) for text in wanted))


def f1(answer: str, wanted: Sequence[str]) -> float:
    """Return the best harmonic mean of precision and recall of words with one of those wanted."""
    return max(_f1(normalise(answer).split(), normalise(text).split()) for text in wanted)


def _f1(given: list[str], wanted: list[str]) -> float:
    common = sum((Counter(given) & Counter(wanted)).values())
    return 2 * common / (len(given) + len(wanted)) if common else 0.0

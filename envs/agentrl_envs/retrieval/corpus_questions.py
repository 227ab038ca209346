"""A user's own questions about a corpus, from a JSONL file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

from agentrl.env import Action, call, say
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.runtime.seeds import derive
from agentrl.task import SPLITS, Split, Task, split_of
from agentrl_envs.reasoning.env import format_answer
from agentrl_tools.search import SearchCorpus
from agentrl_tools.search.corpus import read_jsonl

_KEYS = ("question", "answer", "aliases", "documents", "split")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusQuestion:
    """One question of a file."""

    question: str
    answer: str
    aliases: tuple[str, ...]
    """Other answers that are right."""
    documents: tuple[str, ...]
    """Ids of the documents that answer it: a gold player opens them."""
    split: Split


def read_questions(
    path: str | Path, corpus: SearchCorpus, *, heldout_fraction: float
) -> tuple[CorpusQuestion, ...]:
    """Return the questions of a JSONL file, whose objects have `question` and `answer`.

    They may have `aliases`, `documents` and `split`; a question without a split is put into one by
    its text. Raises `ConfigError` that names the line that cannot be used.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"there is no question file {path}; name a JSONL file")
    questions = [
        _parse_question(where, record, corpus, heldout_fraction)
        for where, record in read_jsonl(path)
    ]
    for split in SPLITS:
        if not any(question.split == split for question in questions):
            raise ConfigError(
                f"none of the {len(questions)} questions of {path} is in the split {split!r}; set "
                '"split" for some of them, or change heldout_fraction'
            )
    return tuple(questions)


def make_question_tasks(
    asked: Sequence[CorpusQuestion], *, size: int | None
) -> Callable[[Split, int], Iterator[Task]]:
    """Return the task source of a file's questions, in an order that the seed decides."""

    def tasks(split: Split, seed: int) -> Iterator[Task]:
        questions = [question for question in asked if question.split == split]
        Random(derive("asked", split, seed)).shuffle(questions)
        for question in questions[:size]:
            data = {"aliases": list(question.aliases), "documents": list(question.documents)}
            yield Task(prompt=question.question, answer=question.answer, split=split, data=data)

    return tasks


def play_question(task: Task, seen: Sequence[Message]) -> Action:
    """Open the documents of a question one after the other, then give its answer."""
    opened = sum(message.role == "tool" for message in seen)
    documents: list[str] = task.data["documents"]
    if opened < len(documents):
        return call("open", document=documents[opened])
    return say(format_answer(str(task.answer), seen))


def _parse_question(
    where: str, record: Mapping[str, Any], corpus: SearchCorpus, fraction: float
) -> CorpusQuestion:
    if unknown := [key for key in record if key not in _KEYS]:
        raise ConfigError(
            f"{where} has the unknown key {unknown[0]!r}; a question has {', '.join(_KEYS)}"
        )
    question, answer = (str(record.get(key, "")).strip() for key in ("question", "answer"))
    if not question or not answer:
        raise ConfigError(f"{where} lacks a question or its answer; give both")
    split = record.get("split", split_of(question, heldout_fraction=fraction))
    if split not in SPLITS:
        raise ConfigError(f"{where}: split is {split!r}; it must be {' or '.join(SPLITS)}")
    lists = {key: _texts(where, key, record.get(key, [])) for key in ("aliases", "documents")}
    for document in lists["documents"]:
        if corpus.get(document) is None:
            raise ConfigError(f"{where}: {corpus.source} has no document {document!r}")
    return CorpusQuestion(question=question, answer=answer, split=split, **lists)


def _texts(where: str, key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{where}: {key} is {value!r}; it must be a list of texts")
    return tuple(str(item) for item in cast("list[Any]", value))

"""Parts of a document that are shown: pages, and the passage that a query is about."""

import re
from collections.abc import Iterator, Sequence

from agentrl_tools.search.index import split_words

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text; a line break ends one too."""
    return [part.strip() for part in _SENTENCE_END.split(text) if part.strip()]


def snippet(text: str, query: str, *, words_max: int) -> str:
    """Return the sentence that has most of the query's words, the first of equals, cut to size."""
    query_words = set(split_words(query))
    best_sentence = max(
        split_sentences(text), key=lambda sentence: len(query_words & set(split_words(sentence)))
    )
    return cut_words(best_sentence, words_max=words_max)


def cut_words(text: str, *, words_max: int) -> str:
    """Return the first words of a text, and an ellipsis where some are left out."""
    parts = text.split()
    if len(parts) <= words_max:
        return " ".join(parts)
    return " ".join(parts[:words_max]) + " ..."


def split_pages(text: str, *, words_max: int) -> list[str]:
    """Return a text in pages of at most `words_max` words, cut between lines where it can be.

    Joined again they have every word of the text in order.
    """
    page_lines: list[list[str]] = [[]]
    length = 0
    for line in _cut_lines(text, words_max):
        count = len(line.split())
        if length + count > words_max:
            page_lines.append([])
            length = 0
        page_lines[-1].append(line)
        length += count
    page_texts = ["\n".join(lines).strip() for lines in page_lines]
    return [page for page in page_texts if page] or [""]


def _cut_lines(text: str, words_max: int) -> Iterator[str]:
    for line in text.splitlines():
        parts = line.split()
        if len(parts) <= words_max:
            yield line
        else:
            for start in range(0, len(parts), words_max):
                yield " ".join(parts[start : start + words_max])


def find_sentences(text: str, wanted: str) -> Sequence[str]:
    """Return the sentences that have `wanted` in them, whatever its case and white space."""
    needle = " ".join(wanted.casefold().split())
    return [s for s in split_sentences(text) if needle in " ".join(s.casefold().split())]

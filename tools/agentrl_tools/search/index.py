"""Ranks the documents of a corpus for a query by BM25 (Robertson and Zaragoza 2009, Lucene's form).

bm25s makes the index. It is made once per process for equal corpora.
"""

import logging
import re
from collections.abc import Sequence
from threading import Lock
from typing import Any

from agentrl.runtime.extras import check_installed
from agentrl_tools.search.corpus import CorpusDocument, SearchCorpus

TITLE_WEIGHT = 3
"""Weight of the title; the text has 1."""
INDEXES_KEPT = 4

_WORD = re.compile(r"\w+")
_made: dict[str, "SearchIndex"] = {}  # the one used last at the end
_making = Lock()


def split_words(text: str) -> list[str]:
    """Return the words of a text as the index compares them."""
    return _WORD.findall(text.casefold())


class SearchIndex:
    """The index of one corpus. Immutable; safe to share between threads."""

    def __init__(self, corpus: SearchCorpus) -> None:
        bm25s = _import_bm25s()
        self._documents = corpus.documents
        titles = [split_words(document.name) * TITLE_WEIGHT for document in corpus.documents]
        texts = [split_words(document.text) for document in corpus.documents]
        self._known = frozenset(word for text in (*titles, *texts) for word in text)
        self._ranking = bm25s.BM25()
        both = [title + text for title, text in zip(titles, texts, strict=True)]
        self._ranking.index(both, show_progress=False)

    def rank(self, query: str, count: int) -> Sequence[CorpusDocument]:
        """Return at most `count` documents that have a word of the query, best first.

        Documents of equal score come in the order of the corpus.
        """
        import numpy as np

        query_words = [word for word in split_words(query) if word in self._known]
        if not query_words:
            return ()
        scores = self._ranking.get_scores(query_words)
        order = np.argsort(-scores, kind="stable")[:count]
        return [self._documents[place] for place in order.tolist() if scores[place] > 0]


def get_index(corpus: SearchCorpus) -> SearchIndex:
    """Return the index of a corpus; the latest few of a process are kept."""
    with _making:
        index = _made[corpus.digest] = _made.pop(corpus.digest, None) or SearchIndex(corpus)
        if len(_made) > INDEXES_KEPT:
            del _made[next(iter(_made))]
        return index


def _import_bm25s() -> Any:
    check_installed("searching", "bm25s")
    import bm25s

    # It reports every index it makes at the level of debugging, to a handler of its own.
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s

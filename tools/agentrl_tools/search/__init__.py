"""Search, open and find over a corpus of texts, ranked by BM25."""

from agentrl_tools.search.corpus import CorpusDocument, SearchCorpus, read_corpus
from agentrl_tools.search.search import Search

__all__ = ["CorpusDocument", "Search", "SearchCorpus", "read_corpus"]

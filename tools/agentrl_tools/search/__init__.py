"""Search, open and find over a corpus of texts, ranked by BM25."""

from agentrl_tools.search.corpus import Corpus, Document, read_corpus
from agentrl_tools.search.search import Search

__all__ = ["Corpus", "Document", "Search", "read_corpus"]

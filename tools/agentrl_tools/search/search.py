"""The tools of a reader: search a corpus, open a document, find a text in it."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Self

from agentrl.errors import ConfigError, ToolError
from agentrl.tool import tool
from agentrl_tools.search.corpus import CorpusDocument, SearchCorpus
from agentrl_tools.search.index import get_index
from agentrl_tools.search.passage import cut_words, find_sentences, snippet, split_pages

QUERY_CHARS_MAX = 1_000
FOUND_MAX = 10
_NAME_CHARS_MAX = 100
_NAMES_COMPARED_MAX = 1_000


class Search:
    """Three tools over one corpus. Nothing an agent does changes anything: a fork is free.

    Offer the class through `functools.partial(Search, corpus, ...)`.
    """

    def __init__(
        self,
        corpus: SearchCorpus,
        *,
        results: int = 5,
        snippet_words: int = 40,
        page_words: int = 300,
    ) -> None:
        """Set what is shown.

        Args:
            corpus: What is searched.
            results: Documents a search shows, at most.
            snippet_words: Words shown of each.
            page_words: Words of a page of a document that is opened.
        """
        limits = {"results": results, "snippet_words": snippet_words, "page_words": page_words}
        for name, value in limits.items():
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        self._corpus = corpus
        self._results = results
        self._snippet_words = snippet_words
        self._page_words = page_words

    async def fork(self) -> Self:
        """Return the same tools: they have no state."""
        return self

    @tool
    def search(self, query: str) -> str:
        """Search the documents. Returns the best ones, each with a passage.

        Args:
            query: Words to look for.
        """
        query = _check_query("query", query)
        documents = get_index(self._corpus).rank(query, self._results)
        if not documents:
            return f"No document contains a word of {query!r}."
        return "\n".join(
            f"{_label(document)} {snippet(document.text, query, words_max=self._snippet_words)}"
            for document in documents
        )

    @tool
    def open(self, document: str, page: int = 1) -> str:
        """Read a document, a page at a time.

        Args:
            document: Its name, as a search shows it in brackets.
            page: The page, counted from 1.
        """
        entry = self._find_document(document)
        page_texts = split_pages(entry.text, words_max=self._page_words)
        if not 1 <= page <= len(page_texts):
            raise ToolError(f"page={page}, but [{entry.id}] has pages 1 to {len(page_texts)}")
        more = f" (page {page} of {len(page_texts)})" if len(page_texts) > 1 else ""
        return f"{_label(entry)}{more}\n{page_texts[page - 1]}"

    @tool
    def find(self, document: str, text: str) -> str:
        """Find a text in a document. Returns the sentences that have it in them.

        Args:
            document: Its name, as a search shows it in brackets.
            text: What to find.
        """
        entry = self._find_document(document)
        sentences = find_sentences(entry.text, _check_query("text", text))
        if not sentences:
            return f"[{entry.id}] does not contain {text!r}."
        excerpts = [
            cut_words(sentence, words_max=self._page_words) for sentence in sentences[:FOUND_MAX]
        ]
        more = len(sentences) - len(excerpts)
        return "\n".join([*excerpts, f"(and {more} more)"] if more else excerpts)

    def _find_document(self, name: str) -> CorpusDocument:
        name = name.strip().removeprefix("[").removesuffix("]")
        document = self._corpus.get(name)
        if document is None:
            is_short = len(name) <= _NAME_CHARS_MAX
            near = get_close_matches(name, self._list_names(name), n=1) if is_short else []
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ToolError(f"there is no document {cut_words(name, words_max=20)!r}.{hint}")
        return document

    def _list_names(self, name: str) -> list[str]:
        """Return the names that one is compared with; of many, those of documents it is about."""
        documents: Sequence[CorpusDocument] = self._corpus.documents
        if len(documents) > _NAMES_COMPARED_MAX:
            documents = get_index(self._corpus).rank(name, _NAMES_COMPARED_MAX)
        return [document.name for document in documents]


def _label(document: CorpusDocument) -> str:
    title = f" {document.title}:" if document.title not in ("", document.id) else ""
    return f"[{document.id}]{title}"


def _check_query(name: str, text: str) -> str:
    if not text.strip():
        raise ToolError(f"the {name} is empty; give a few words")
    if len(text) > QUERY_CHARS_MAX:
        raise ToolError(
            f"the {name} has {len(text)} characters, but at most {QUERY_CHARS_MAX} are allowed"
        )
    return text

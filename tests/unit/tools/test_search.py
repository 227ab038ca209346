"""Searching a corpus: what is found, in which order, and how it is shown.

Mutants seen caught: ties in the other order; titles that count once; documents without a word of
the query; a snippet that is always the first sentence; pages that lose a word; `find` that minds
case; an index that is not shared; a cache that forgets nothing; ids that are not unique.
"""

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.authoring.toolset import ToolSet, schemas_of
from agentrl.errors import ConfigError, ToolError
from agentrl.message import ToolCall
from agentrl.tool import ToolContext
from agentrl_tools.search import CorpusDocument, Search, SearchCorpus, read_corpus
from agentrl_tools.search.index import INDEXES_KEPT, SearchIndex, get_index
from agentrl_tools.search.passage import (
    cut_words,
    find_sentences,
    snippet,
    split_pages,
    split_sentences,
)
from tests.support.watchdog import watched, watched_loop

CORPUS = SearchCorpus(
    [
        CorpusDocument("kettle", "A kettle boils water. It is made of steel.", "Kettle"),
        CorpusDocument("tea", "Tea is made with boiling water from a kettle. Milk is optional."),
        CorpusDocument("steel", "Steel is iron with a little carbon."),
        CorpusDocument("twin-b", "The same words."),
        CorpusDocument("twin-a", "The same words."),
    ]
)


def found(query: str, count: int = 10) -> list[str]:
    return [document.id for document in get_index(CORPUS).rank(query, count)]


def test_documents_come_best_first_and_only_with_a_word_of_the_query() -> None:
    assert found("kettle") == ["kettle", "tea"]
    assert found("steel") == ["steel", "kettle"]
    assert found("STEEL, carbon?")[0] == "steel"
    assert found("kettle", 1) == ["kettle"]
    assert found("zebra") == found("") == found("!?") == []


def test_a_title_counts_more_than_a_word() -> None:
    corpus = SearchCorpus(
        [
            CorpusDocument("a", "Boats sail. Boats float."),
            CorpusDocument("b", "Things that sail.", "Boats"),
        ]
    )
    assert [document.id for document in get_index(corpus).rank("boats", 2)] == ["b", "a"]


def test_equals_come_in_the_order_of_the_corpus() -> None:
    # The id is the title of both, so a word of the text is what they share.
    assert found("same words") == ["twin-b", "twin-a"]


def test_equal_corpora_share_an_index_and_the_oldest_is_forgotten() -> None:
    again = SearchCorpus(list(CORPUS.documents), source="elsewhere")
    assert get_index(again) is get_index(CORPUS)
    other = SearchCorpus([CorpusDocument("kettle", "Another text.")])
    assert other.digest != CORPUS.digest
    first = get_index(other)
    for number in range(INDEXES_KEPT):
        get_index(SearchCorpus([CorpusDocument("x", f"text {number}")]))
    assert get_index(other) is not first


def test_scores_are_those_of_bm25() -> None:
    """Lucene's BM25 with k1 = 1.5 and b = 0.75, by hand.

    Two documents of four words with their titles; "red" is in one of them, once:
    idf = ln(1 + (2 - 1 + 0.5) / (1 + 0.5)) = ln 2, and a word once in a text of average length
    weighs 1 / (1 + 1.5) = 0.4 (this form leaves out the constant k1 + 1).
    """
    corpus = SearchCorpus([CorpusDocument("a", "red"), CorpusDocument("b", "green")])
    scores = SearchIndex(corpus)._ranking.get_scores(["red"])  # pyright: ignore[reportPrivateUsage]
    assert scores.tolist() == pytest.approx([0.6931472 * 0.4, 0.0], rel=1e-5)


def test_a_snippet_is_the_sentence_with_most_of_the_query() -> None:
    text = "Ada was born in Arvane. The teacher of Ada was Bo.\nShe died"
    assert split_sentences(text) == [
        "Ada was born in Arvane.",
        "The teacher of Ada was Bo.",
        "She died",
    ]
    assert snippet(text, "teacher Ada", words_max=9) == "The teacher of Ada was Bo."
    assert snippet(text, "nothing", words_max=3) == "Ada was born ..."
    assert cut_words("a  b\nc", words_max=3) == "a b c"


@given(st.text(alphabet="ab \n.", max_size=200), st.integers(1, 20))
def test_pages_keep_every_word_and_their_bound(text: str, words_max: int) -> None:
    held = split_pages(text, words_max=words_max)
    assert " ".join(held).split() == text.split()
    assert all(len(page.split()) <= words_max for page in held)
    assert held


def test_find_minds_neither_case_nor_space() -> None:
    assert find_sentences("One Red\tFox. Two foxes.", "red fox") == ["One Red\tFox."]
    assert find_sentences("One.", "two") == []


async def answers(*calls: tuple[str, dict[str, object]]) -> list[str]:
    context = ToolContext(task_id="t", sample=0, seed=0)
    tools = partial(Search, CORPUS, results=2, snippet_words=4, page_words=5)
    toolbox = await ToolSet.open([tools], context=context, timeout_s=10)
    fork = await toolbox.fork()
    done = [await toolbox.call(ToolCall("c", name, arguments)) for name, arguments in calls]
    assert [result.content for result in done] == [
        (await fork.call(ToolCall("c", name, arguments))).content for name, arguments in calls
    ]
    await toolbox.close()
    await fork.close()
    return [str(result.content) for result in done]


@watched
async def test_the_tools_say_what_they_find() -> None:
    assert await answers(
        ("search", {"query": "kettle water"}),
        ("search", {"query": "zebra"}),
        ("open", {"document": "tea"}),
        ("open", {"document": "[TEA]", "page": 2}),
        ("open", {"document": "tea", "page": 9}),
        ("open", {"document": "te"}),
        ("find", {"document": "kettle", "text": "STEEL"}),
        ("find", {"document": "kettle", "text": "zebra"}),
        ("search", {"query": " "}),
        ("search", {"query": "a" * 1001}),
    ) == [
        "[kettle] Kettle: A kettle boils water.\n[tea] Tea is made with ...",
        "No document contains a word of 'zebra'.",
        "[tea] (page 1 of 3)\nTea is made with boiling",
        "[tea] (page 2 of 3)\nwater from a kettle. Milk",
        "page=9, but [tea] has pages 1 to 3",
        "there is no document 'te'. Did you mean 'tea'?",
        "It is made of steel.",
        "[kettle] does not contain 'zebra'.",
        "the query is empty; give a few words",
        "the query has 1001 characters, but at most 1000 are allowed",
    ]


async def test_a_name_that_is_not_there_takes_no_time_in_a_large_corpus() -> None:
    """Kills: a name that is compared with those of all documents."""
    title = "The history of the town of {} by the river"
    corpus = SearchCorpus([CorpusDocument(f"{n}", "x", title.format(n)) for n in range(30_000)])
    tool = Search(corpus)
    get_index(corpus)
    async with watched_loop():
        with pytest.raises(ToolError, match="Did you mean 'The history of the town of 12345 by"):
            tool.open(title.format("12345").replace("river", "rivr"))


def test_the_model_reads_three_schemas() -> None:
    names = [schema["function"]["name"] for schema in schemas_of([partial(Search, CORPUS)])]
    assert names == ["search", "open", "find"]


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="results must be at least 1, got 0"):
        Search(CORPUS, results=0)


async def test_many_searches_at_once_agree() -> None:
    corpus = SearchCorpus([CorpusDocument(str(n), f"number {n} and {n % 7}") for n in range(200)])
    tool = Search(corpus, results=3)
    searches = [asyncio.to_thread(tool.search, f"and {n % 7}") for n in range(40)]
    done = await asyncio.gather(*searches)
    assert done == [tool.search(f"and {n % 7}") for n in range(40)]


def test_a_corpus_is_read_from_a_file_or_a_folder(tmp_path: Path) -> None:
    lines = [{"id": 1, "text": "One."}, {"id": "b", "text": "Two.", "title": "B"}]
    file = tmp_path / "corpus.jsonl"
    file.write_text("\n\n".join(map(json.dumps, lines)))
    assert read_corpus(file).documents == (
        CorpusDocument("1", "One."),
        CorpusDocument("b", "Two.", "B"),
    )

    text = "One\u2028two\x85three."
    file.write_text(json.dumps({"id": "c", "text": text}, ensure_ascii=False), encoding="utf-8")
    assert read_corpus(file).documents == (CorpusDocument("c", text),)

    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    (folder / "b.txt").write_text("Two.")
    (folder / "deep" / "a.md").write_text("One.")
    (folder / "empty.txt").write_text(" ")
    (folder / "picture.png").write_bytes(b"\xff\x00")
    assert [document.id for document in read_corpus(folder).documents] == ["b.txt", "deep/a.md"]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "has no documents"),
        ('{"id": "a", "text": " "}', "needs an id and a text"),
        ('{"text": "a"}', "needs an id and a text"),
        ('{"id": "a", "text": "b"}\n{"id": "a", "text": "c"}', "ids must be unique"),
        ('{"id": "a", "text": 3}', "line 1 of .*: text is 3"),
        ("{", "line 1 of .* is not JSON"),
        ("[]", "is not a JSON object"),
    ],
)
def test_a_corpus_that_cannot_be_used_says_why(tmp_path: Path, content: str, match: str) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigError, match=match):
        read_corpus(file)


def test_a_corpus_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no corpus"):
        read_corpus(tmp_path / "nowhere")
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        read_corpus(tmp_path)


def test_a_tool_answers_the_model_with_what_it_refuses() -> None:
    with pytest.raises(ToolError, match="there is no document"):
        Search(CORPUS).find("nothing", "x")

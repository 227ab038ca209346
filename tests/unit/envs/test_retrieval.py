"""The retrieval environments: made-up worlds, chains of facts, splits apart, and a user's corpus.

Mutants seen caught: a teacher younger than the pupil; splits that share countries; a chain that
comes back to where it was; a question worded in another order; one length of chains only; scoring
that minds case, takes a part for the whole, or pays for nothing; F1 by sets of words; aliases that
are left out; a gold player that guesses; another order of questions every time.
"""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentrl
from agentrl.authoring.gold import play_gold
from agentrl.env import call, say
from agentrl.errors import ConfigError
from agentrl.task import SPLITS, Split
from agentrl.testing import check_env
from agentrl_envs.facts.articles import LINKED, RELATIONS, fact_sentence, sentences_of
from agentrl_envs.facts.questions import FactHop, FactQuestion, countries_of, questions
from agentrl_envs.facts.world import fact_world
from agentrl_envs.retrieval import CorpusEnv, WikiEnv
from agentrl_envs.retrieval.env import exact, f1, normalise
from agentrl_envs.retrieval.wiki import corpus_of
from agentrl_tools.search.index import get_index

SEEDS = st.integers(0, 2**32)


@given(SEEDS, st.integers(2, 30))
def test_a_world_is_whole(seed: int, countries: int) -> None:
    world = fact_world(seed, countries=countries)
    assert len(world.countries) == countries
    assert len(world.entities) == countries * 28
    for entity in world.entities.values():
        assert {*entity.facts} <= {*RELATIONS}
        for relation, value in entity.facts.items():
            if relation in LINKED:
                assert world.entities[value].country == entity.country


@given(SEEDS)
def test_people_live_in_order(seed: int) -> None:
    world = fact_world(seed, countries=2)
    for person in world.of_kind("person"):
        if teacher := person.facts.get("teacher"):
            assert int(world.entities[teacher].facts["born"]) <= int(person.facts["born"])
            assert teacher != person.name
    for work in world.of_kind("work"):
        author = world.entities[work.facts["author"]]
        assert 20 <= int(work.facts["published"]) - int(author.facts["born"]) <= 60
    for event in world.of_kind("event"):
        theme = world.entities[event.facts["theme"]]
        assert int(event.facts["held"]) > int(theme.facts["published"])


def test_worlds_differ_by_seed_and_are_the_same_in_every_process() -> None:
    assert fact_world(0) is fact_world(0)
    assert fact_world(0).entities != fact_world(1).entities
    assert fact_world(0, countries=2).countries == ("Silvany", "Heltland")


def test_an_article_states_every_fact_once() -> None:
    for entity in fact_world(0).entities.values():
        text = "\n".join(sentences_of(entity))
        for relation, value in entity.facts.items():
            assert text.count(fact_sentence(entity.name, relation, value)) == 1
        assert "[[" not in text
        assert "\n".join(sentences_of(entity, linked=True)).replace("[[", "").replace("]]", "") == (
            text
        )


@given(SEEDS, st.sampled_from(SPLITS), st.integers(1, 4))
def test_a_chain_follows_its_facts_and_meets_nobody_twice(
    seed: int, split: Split, length: int
) -> None:
    world = fact_world(seed, countries=3)
    for question in islice(questions(world, split, seed, hops=[length]), 20):
        subject = question.hops[0].subject
        met = [subject]
        for hop in question.hops:
            assert hop.subject == subject
            assert world.entities[subject].facts[hop.relation] == hop.value
            subject = hop.value
            met.append(subject)
        assert len({*met}) == len(met) == length + 1
        assert question.answer == subject


@given(SEEDS, st.floats(0.01, 0.99))
def test_no_fact_of_a_heldout_question_is_asked_in_training(seed: int, fraction: float) -> None:
    world = fact_world(seed, countries=3)
    asked = [
        {
            (hop.subject, hop.relation)
            for question in questions(world, split, 0, hops=(1, 2), heldout_fraction=fraction)
            for hop in question.hops
        }
        for split in SPLITS
    ]
    assert asked[0]
    assert asked[1]
    assert not asked[0] & asked[1]
    halves = [countries_of(world, split, heldout_fraction=fraction) for split in SPLITS]
    assert sorted(halves[0] + halves[1]) == sorted(world.countries)


def test_questions_are_worded_from_the_inside() -> None:
    hops = (
        FactHop(subject="Candle Fair", relation="theme", value="The Iron Door"),
        FactHop(subject="The Iron Door", relation="author", value="Ada Finch"),
        FactHop(subject="Ada Finch", relation="birthplace", value="Arvane"),
    )
    assert FactQuestion(hops=hops).text == (
        "Where was the author of the theme of the Candle Fair born?"
    )
    assert FactQuestion(hops=hops[:1]).text == "What does the Candle Fair honour?"
    assert FactQuestion(hops=hops[1:2]).text == "Who wrote The Iron Door?"


def test_no_two_questions_are_worded_alike_and_lengths_take_turns() -> None:
    env = WikiEnv()
    tasks = list(islice(env.tasks("train", seed=3), 400))
    assert len({task.prompt for task in tasks}) == 400
    assert [len(task.data["hops"]) for task in tasks[:8]] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert {len(t.data["hops"]) for t in islice(WikiEnv(hops=[2]).tasks("heldout"), 50)} == {2}


def test_an_article_is_what_a_search_for_its_name_finds_first() -> None:
    corpus = corpus_of(0, 30)
    index = get_index(corpus)
    first = [index.rank(document.id, 1)[0].id == document.id for document in corpus.documents]
    assert sum(first) / len(first) > 0.99


async def test_check_env_of_the_wiki() -> None:
    promises = await check_env(WikiEnv(countries=4))
    assert {"gold scores", "forks do not interfere", "splits are disjoint"} <= {*promises}


@pytest.mark.parametrize("settings", [{}, {"results": 1, "system": "", "snippet_words": 6}])
async def test_gold_reads_what_it_answers(settings: dict[str, Any]) -> None:
    env = WikiEnv(countries=4, page_words=8, **settings)
    for split in SPLITS:
        for task in islice(env.tasks(split), 40):
            episode = await play_gold(env, task, max_turns=40)
            read = " ".join(m.text for m in episode.messages if m.role == "tool")
            assert episode.reward == 1
            assert str(task.answer) in read


async def test_another_answer_earns_nothing() -> None:
    env = WikiEnv(countries=4)
    (task,) = islice(env.tasks("train"), 1)
    for said, reward in [
        (f"<answer>{task.answer}</answer>", 1.0),
        (f"<answer>the {str(task.answer).upper()}.</answer>", 1.0),
        (f"<answer>{task.answer} or another</answer>", 0.0),
        (f"It is {task.answer}, or <answer>another</answer>", 0.0),
        ("<answer></answer>", 0.0),
    ]:
        await env.reset(options={"task": task})
        assert (await env.step(say(said)))[1] == reward


async def test_forks_go_on_alone() -> None:
    env = WikiEnv(countries=4)
    (task,) = islice(env.tasks("train"), 1)
    await env.reset(options={"task": task})
    await env.step(call("search", query=task.data["hops"][0]["subject"]))
    fork = await env.fork()
    assert (await fork.step(say(str(task.answer))))[1:3] == (1.0, True)
    assert (await env.step(say("no")))[1:3] == (0.0, True)


@pytest.mark.parametrize(
    ("answer", "wanted", "score"),
    [
        ("The River", ["river"], 1.0),
        ("a river!", ["lake", "River"], 1.0),
        ("rivers", ["river"], 0.0),
        ("", ["river"], 0.0),
        ("the", ["a"], 0.0),
        ("1942", ["1942"], 1.0),
        ("1942 or 1943", ["1942"], 0.0),
    ],
)
def test_exact_minds_only_the_words(answer: str, wanted: list[str], score: float) -> None:
    assert exact(answer, wanted) == score


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [
        *(("5", "-5", 0.0), ("35", "3.5", 0.0), ("12.5", "1.25", 0.0), ("C", "C++", 0.0)),
        *(("\u22125", "-5", 1.0), ("(3.5).", "3.5", 1.0), ("1,000", "1000", 1.0)),
        *(("c#", "C#", 1.0), ("...5", "5", 1.0), ("A", "A", 1.0), ("the", "A", 0.0)),
        *(("An A", "an a!", 1.0), ("", "A", 0.0)),
    ],
)
def test_signs_points_and_articles_that_are_the_answer_count(
    answer: str, reference: str, score: float
) -> None:
    """Kills: punctuation removed from numbers, and a reference that nothing is left of."""
    assert exact(answer, [reference]) == score
    assert (f1(answer, [reference]) == 1.0) == bool(score)


def test_f1_is_that_of_squad() -> None:
    assert f1("the iron door", ["Iron Door"]) == 1.0
    # 1 of 2 words right, 1 of 1 found: 2 * 0.5 * 1 / 1.5.
    assert f1("iron gate", ["iron"]) == pytest.approx(2 / 3)
    # Words count as often as they are there: one of three, one of one.
    assert f1("iron iron iron", ["iron"]) == pytest.approx(0.5)
    assert f1("walla walla", ["Walla Walla"]) == 1.0
    assert f1("", ["iron"]) == f1("gate", ["iron"]) == 0.0
    assert f1("gate", ["iron", "gate"]) == 1.0


@given(st.text(max_size=30))
def test_normalising_twice_is_normalising_once(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


def test_settings_are_checked() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"hops": [5]}, "hops=.5. must list"),
        ({"hops": []}, "hops=.. must list"),
        ({"countries": 1}, "countries must be from 2 to 30"),
        ({"heldout_fraction": 1.0}, "heldout_fraction must be"),
        ({"size": 0}, "size must be at least 1"),
        ({"scoring": "bleu"}, "scoring is 'bleu'"),
    ]
    for settings, match in wrong:
        with pytest.raises(ConfigError, match=match):
            WikiEnv(**settings)
    assert len(list(WikiEnv(size=7).tasks("train"))) == 7


QUESTIONS: list[dict[str, Any]] = [
    {"question": "What boils?", "answer": "water", "aliases": ["H2O"], "split": "train"}
    | {"documents": ["tea"]},
    {"question": "What is added?", "answer": "milk", "documents": ["tea"], "split": "heldout"},
    {"question": "What is it made of?", "answer": "steel", "documents": ["pot"], "split": "train"},
]


def written(folder: Path, asked: list[dict[str, Any]]) -> dict[str, Any]:
    """Write a corpus and questions about it, and return the settings that name them."""
    texts = folder / "texts"
    texts.mkdir()
    (texts / "tea.txt").write_text("Water boils. Milk is added.")
    (texts / "pot.txt").write_text("It is made of steel.")
    lines = [{**q, "documents": [f"{name}.txt" for name in q.get("documents", [])]} for q in asked]
    file = folder / "questions.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines))
    return {"corpus": texts, "questions": file}


async def test_a_corpus_of_the_users(tmp_path: Path) -> None:
    env = agentrl.make("retrieval/Corpus-v0", **written(tmp_path, QUESTIONS))
    await check_env(env, tasks=2, episodes=2)
    (task,) = [t for t in env.tasks("train") if t.answer == "water"]
    await env.reset(options={"task": task})
    assert (await env.step(say("<answer>h2o</answer>")))[1] == 1


def test_a_corpus_without_documents_to_read_has_no_gold_player(tmp_path: Path) -> None:
    asked = [{k: v for k, v in q.items() if k != "documents"} for q in QUESTIONS]
    assert not hasattr(CorpusEnv(**written(tmp_path, asked)), "gold")


@pytest.mark.parametrize(
    ("record", "match"),
    [
        ({"question": "Q?"}, "lacks a question or its answer"),
        ({"question": "Q?", "answer": "a", "split": "test"}, "split is 'test'"),
        ({"question": "Q?", "answer": "a", "documents": ["x"]}, "has no document 'x.txt'"),
        ({"question": "Q?", "answer": "a", "alias": "b"}, "has the unknown key 'alias'"),
        ({"question": "Q?", "answer": "a", "aliases": "b"}, "aliases is 'b'"),
    ],
)
def test_questions_that_cannot_be_used_say_why(
    tmp_path: Path, record: dict[str, Any], match: str
) -> None:
    files = written(tmp_path, [*QUESTIONS, record])
    with pytest.raises(ConfigError, match=match):
        CorpusEnv(**files)


def test_a_split_without_questions_is_refused(tmp_path: Path) -> None:
    files = written(tmp_path, QUESTIONS[:2][1:])
    with pytest.raises(ConfigError, match="is in the split 'train'"):
        CorpusEnv(**files)
    with pytest.raises(ConfigError, match="there is no question file"):
        CorpusEnv(corpus=files["corpus"], questions=tmp_path / "nowhere")

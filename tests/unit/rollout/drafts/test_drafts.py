"""Drafts: which tokens stand, what is drawn at the cut, where a call begins, what is kept.

Mutants seen caught: listed in tests/unit/rollout/drafts/test_play.py.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentrl.chat.dialects.hermes import HERMES
from agentrl.chat.dialects.llama3 import LLAMA3
from agentrl.env import Action
from agentrl.message import Image
from agentrl.rollout.drafts.cache import CachedDraft, DraftCache
from agentrl.rollout.drafts.calls import find_call_cut
from agentrl.rollout.drafts.draft import DraftTrajectory
from agentrl.rollout.drafts.engine import DraftReuseSettings
from agentrl.rollout.drafts.verify import AcceptanceRule, Alternatives, cut, settlement
from agentrl.store.codec import pack, unpack
from agentrl.trajectory import Node
from benchmarks.letters import ids

LENIENT = AcceptanceRule()
PLAIN = AcceptanceRule(leniency=1.0)


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) if p else -math.inf for p in probabilities]


def test_the_worked_numbers_of_the_cut() -> None:
    ratios, drafted = logs(1, 0.5, 1), [0.0, 0.0, 0.0]
    assert cut(PLAIN, ratios, drafted, [0.9] * 3) == 1
    assert cut(LENIENT, ratios, drafted, [0.9] * 3) == 1
    assert cut(LENIENT, ratios, drafted, [0.8] * 3) == 3
    assert LENIENT.chance(*logs(0.5, 1)) == pytest.approx(0.8243606)


def test_scale_and_floor() -> None:
    assert AcceptanceRule(leniency=1, scale=2).chance(*logs(0.4, 0.8)) == pytest.approx(0.25)
    assert AcceptanceRule(leniency=2, scale=2).chance(*logs(0.2, 0.8)) == pytest.approx(0.25)
    floored = AcceptanceRule(leniency=1, floor=0.1)
    assert floored.chance(*logs(0.05, 0.5)) == floored.chance(*logs(0.05, 0.01)) == 0
    assert floored.chance(*logs(0.15, 0.01)) == 1


def test_the_ends_of_leniency() -> None:
    assert AcceptanceRule(leniency=0).chance(-0.1, -0.1) == 0
    assert AcceptanceRule(leniency=math.inf).chance(-50.0, -0.1) == 1


@pytest.mark.parametrize("odd", [math.nan, -math.inf, math.inf])
def test_what_is_no_log_prob_never_stands(odd: float) -> None:
    assert LENIENT.chance(-1.0, odd) == 0
    assert cut(LENIENT, [-1.0], [odd], [1e-300]) == 0


def test_what_cannot_be_drawn_any_more_never_stands() -> None:
    assert AcceptanceRule(leniency=math.inf).chance(-math.inf, -1.0) == 0
    assert LENIENT.chance(math.nan, -1.0) == 0


@pytest.mark.parametrize(
    "changes", [{"leniency": -1}, {"leniency": math.nan}, {"scale": 0}, {"floor": 1.5}]
)
def test_a_rule_that_makes_no_sense_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        AcceptanceRule(**changes)


steps = st.lists(
    st.tuples(st.floats(-9, 0), st.floats(-9, 0), st.floats(1e-9, 1)), min_size=1, max_size=12
)


@given(steps, st.floats(0, 3), st.floats(0, 3))
def test_more_leniency_never_cuts_earlier(
    rows: list[tuple[float, float, float]], one: float, other: float
) -> None:
    p, q, u = map(list, zip(*rows, strict=True))
    low, high = sorted((one, other))
    assert cut(AcceptanceRule(leniency=low), p, q, u) <= cut(AcceptanceRule(leniency=high), p, q, u)


@given(steps)
def test_a_draft_of_the_same_policy_stands_whole(rows: list[tuple[float, float, float]]) -> None:
    p, _, u = map(list, zip(*rows, strict=True))
    assert cut(PLAIN, p, p, u) == len(p)
    assert cut(LENIENT, p, p, u) == len(p)


@given(steps)
def test_a_cut_does_not_depend_on_what_comes_after_it(
    rows: list[tuple[float, float, float]],
) -> None:
    p, q, u = map(list, zip(*rows, strict=True))
    stands = cut(PLAIN, p, q, u)
    shorter = min(stands + 1, len(rows))
    assert cut(PLAIN, p[:shorter], q[:shorter], u[:shorter]) == stands


# --- the distribution at the cut ------------------------------------------------------------------


def law(rule: AcceptanceRule, p: Sequence[float], q: Sequence[float], known: int) -> np.ndarray:
    """Return the exact distribution of a settled place, averaged over what was drafted."""
    ranked = sorted(range(len(q)), key=lambda t: -q[t])[:known]
    alternatives: Alternatives = [(t, math.log(q[t])) for t in ranked if q[t] > 0]
    found = np.zeros(len(p))
    for token, chance in enumerate(q):
        if chance == 0:
            continue
        at = settlement(rule, token, alternatives, logs(*p))
        found += chance * at.chance * at.stands / at.stands.sum()
        if at.chance < 1 and at.residual.any():
            found += chance * (1 - at.chance) * at.residual / at.residual.sum()
    return found


def fresh_law(rule: AcceptanceRule, p: Sequence[float], q: Sequence[float]) -> np.ndarray:
    """Return the same where a rejected token is drawn from p: the published code's form."""
    found = np.zeros(len(p))
    for token, chance in enumerate(q):
        stands = rule.chance(*logs(p[token], chance))
        found[token] += chance * stands
        found += chance * (1 - stands) * np.array(p)
    return found


def test_the_worked_distribution() -> None:
    p, q = (0.8, 0.2), (0.5, 0.5)
    assert fresh_law(PLAIN, p, q)[0] == pytest.approx(0.74)
    assert law(PLAIN, p, q, known=2)[0] == pytest.approx(0.80)
    assert fresh_law(LENIENT, p, q)[0] < 0.74, "more leniency leans further to the draft"


masses = st.lists(st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0, 3.0]), min_size=2, max_size=6)


@given(masses, masses, st.integers(1, 6), st.floats(0.1, 1), st.floats(1, 3), st.floats(0, 0.5))
def test_residual_draws_are_exactly_the_policy_whatever_is_known_of_the_draft(
    ps: list[float], qs: list[float], known: int, leniency: float, scale: float, floor: float
) -> None:
    size = min(len(ps), len(qs))
    ps, qs = ps[:size], qs[:size]
    assume(sum(ps) > 0 and sum(qs) > 0)
    p, q = [x / sum(ps) for x in ps], [x / sum(qs) for x in qs]
    rule = AcceptanceRule(leniency=leniency, scale=scale, floor=floor)
    assert law(rule, p, q, known) == pytest.approx(np.array(p), abs=1e-9)


@given(st.floats(1e-9, 1), st.floats(1e-9, 1))
def test_a_draw_has_weight(u: float, v: float) -> None:
    at = settlement(PLAIN, 1, [(1, math.log(0.9))], logs(0.5, 0.0, 0.5, 0.0))
    assert at.draw(u, v) in (0, 2)
    stands = settlement(PLAIN, 1, [(1, math.log(0.2))], logs(0.0, 1.0, 0.0, 0.0))
    assert stands.draw(u, v) == 1


def test_draws_follow_the_law() -> None:
    random = np.random.default_rng(0)
    drafted = random.choice(2, size=20_000, p=[0.5, 0.5])
    both = [(0, math.log(0.5)), (1, math.log(0.5))]
    at = [settlement(PLAIN, token, both, logs(0.8, 0.2)) for token in (0, 1)]
    u, v = 1 - random.random(20_000), 1 - random.random(20_000)
    drawn = [at[t].draw(a, b) for t, a, b in zip(drafted, u, v, strict=True)]
    assert drawn.count(0) / 20_000 == pytest.approx(0.8, abs=0.01)


def test_a_lenient_rule_has_no_residual() -> None:
    with pytest.raises(ValueError, match="leniency of at most 1"):
        settlement(LENIENT, 0, [(0, 0.0)], [0.0])
    for rule in (LENIENT, AcceptanceRule(leniency=1, scale=0.5)):
        with pytest.raises(ValueError, match="remove them to use the defaults"):
            DraftReuseSettings(rule=rule, residual=True)


# --- where a call begins --------------------------------------------------------------------------

SAID = 'Let me see.\n<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>'
AGAIN = '\n<tool_call>\n{"name": "b", "arguments": {}}\n</tool_call>'
TAGGED = 'Hi<|python_tag|>{"name": "a", "parameters": {}}'


def letters(parse: Callable[[str, int], Action]) -> Callable[[Sequence[int]], Action]:
    return lambda tokens: parse("".join(map(chr, tokens)), 0)


@pytest.mark.parametrize(
    ("parse", "text", "at", "want"),
    [
        (HERMES.parse, SAID, 8, 8),
        (HERMES.parse, SAID, SAID.index("name"), 11),
        (HERMES.parse, SAID, len(SAID) - 1, 11),
        (HERMES.parse, SAID, len(SAID), len(SAID)),
        (HERMES.parse, SAID + AGAIN, len(SAID) + 20, len(SAID)),
        (HERMES.parse, SAID + AGAIN, len(SAID) - 5, 11),
        (LLAMA3.parse, TAGGED, len(TAGGED) - 3, 2),
        (LLAMA3.parse, TAGGED[2:], 30, 0),
        (HERMES.parse, "no call at all", 7, 7),
        (HERMES.parse, "", 0, 0),
    ],
)
def test_a_cut_inside_a_call_goes_back_to_where_it_begins(
    parse: Callable[[str, int], Action], text: str, at: int, want: int
) -> None:
    assert find_call_cut(letters(parse), ids(text), at) == want


@given(st.text(alphabet='<tool_cal>/{}":, namergumts\n', max_size=60), st.integers(0, 60))
def test_going_back_never_goes_forward_and_leaves_no_open_call(text: str, at: int) -> None:
    at = min(at, len(text))
    found = find_call_cut(letters(HERMES.parse), ids(text), at)
    assert 0 <= found <= at
    assert found == at or len(HERMES.parse(text[:found], 0).malformed) < len(
        HERMES.parse(text[:at], 0).malformed
    )


# --- what is kept ---------------------------------------------------------------------------------


def path() -> list[Node]:
    def sampled(turn: int, *tokens: int) -> Node:
        count = len(tokens)
        return Node(
            parent=None,
            source="sampled",
            token_ids=tokens,
            logprobs=(-0.5,) * count,
            versions=(3 + turn,) * count,
            entropies=(0.25,) * count,
            turn=turn,
        )

    return [
        Node(parent=None, source="prompt", token_ids=(1, 2), turn=0),
        sampled(0, 3),
        sampled(0, 4, 5),
        Node(parent=None, source="tool", token_ids=(6,), turn=1),
        Node(parent=None, source="template", token_ids=(7,), turn=1),
        sampled(1, 8),
    ]


def test_a_path_becomes_turns_at_their_places() -> None:
    draft = DraftTrajectory.from_path(path(), {2: ((3, -0.5),), 3: ((4, -0.5),), 4: ((5, -0.5),)})
    assert draft is not None
    assert draft.token_ids == (1, 2, 3, 4, 5, 6, 7, 8)
    assert [(t.start, t.token_ids) for t in draft.turns] == [(2, (3, 4, 5)), (7, (8,))]
    assert draft.turns[0].alternatives == (((3, -0.5),), ((4, -0.5),), ((5, -0.5),))
    assert draft.turns[1].alternatives == (), "nothing is known of its place"
    assert draft.turns[0].entropies == (0.25,) * 3
    assert (draft.sampled_tokens, draft.oldest) == (4, 3)


def test_a_path_that_shows_images_is_no_draft() -> None:
    shown = Node(parent=None, source="prompt", token_ids=(1,), turn=0, images=(Image(b"x"),))
    assert DraftTrajectory.from_path([shown, *path()]) is None


def test_drafts_are_packed_and_come_back() -> None:
    draft = DraftTrajectory.from_path(path(), {7: ((8, -0.5), (9, -1.5))})
    assert draft is not None
    cache = DraftCache(100)
    cache.keep(("t", 1), CachedDraft(draft, 4), version=2)
    assert cache.plain(version=2) == (), "its step is not over"
    other = DraftCache(100, 3)
    other.restore(unpack(pack(cache.plain(version=3))))
    assert other.find(("t", 1), version=3) == CachedDraft(draft, 4)


def draft_of(count: int) -> DraftTrajectory:
    return DraftTrajectory(token_ids=(0,) * count, turns=())


def test_a_draft_is_found_only_under_a_later_version() -> None:
    cache = DraftCache(100)
    cache.keep(("t", 0), CachedDraft(draft_of(1), 0), version=0)
    assert cache.find(("t", 0), version=0) is None
    assert cache.find(("t", 1), version=1) is None
    assert cache.find(("t", 0), version=1) == CachedDraft(draft_of(1), 0)


@given(st.permutations([0, 1, 2]))
def test_of_one_version_the_last_group_stays_whoever_ended_first(order: list[int]) -> None:
    cache = DraftCache(100)
    for group in order:
        cache.keep(("t", 0), CachedDraft(draft_of(group + 1), group), version=0)
    found = cache.find(("t", 0), version=1)
    assert found is not None
    assert found.group == 2


@given(st.permutations([0, 1, 2, 3]))
def test_what_was_not_renewed_for_longest_goes_first(order: list[int]) -> None:
    cache = DraftCache(25)
    for group in order:
        cache.keep((f"t{group}", 0), CachedDraft(draft_of(10), group), version=0)
    left = [group for group in range(4) if cache.find((f"t{group}", 0), version=1)]
    assert left == [2, 3]
    cache.keep(("t2", 0), CachedDraft(draft_of(10), 4), version=1)
    cache.keep(("t5", 0), CachedDraft(draft_of(10), 5), version=1)
    assert cache.find(("t3", 0), version=2) is None
    assert cache.find(("t2", 0), version=2) is not None


def test_a_forgotten_draft_is_gone() -> None:
    cache = DraftCache(100)
    cache.keep(("t", 0), CachedDraft(draft_of(1), 0), version=0)
    assert cache.find(("t", 0), version=1) is not None
    cache.forget(("t", 0))
    assert cache.find(("t", 0), version=1) is None

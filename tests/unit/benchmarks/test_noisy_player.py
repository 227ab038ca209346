"""The player that errs: its mistakes are as many as it is told, and it undoes them.

Mutants seen caught: a box that stays ticked, a wrong text after the right one, always one order,
another script each time, the mistakes of one task for all.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from agentrl.message import Message
from agentrl_envs.web.miniwob.pack import task_of
from benchmarks.browsing.noisy_player import NoisyMiniWobPack

BOXES = """Goal: Select ant, bee and click Submit.
url: http://miniwob.test/miniwob/click-checkboxes.html
checkbox "ant" [1]
checkbox "bee" [2]
checkbox "cat" [3]
checkbox "dog" [4]
button "Submit" [5]"""
FIELDS = """Goal: Enter the password "us" into both text fields and press submit.
url: http://miniwob.test/miniwob/enter-password.html
textbox [1]
textbox [2]
button "Submit" [3]"""


def play(family: str, page: str, seed: int, mistakes: float) -> list[Mapping[str, Any]]:
    """Return the arguments of all calls of an episode in which the page stays as it is."""
    pack, task = NoisyMiniWobPack(mistakes=mistakes), task_of(family, seed)
    seen, last = [Message("user", page)], int(page.rpartition("[")[2].partition("]")[0])
    calls: list[Mapping[str, Any]] = []
    while not calls or calls[-1]["id"] != last:
        action = pack.gold(task, seen)
        seen += [action.message, Message("tool", page.partition("\n")[2])]
        calls.append(action.tool_calls[0].arguments)
    return calls


def test_boxes_are_ticked_in_any_order_and_wrong_ones_unticked() -> None:
    orders = Counter[tuple[int, ...]]()
    wrong = count = 0
    for seed in range(200):
        calls = [call["id"] for call in play("click-checkboxes", BOXES, seed, 0.25)]
        assert calls == [c["id"] for c in play("click-checkboxes", BOXES, seed, 0.25)]
        ticked = {box for box, times in Counter(calls).items() if times % 2}
        assert ticked == {1, 2, 5}
        orders[tuple(box for box in calls if box in (1, 2))] += 1
        wrong += sum(box in (3, 4) for box in calls) // 2
        count += len(calls)
    assert min(orders.values()) > 50
    assert set(orders) == {(1, 2), (2, 1)}
    assert 0.1 < wrong / count < 0.3


def test_a_wrong_text_is_replaced() -> None:
    wrong = 0
    for seed in range(200):
        *fills, _ = play("enter-password", FIELDS, seed, 0.25)
        held = {call["id"]: call["text"] for call in fills}
        assert held == {1: "us", 2: "us"}
        wrong += sum(call["text"] != "us" for call in fills)
    assert 70 < wrong < 130


def test_without_mistakes_it_is_the_player_but_for_the_order() -> None:
    assert all(len(play("enter-password", FIELDS, seed, 0.0)) == 3 for seed in range(20))
    assert len(play("enter-password", FIELDS, 0, 1.0)) == 5

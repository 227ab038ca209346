"""Actions on screens compared by what they hit, and what a recording of them is worth."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.env import Action, Box, Patch, call, say
from agentrl.learn.recording import (
    ConversationRecording,
    RecordedAction,
    RecordedAnswer,
    RecordedCall,
    RecordedPrompt,
    write_recordings,
)
from agentrl_envs.recorded import RecordedEnv
from agentrl_envs.recorded.matching import ActionMatcher, is_same_kind
from agentrl_envs.recorded.pointing import smallest_box

PLACES: dict[int, Box] = {
    1: (0, 0, 400, 300),
    2: (10, 10, 100, 20),
    3: (10, 40, 100, 20),
    4: (200, 10, 150, 200),
    5: (210, 20, 20, 20),
}
"""A window with two buttons, and a list with a row in it."""


def does(action: str, **arguments: Any) -> Action:
    return call("computer", action=action, **arguments)


@pytest.mark.parametrize(
    ("said", "expert", "same"),
    [
        (does("click", element=2), does("click", element=2), True),
        (does("click", element=3), does("click", element=2), False),
        (does("click", coordinate=[10, 10]), does("click", element=2), True),
        (does("click", coordinate=[109.9, 29]), does("click", element=2), True),
        (does("click", coordinate=[110, 20]), does("click", element=2), False),
        (does("click", coordinate=[9, 20]), does("click", element=2), False),
        (does("click", element=2), does("click", coordinate=[100, 28]), True),
        (does("click", element=3), does("click", coordinate=[100, 28]), False),
        (does("click", coordinate=[20, 15]), does("click", coordinate=[100, 28]), True),
        # A row is not its list, though it lies in it.
        (does("click", element=5), does("click", element=4), False),
        (does("click", coordinate=[300, 150]), does("click", element=4), True),
        (does("click", element=4), does("click", element=4), True),
        # An element is hit in its middle, and that of the window is in the list.
        (does("click", element=1), does("click", coordinate=[300, 150]), True),
        (does("click", element=99), does("click", element=99), True),
        (does("click", element=99), does("click", element=2), False),
        (does("click"), does("click", element=2), False),
        (does("click", element=2, coordinate=[20, 20]), does("click", element=2), False),
        (does("click", coordinate=["a", 2]), does("click", element=2), False),
        (does("click", coordinate=[1, 2, 3]), does("click", element=2), False),
        (does("double_click", element=2), does("click", element=2), False),
        (does("click", element=2, keys="ctrl"), does("click", element=2), False),
        (does("click", element=2, keys="Control_L"), does("click", element=2, keys="ctrl"), True),
        # Outside every element the radius counts.
        (does("click", coordinate=[503, 504]), does("click", coordinate=[500, 500]), True),
        (does("click", coordinate=[504, 504]), does("click", coordinate=[500, 500]), False),
        (
            does("drag", element=2, to_coordinate=[15, 45]),
            does("drag", coordinate=[50, 20], to_element=3),
            True,
        ),
        (
            does("drag", element=2, to_element=4),
            does("drag", element=2, to_element=3),
            False,
        ),
        (does("type", text="Nantes "), does("type", text="Nantes"), True),
        (does("type", text="nantes"), does("type", text="Nantes"), False),
        (does("key", keys="shift+ctrl+S"), does("key", keys="ctrl+shift+s"), True),
        (does("key", keys="Enter"), does("key", keys="Return"), True),
        (does("key", keys="ctrl++"), does("key", keys="ctrl++"), True),
        (does("key", keys="ctrl++"), does("key", keys="ctrl"), False),
        (does("key", keys="ctrl+s"), does("key", keys="s"), False),
        (does("scroll"), does("scroll", direction="down", amount=9, element=4), True),
        (does("scroll", direction="up"), does("scroll", direction="down"), False),
        (does("wait", seconds=9), does("wait"), True),
        (does("done"), does("done"), True),
        (does("done", text="anything"), does("done"), True),
        (does("done", text="41"), does("done", text="42"), False),
        (does("done", text=" 42"), does("done", text="42"), True),
        (does("fail"), does("done"), False),
        (does("open_app", app="Clock"), does("open_app", app="Clock"), True),
        (does("open_app", app="Clock"), does("open_app", app="Mail"), False),
        (does("fly", to=3), does("fly", to=3), True),
        (does("fly", to=3), does("fly", to=4), False),
        (call("phone", action="back"), does("back"), False),
        (say("click"), does("click", element=2), False),
    ],
)
def test_what_does_the_same_on_a_screen(said: Action, expert: Action, same: bool) -> None:
    assert ActionMatcher(radius=5)(said, expert, PLACES) is same


def test_without_places_only_numbers_and_the_radius_count() -> None:
    near = does("click", coordinate=[10, 14])
    assert ActionMatcher(radius=4)(near, does("click", coordinate=[10, 10]))
    assert not ActionMatcher(radius=3)(near, does("click", coordinate=[10, 10]))
    assert ActionMatcher()(does("click", element=2), does("click", element=2))
    assert not ActionMatcher(radius=1000)(near, does("click", element=2))


def test_a_kind_is_what_is_done() -> None:
    assert is_same_kind(does("click", element=9), does("click", element=2))
    assert not is_same_kind(does("scroll"), does("click", element=2))
    assert not is_same_kind(call("phone", action="back"), call("phone", action="home"))


boxes = st.tuples(*[st.integers(0, 50)] * 2, *[st.integers(1, 50)] * 2)


@given(st.dictionaries(st.integers(1, 9), boxes, max_size=6), st.tuples(*[st.integers(0, 99)] * 2))
def test_the_smallest_box_holds_the_point(places: dict[int, Box], point: tuple[int, int]) -> None:
    found = smallest_box(point, places)
    holding = [
        (left, top, wide, high)
        for left, top, wide, high in places.values()
        if left <= point[0] < left + wide and top <= point[1] < top + high
    ]
    assert (found is None) == (not holding)
    if found is not None:
        assert found in holding
        assert all(found[2] * found[3] <= wide * high for _, _, wide, high in holding)


def a_recording(goal: str) -> ConversationRecording:
    """Return an expert that clicks a button, types, clicks another one and is done."""
    actions = [does("click", element=2), does("type", text="x"), does("click", element=3)]
    messages: list[Any] = [RecordedPrompt(role="user", content=f"Goal: {goal}")]
    for action in [*actions, does("done")]:
        made = action.tool_calls[0]
        given = RecordedCall(id=made.id, name=made.name, arguments=dict(made.arguments))
        messages.append(RecordedAction(role="assistant", tool_calls=(given,), places=PLACES))
        messages.append(
            RecordedAnswer(role="tool", content="screen", tool_call_id=made.id, name="computer")
        )
    return ConversationRecording(messages=tuple(messages[:-1]))


async def test_a_recording_of_a_screen_is_followed_by_what_is_hit(tmp_path: Path) -> None:
    """The first action is a point in the button, the second one of the wrong kind."""
    file = tmp_path / "screens.jsonl"
    write_recordings(file, [a_recording("go"), a_recording("come")])
    env = RecordedEnv(recordings=file, patches=-1, heldout_fraction=0)
    await env.reset(options={"task": next(iter(env.tasks("train")))})
    steps = [
        await env.step(action)
        for action in (
            does("click", coordinate=[50, 20]),
            does("click", element=2),
            does("click", element=2),
            does("done"),
        )
    ]
    assert [step[1] for step in steps] == pytest.approx([1.0, 0.19, 0.55, 1.0])
    assert [isinstance(step[4].get("patch"), Patch) for step in steps] == [False, True, True, False]
    assert steps[-1][4]["reward_components"] == pytest.approx(
        {
            "sop_progress": 0.25,
            "sop_success": 0.0,
            "sop_score": 0.125,
            "matched": 1.0,
            "step_accuracy": 0.5,
            "type_accuracy": 0.75,
        }
    )
    bounded = RecordedEnv(recordings=file, patches=3, heldout_fraction=0)
    await bounded.reset(options={"task": next(iter(bounded.tasks("train")))})
    told = (await bounded.step(does("click", element=2)))[4]["reward_components"]
    assert "step_accuracy" not in told, "where a mismatch may end it, not every step is met"

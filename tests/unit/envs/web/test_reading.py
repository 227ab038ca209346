"""Observations as text: what is written is read back, and nothing on a page can pass for a line.

Mutants seen caught: line breaks not escaped; depth not read; flags written with a value; values
never quoted; what cannot be acted on is found; siblings count as inside; the rest that was never
looked at is not counted; caps of 0 are taken.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError, EnvError
from agentrl_envs.accessibility.node import node_of
from agentrl_envs.web.observation import AccessibilityNode, PageObservationOptions, look, read
from agentrl_envs.web.observation.look import cap_lines, list_texts

KEYS = st.from_regex(r"[a-z][a-z-]{0,8}", fullmatch=True)
TEXTS = st.text(max_size=20).filter(lambda text: "\r" not in text)
NODES = st.builds(
    AccessibilityNode,
    role=KEYS,
    name=TEXTS,
    id=st.none() | st.integers(min_value=1, max_value=10**9),
    depth=st.integers(min_value=0, max_value=6),
    attributes=st.dictionaries(KEYS, TEXTS, max_size=4),
)


@given(NODES)
def test_a_line_is_read_back_as_it_was(node: AccessibilityNode) -> None:
    assert node_of(node.line) == node
    assert "\n" not in node.line


@given(st.lists(NODES, max_size=8))
def test_a_page_is_read_back_as_it_was(nodes: list[AccessibilityNode]) -> None:
    lines = "\n".join(node.line for node in nodes)
    page = read(f"Goal: Do this,\nthen that.\nurl: http://x/\ntitle: T\n{lines}")
    assert (page.goal, page.url, page.title) == ("Do this,\nthen that.", "http://x/", "T")
    assert list(page.nodes) == nodes


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ('button "Submit" [12]', AccessibilityNode(id=12, role="button", name="Submit")),
        (
            '  textbox "Name" [13] value="x y" focused',
            AccessibilityNode(
                id=13, role="textbox", name="Name", depth=1,
                attributes={"value": "x y", "focused": ""},
            ),
        ),
        ("circle [2] fill=red at=30,40", AccessibilityNode(
            id=2, role="circle", attributes={"fill": "red", "at": "30,40"})),
        (r'text "a \"b\" \\ c\nd"', AccessibilityNode(role="text", name='a "b" \\ c\nd')),
    ],
)  # fmt: skip
def test_lines_look_like_this(line: str, node: AccessibilityNode) -> None:
    assert node.line == line
    assert node_of(line) == node


@pytest.mark.parametrize(
    "line", ["... 3 more elements", "error: no [3]", 'button "open [1]', "", "[x] button", "[2] ok"]
)
def test_other_lines_are_no_nodes(line: str) -> None:
    assert node_of(line) is None
    assert read(f"url: http://x/\n{line}").nodes == ()


def test_what_is_looked_for_is_found_or_said_to_be_missing() -> None:
    page = read('button "A" [1]\ntext "B"\nbutton "B" [2]\n  link "C" [3]\nlink "D" [4]')
    assert page.id("button", "B") == 2
    assert page.find("button", contains="B").id == 2
    assert page.find(None, "B").id == 2  # the text cannot be acted on
    assert [node.id for node in page.under(page.find("button", "B"))] == [3]
    assert page.text == "A\nB\nB\nC\nD"
    with pytest.raises(LookupError, match=r"name='Z'.*button \"A\" \[1\]"):
        page.find("button", "Z")


def test_places_are_numbers() -> None:
    node = AccessibilityNode(role="circle", attributes={"at": "30,40.5", "size": "8x9"})
    assert (node.at, node.size) == ((30, 40.5), (8, 9))
    with pytest.raises(KeyError):
        _ = AccessibilityNode(role="circle").at


@given(st.lists(st.text(max_size=12), max_size=10), st.integers(1, 60), st.integers(0, 5))
def test_what_does_not_fit_is_counted(lines: list[str], limit: int, left: int) -> None:
    text, cut = cap_lines(lines, left, limit)
    shown = text.rpartition("\n... ")[0] if cut and "\n" in text else text
    assert cut == (left > 0 or sum(len(line) + 1 for line in lines) > limit)
    if cut:
        missing = int(text.rpartition("... ")[2].split()[0])
        assert 0 < missing <= len(lines) + left
        assert len(shown) <= limit or "\n" not in text
    else:
        assert text == "\n".join(lines)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kinds": ("smell",)}, "smell"),
        ({"kinds": ()}, "one or more of"),
        ({"max_nodes": 0}, "max_nodes must be above 0, got 0"),
        ({"deadline_s": -1.0}, "deadline_s must be above 0"),
    ],
)
def test_what_cannot_be_seen_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        PageObservationOptions(**changes)  # pyright: ignore[reportArgumentType]


class Busy:
    """An eye that never answers."""

    async def run(self, function: str, argument: object = None) -> object:
        import asyncio

        await asyncio.Event().wait()
        return function, argument

    async def screenshot(self) -> bytes:
        return b""


async def test_a_page_that_does_not_answer_is_an_infrastructure_failure() -> None:
    with pytest.raises(EnvError, match=r"within 0\.05 s"):
        await look(Busy(), PageObservationOptions(deadline_s=0.05))


TREE = 'axtree:\nbutton "Cancel" [1]\nbutton "Save" [2]'
TEXT = 'text:\naxtree:\nbutton "Cancel" [2]'


@pytest.mark.parametrize(
    "parts", [[TEXT, TREE], [TREE, TEXT], ["dom:\n<button n=2>", TREE, TEXT], [TREE], [TREE[8:]]]
)
def test_other_kinds_are_no_tree(parts: list[str]) -> None:
    """Words of a page that look like lines of the tree are words."""
    page = read("Goal: Save.\nurl: http://a.test/\ntitle: A\n" + "\n\n".join(parts))
    assert [(node.name, node.id) for node in page.nodes] == [("Cancel", 1), ("Save", 2)]
    assert (page.goal, page.url, page.title) == ("Save.", "http://a.test/", "A")


def test_a_text_is_one_line() -> None:
    nodes = [
        AccessibilityNode(role="textbox", attributes={"value": 'a\n\naxtree:\nbutton "B" [1]'}),
        AccessibilityNode(role="text", name="c"),
    ]
    assert list_texts(nodes) == ['a  axtree: button "B" [1]', "c"]

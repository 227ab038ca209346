"""A tree that is read while programs change it: as it is, never as it was in the middle.

Mutants seen caught: read once whatever goes; read anew for ever; read anew after the deadline; what
went remembered from one reading to the next; what goes before its state, its role or its children
are asked for not noticed; a silent program taken for one that went.
"""

from collections.abc import Callable, Sequence

import pytest

from agentrl_envs.gui.inside.accessibility_tree import AccessibilityTree
from agentrl_envs.gui.inside.bus import Answer, BusCall, Reference
from agentrl_envs.gui.observation import DesktopObservationOptions, ElementNumbers, build_nodes

REGISTRY = ("org.a11y.atspi.Registry", "/org/a11y/atspi/accessible/root")
PROGRAM, OTHER = ":1.7", ":1.8"
SHOWING = [1 << 25, 0]


class Programs:
    """What is on the bus: by object, its children. `then` has what happens once an object has
    answered a method."""

    def __init__(self, children: dict[Reference, list[Reference]]) -> None:
        self.children = {REGISTRY: [(PROGRAM, "/"), (OTHER, "/")], (OTHER, "/"): []} | children
        self.silent = set[str]()
        self.then = dict[tuple[Reference, str], Callable[[], None]]()
        self.readings = 0
        self.asked = list[BusCall]()

    def ask(self, asks: Sequence[BusCall], end_s: float) -> list[Answer]:
        """Answer as programs do, and then go on."""
        self.asked += asks
        self.readings += sum(ask.to == REGISTRY for ask in asks)
        answers = [self.answer(ask) for ask in asks]
        for ask in asks:
            self.then.pop((ask.to, ask.method), lambda: None)()
        return answers

    def answer(self, ask: BusCall) -> Answer:
        if ask.method == "GetConnectionUnixProcessID":
            return (70 + int(str(ask.arguments[0])[-1]),)
        if ask.to[0] in self.silent:
            return None
        if ask.to not in self.children:
            return ()
        match ask.method:
            case "GetChildren":
                return (self.children[ask.to],)
            case "GetState":
                return (SHOWING,)
            case "GetRoleName":
                return ("table row",)
            case "Get":
                return (ask.to[1],)
            case "GetExtents":
                return ((1, 2, 3, 4),)
            case _:
                return ([],)


def row(name: str) -> Reference:
    return (PROGRAM, name)


def names(programs: Programs, deadline_s: float = 60.0) -> list[str]:
    elements, _, _ = AccessibilityTree(programs.ask).read(deadline_s, 100)
    return [element.name for element in elements]


def replacing(programs: Programs, old: str, new: str) -> Callable[[], None]:
    """Return a change that puts a new object in the place of an old one."""

    def change() -> None:
        del programs.children[row(old)]
        programs.children[row(new)] = []
        programs.children[row("/")] = [row(new)]

    return change


def test_a_tree_that_stays_is_read_once() -> None:
    programs = Programs({row("/"): [row("a"), row("b")], row("a"): [row("c")], row("b"): []})
    programs.children[row("c")] = []

    assert names(programs) == ["a", "c", "b"]
    assert programs.readings == 1


@pytest.mark.parametrize(
    "answered", [(row("/"), "GetChildren"), (row("old"), "GetState"), (row("old"), "GetRoleName")]
)
def test_a_row_that_is_replaced_while_it_is_read_is_there_afterwards(
    answered: tuple[Reference, str],
) -> None:
    programs = Programs({row("/"): [row("old")], row("old"): []})
    programs.then[answered] = replacing(programs, "old", "new")

    assert names(programs) == ["new"]
    assert programs.readings == 2


def test_a_tree_that_never_stays_is_read_three_times() -> None:
    programs = Programs({row("/"): [row("0")], row("0"): []})
    for turn in range(9):
        then = replacing(programs, f"{turn}", f"{turn + 1}")
        programs.then[row(f"{turn}"), "GetState"] = then

    names(programs)

    assert programs.readings == 3


def test_nothing_is_read_anew_when_time_is_up() -> None:
    programs = Programs({row("/"): [row("old")], row("old"): []})
    programs.then[row("old"), "GetState"] = replacing(programs, "old", "new")

    assert names(programs, deadline_s=-1.0) == []
    assert programs.readings == 1


def test_a_program_that_does_not_answer_is_named_and_not_waited_for_again() -> None:
    programs = Programs({row("/"): [row("a")], row("a"): []})
    programs.silent = {OTHER}
    tree = AccessibilityTree(programs.ask)

    elements, silent, left = tree.read(60.0, 100)

    assert [element.name for element in elements] == ["a"]
    assert (silent, left) == ([78], 0)
    assert programs.readings == 1
    assert sum(ask.to[0] == OTHER for ask in programs.asked) == 1


def test_what_is_too_much_is_counted() -> None:
    rows = [row(f"{number}") for number in range(9)]
    programs = Programs({row("/"): rows} | {one: [] for one in rows})

    elements, _, left = AccessibilityTree(programs.ask).read(60.0, 4)

    assert [element.name for element in elements] == ["0", "1", "2", "3"]
    assert left == 5


def test_a_registry_that_does_not_answer_is_an_error() -> None:
    programs = Programs({})
    programs.silent = {REGISTRY[0]}

    with pytest.raises(TimeoutError, match="registry"):
        AccessibilityTree(programs.ask).read(60.0, 100)


def test_a_long_terminal_is_seen_at_its_end() -> None:
    """Its prompt is there; of any other text it is the beginning."""
    text = "first\n" + "x" * 5_000 + "\nuser$"
    for role, seen in (("terminal", "user$"), ("entry", "first")):
        element = [("program", "1"), 0, role, "It", ["sensitive"], [0, 0, 9, 9], text, None, 1]
        tree = {"windows": [], "elements": [element], "silent": []}
        (node,), _, _ = build_nodes(tree, DesktopObservationOptions(), ElementNumbers())
        assert seen in node.value()
        assert len(node.value()) <= 10 * DesktopObservationOptions().max_name_characters

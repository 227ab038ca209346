"""The accessibility trees of the programs, read over D-Bus, a level of all of them at a time."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from agentrl_envs.gui.inside.bus import Answer, BusCall, Reference

_ROOT = ("org.a11y.atspi.Registry", "/org/a11y/atspi/accessible/root")
_ACCESSIBLE = "org.a11y.atspi.Accessible"
_COMPONENT, _TEXT, _VALUE = (
    "org.a11y.atspi.Component",
    "org.a11y.atspi.Text",
    "org.a11y.atspi.Value",
)
_PROPERTIES = "org.freedesktop.DBus.Properties"
_BUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
_STATES = {
    "checked": 4, "editable": 7, "enabled": 8, "expandable": 9, "expanded": 10, "focused": 12,
    "modal": 16, "pressed": 20, "selected": 23, "sensitive": 24, "showing": 25, "visible": 30,
    "indeterminate": 32,
}  # fmt: skip
LEVELS_MAX = 40
_TEXT_MAX = 20_000
_HIDDEN_ROLES = ("tool tip",)
_READINGS = 3
"""Of a tree from which something goes each time while it is read."""


class AccessibleElement(NamedTuple):
    """An accessible object that can be seen."""

    reference: Reference
    depth: int
    role: str
    name: str
    states: frozenset[str]
    box: tuple[int, int, int, int]
    """Left, top, width and height on the screen, in pixels."""
    text: str | None
    """Content of the element, where it holds text."""
    value: float | None
    pid: int


class AccessibilityTree:
    """Accessibility nodes of the programs, as far as they answer."""

    def __init__(self, ask: Callable[[Sequence[BusCall], float], list[Answer]]) -> None:
        """`ask` is that of `AccessibilityBus`: questions, and until when on the monotonic clock."""
        self._ask = ask
        self._pids: dict[str, int] = {}
        self._went = False
        """Whether something that had been named was gone when it was asked."""

    def read(self, deadline_s: float, most: int) -> tuple[list[AccessibleElement], list[int], int]:
        """Return the visible elements in reading order, the silent programs, the omitted count.

        `deadline_s` bounds every level, and a program that misses it is not asked again. A program
        that puts new objects in the place of old ones meanwhile (rows whose icons have come, on a
        busy machine) would be seen without either, so its tree is read again.
        """
        end_s = time.monotonic() + deadline_s
        attempts = _READINGS
        while True:
            attempts, self._went = attempts - 1, False
            result = self._read_once(end_s, most)
            if not self._went or attempts == 0 or time.monotonic() > end_s:
                return result

    def _read_once(self, end_s: float, most: int) -> tuple[list[AccessibleElement], list[int], int]:
        (programs,) = self._ask([BusCall(_ROOT, _ACCESSIBLE, "GetChildren")], end_s)
        if programs is None:
            raise TimeoutError("the accessibility registry does not answer")
        silent: set[str] = set()
        children = dict[Reference, list[Reference]]()
        nodes = dict[Reference, AccessibleElement]()
        tops = [(name, path) for name, path in programs[0]]
        self._learn_pids({name for name, _ in tops}, end_s)
        level, overflow = self._read_children(tops, end_s, silent), 0
        roots = [reference for references in level.values() for reference in references]
        wave = roots
        for depth in range(LEVELS_MAX):
            wave = [one for one in wave if one[0] not in silent and one not in nodes]
            if len(nodes) + len(wave) > most:
                overflow += len(nodes) + len(wave) - most
                wave = wave[: max(0, most - len(nodes))]
            if not wave:
                break
            batch = self._read_elements(wave, depth, end_s, silent)
            nodes.update(batch)
            children.update(self._read_children(list(batch), end_s, silent))
            wave = [child for one in batch for child in children.get(one, [])]
        elements: list[AccessibleElement] = []
        for root in roots:
            self._lay_out(root, 0, nodes, children, elements)
        return elements, sorted(self._pids.get(name, 0) for name in silent), overflow

    def box(self, reference: Reference, deadline_s: float) -> tuple[int, int, int, int] | None:
        """Return the box of an object now, or None when it cannot be seen any more."""
        end_s = time.monotonic() + deadline_s
        elements = self._read_elements([reference], 0, end_s, set())
        return elements[reference].box if reference in elements else None

    def pid(self, program: str) -> int:
        """Return the process of a program on the bus, or 0."""
        return self._pids.get(program, 0)

    def _lay_out(
        self,
        one: Reference,
        depth: int,
        known: dict[Reference, AccessibleElement],
        children: dict[Reference, list[Reference]],
        into: list[AccessibleElement],
    ) -> None:
        if (element := known.pop(one, None)) is None:
            return
        into.append(element._replace(depth=depth))
        for child in children.get(one, []):
            self._lay_out(child, depth + 1, known, children, into)

    def _read_children(
        self, parents: Sequence[Reference], end_s: float, silent: set[str]
    ) -> dict[Reference, list[Reference]]:
        references = [one for one in parents if one[0] not in silent]
        answers = self._ask([BusCall(one, _ACCESSIBLE, "GetChildren") for one in references], end_s)
        children: dict[Reference, list[Reference]] = {}
        for one, answer in zip(references, answers, strict=True):
            if answer is None:
                silent.add(one[0])
            elif answer == ():
                self._went = True
            else:
                children[one] = [(name, path) for name, path in answer[0]]
        return children

    def _read_elements(
        self, wave: Sequence[Reference], depth: int, end_s: float, silent: set[str]
    ) -> dict[Reference, AccessibleElement]:
        states = self._ask([BusCall(one, _ACCESSIBLE, "GetState") for one in wave], end_s)
        showing: list[tuple[Reference, frozenset[str]]] = []
        for one, answer in zip(wave, states, strict=True):
            if answer is None:
                silent.add(one[0])
            elif answer == ():
                self._went = True
            elif "showing" in (state_names := _decode_states(answer[0])):
                showing.append((one, state_names))
        asks = [ask for one, _ in showing for ask in self._questions(one)]
        answers = iter(self._ask(asks, end_s))
        elements: dict[Reference, AccessibleElement] = {}
        for one, state_names in showing:
            role, name, kinds, box = (next(answers) for _ in range(4))
            if not (role and name and kinds):
                self._went = True
                continue
            if role[0] in _HIDDEN_ROLES:
                continue
            elements[one] = AccessibleElement(
                reference=one,
                depth=depth,
                role=role[0],
                name=name[0],
                states=state_names,
                box=tuple(box[0]) if box else (0, 0, 0, 0),
                text="" if _TEXT in kinds[0] else None,
                value=0.0 if _VALUE in kinds[0] else None,
                pid=self._pids.get(one[0], 0),
            )
        return self._read_contents(elements, end_s)

    @staticmethod
    def _questions(one: Reference) -> list[BusCall]:
        return [
            BusCall(one, _ACCESSIBLE, "GetRoleName"),
            BusCall(one, _PROPERTIES, "Get", "(ss)", (_ACCESSIBLE, "Name")),
            BusCall(one, _ACCESSIBLE, "GetInterfaces"),
            BusCall(one, _COMPONENT, "GetExtents", "(u)", (0,)),
        ]

    def _read_contents(
        self, found: dict[Reference, AccessibleElement], end_s: float
    ) -> dict[Reference, AccessibleElement]:
        texts = [one for one, element in found.items() if element.text is not None]
        values = [one for one, element in found.items() if element.value is not None]
        current = (_VALUE, "CurrentValue")
        asks = [BusCall(one, _TEXT, "GetText", "(ii)", (0, _TEXT_MAX)) for one in texts]
        asks += [BusCall(one, _PROPERTIES, "Get", "(ss)", current) for one in values]
        answers = self._ask(asks, end_s)
        for one, answer in zip(texts, answers, strict=False):
            found[one] = found[one]._replace(text=answer[0] if answer else "")
        for one, answer in zip(values, answers[len(texts) :], strict=True):
            found[one] = found[one]._replace(value=float(answer[0]) if answer else None)
        return found

    def _learn_pids(self, names: Iterable[str], end_s: float) -> None:
        fresh = [name for name in names if name not in self._pids]
        answers = self._ask(
            [
                BusCall(_BUS[:2], _BUS[2], "GetConnectionUnixProcessID", "(s)", (name,))
                for name in fresh
            ],
            end_s,
        )
        for name, answer in zip(fresh, answers, strict=True):
            if answer:
                self._pids[name] = int(answer[0])


def _decode_states(words: Sequence[int]) -> frozenset[str]:
    bits = words[0] | (words[1] << 32 if len(words) > 1 else 0)
    return frozenset(name for name, bit in _STATES.items() if bits >> bit & 1)

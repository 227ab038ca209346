"""Tasks in a form, a panel of buttons and a list: programs of our own, made anew by every seed."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from agentrl.env import call
from agentrl.runtime.json_limits import JsonLimitError, read_json
from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.gui.inside.form import COMMAND, STATE
from agentrl_envs.gui.tasks.moves import Moves, click, finish, press, type_text
from agentrl_envs.gui.tasks.template import DesktopTemplate
from agentrl_envs.gui.tasks.words import CITIES, COLOURS, FIRST_NAMES, LAST_NAMES, OPTIONS, THINGS
from agentrl_envs.gui.world import LiveDesktop
from agentrl_envs.templates import Wanted
from agentrl_envs.web.sites.play import Script

_FOLDER = "form"
_SPEC = f"{_FOLDER}/form.json"
_TITLES = ("Registration", "Customer record", "Order form", "Membership", "Booking", "Survey")
_SWITCHES = (
    *("Send a newsletter", "Keep me informed", "Use metric units", "Show hints", "Start maximised"),
    *("Play sounds", "Check for updates", "Large print", "Confirm before closing"),
)
_NUMBERS = ("Quantity", "Guests", "Nights", "Copies", "Age", "Priority", "Pages")

Field = dict[str, Any]


def _text(label: str, value: str = "") -> Field:
    return {"kind": "text", "label": label, "value": value}


def _number(label: str, value: int) -> Field:
    return {"kind": "number", "label": label, "value": value, "low": 0, "high": 99}


def _check(label: str, value: bool) -> Field:
    return {"kind": "check", "label": label, "value": value}


def _options(kind: str, label: str, options: Sequence[str], value: str) -> Field:
    return {"kind": kind, "label": label, "options": list(options), "value": value}


def _person(random: Random) -> dict[str, str]:
    first, last = random.choice(FIRST_NAMES), random.choice(LAST_NAMES)
    return {
        "First name": first,
        "Last name": last,
        "City": random.choice(CITIES),
        "Street": f"{random.choice(LAST_NAMES)} Street {random.randint(1, 180)}",
        "Telephone": f"0{random.randint(100, 999)} {random.randint(10_000, 999_999)}",
        "Email": f"{first}.{last}@example.org".lower(),
    }


def _form(
    random: Random, goal: str, pages: Sequence[Sequence[Field]], new: Mapping[str, Any], **more: Any
) -> Wanted:
    """Return a task of giving some fields new values and saving; the others stay."""
    labels = ("General", "Details", "Advanced")
    spec = {
        "kind": "form",
        "title": random.choice(_TITLES),
        "pages": [{"label": labels[i], "fields": list(page)} for i, page in enumerate(pages)],
        **more,
    }
    state = {field["label"]: field["value"] for page in pages for field in page}
    return {"goal": goal, "spec": spec, "new": dict(new), "state": state | dict(new)}


def _draw_texts(random: Random, count: int) -> dict[str, str]:
    person = _person(random)
    return {label: person[label] for label in random.sample(list(person), count)}


def _labels(random: Random, count: int) -> list[str]:
    """Return different names of things: enough of them that no two tasks are alike."""
    return [f"{random.choice(COLOURS)} {thing.lower()}" for thing in random.sample(THINGS, count)]


def _list_settings(new: Mapping[str, Any]) -> str:
    return "; ".join(f'"{label}" to "{value}"' for label, value in new.items())


# -- what is asked ---------------------------------------------------------------------------------


def _make_fill(random: Random) -> Wanted:
    new = _draw_texts(random, random.randint(2, 3))
    labels = [*new, *random.sample([x for x in _person(random) if x not in new], 1)]
    random.shuffle(labels)
    goal = f"Fill in the form and save it: set {_list_settings(new)}. Leave everything else empty."
    return _form(random, goal, [[_text(label) for label in labels]], new)


def _make_correct(random: Random) -> Wanted:
    old, fresh = _person(random), _person(random)
    label = random.choice([name for name in old if old[name] != fresh[name]])
    goal = f'The field "{label}" is wrong. Change it to "{fresh[label]}", and save the form.'
    return _form(random, goal, [[_text(name, old[name]) for name in old]], {label: fresh[label]})


def _make_empty(random: Random) -> Wanted:
    old = _person(random)
    label = random.choice([name for name in old if not name.endswith("name")])
    goal = (
        f'Remove what is in the field "{label}" of {old["First name"]} {old["Last name"]}, keep '
        "the others, and save the form."
    )
    return _form(random, goal, [[_text(name, old[name]) for name in old]], {label: ""})


def _make_switches(random: Random) -> Wanted:
    labels = random.sample(_SWITCHES, 5)
    old = {label: random.random() < 0.5 for label in labels}
    changed = {label: not old[label] for label in random.sample(labels, random.randint(1, 3))}
    instructions = "; ".join(
        f'switch "{label}" {"on" if on else "off"}' for label, on in changed.items()
    )
    goal = f"Change these settings, and no others, then save: {instructions}."
    return _form(random, goal, [[_check(label, old[label]) for label in labels]], changed)


def _make_numbers(random: Random) -> Wanted:
    labels = random.sample(_NUMBERS, 4)
    old = {label: random.randint(1, 9) for label in labels}
    new = {label: random.randint(10, 99) for label in random.sample(labels, random.randint(1, 2))}
    goal = f"Set {_list_settings(new)} and save the form."
    return _form(random, goal, [[_number(label, old[label]) for label in labels]], new)


def _make_choice(random: Random) -> Wanted:
    labels = random.sample(list(OPTIONS), 3)
    old = {label: random.choice(OPTIONS[label]) for label in labels}
    label = random.choice(labels)
    new = {label: random.choice([x for x in OPTIONS[label] if x != old[label]])}
    fields = [_options("choice", name, OPTIONS[name], old[name]) for name in labels]
    form = _form(random, "", [fields], new)
    title = form["spec"]["title"]
    other_label = next(name for name in labels if name != label)
    goal = (
        f'In the form {title}, set {_list_settings(new)}, keep "{other_label}" as it is, and save.'
    )
    return form | {"goal": goal}


def _make_radio(random: Random) -> Wanted:
    labels = random.sample(list(OPTIONS), 3)
    old = {label: random.choice(OPTIONS[label]) for label in labels}
    changed = random.sample(labels, random.randint(1, 2))
    new = {
        label: random.choice([x for x in OPTIONS[label] if x != old[label]]) for label in changed
    }
    fields = [_options("radio", name, OPTIONS[name], old[name]) for name in labels]
    return _form(random, f"Choose in the form: {_list_settings(new)}. Then save it.", [fields], new)


def _make_pages(random: Random) -> Wanted:
    switches = random.sample(_SWITCHES, 6)
    numbers = random.sample(_NUMBERS, 2)
    pages = [
        [*(_check(label, False) for label in switches[:3]), _text("City", random.choice(CITIES))],
        [_number(label, random.randint(1, 9)) for label in numbers],
        [_check(label, True) for label in switches[3:]],
    ]
    new: dict[str, Any] = {numbers[0]: random.randint(10, 99), switches[4]: False}
    goal = (
        f'In the settings, set "{numbers[0]}" to {new[numbers[0]]} on the page Details, switch '
        f'"{switches[4]}" off on the page Advanced, and save.'
    )
    return _form(random, goal, pages, new)


def _make_confirm(random: Random) -> Wanted:
    new = _draw_texts(random, 1)
    others = _draw_texts(random, 2) | new
    goal = f"Set {_list_settings(new)} in the form, save it, and confirm that you mean it."
    fields = [_text(name, "" if name in new else value) for name, value in others.items()]
    return _form(random, goal, [fields], new, confirm="Do you want to save the changes?")


def _make_mixed(random: Random) -> Wanted:
    option, number = random.choice(list(OPTIONS)), random.choice(_NUMBERS)
    switch = random.choice(_SWITCHES)
    person = _draw_texts(random, 2)
    new: dict[str, Any] = {
        **person,
        option: random.choice(OPTIONS[option][1:]),
        number: random.randint(10, 99),
        switch: True,
    }
    fields = [
        *(_text(label) for label in person),
        _options("choice", option, OPTIONS[option], OPTIONS[option][0]),
        _number(number, 1),
        _check(switch, False),
    ]
    random.shuffle(fields)
    settings = _list_settings({label: value for label, value in new.items() if label != switch})
    return _form(
        random, f'Set {settings}; switch "{switch}" on; then save the form.', [fields], new
    )


def _make_press(random: Random) -> Wanted:
    labels = _labels(random, random.choice((4, 6, 9)))
    label = random.choice(labels)
    spec = {"kind": "panel", "title": "Panel", "buttons": labels, "columns": random.choice((2, 3))}
    return {"goal": f'Press the button "{label}" once.', "spec": spec, "state": [label]}


def _make_press_in_order(random: Random) -> Wanted:
    params = _make_press(random)
    labels = random.sample(params["spec"]["buttons"], 3)
    goal = f"Press these buttons in this order, each once: {', '.join(labels)}."
    return {"goal": goal, "spec": params["spec"], "state": labels}


def _rows(random: Random, count: int) -> tuple[list[str], dict[str, Any]]:
    rows = _labels(random, count)
    return rows, {"kind": "list", "title": "Shopping list", "rows": rows}


def _make_add_row(random: Random) -> Wanted:
    rows, spec = _rows(random, 4)
    fresh = next(label for label in _labels(random, 9) if label not in rows)
    return {"goal": f'Add "{fresh}" to the list.', "spec": spec, "row": fresh,
            "state": [*rows, fresh]}  # fmt: skip


def _make_delete_row(random: Random) -> Wanted:
    rows, spec = _rows(random, 6)
    cuts = random.sample(rows, random.randint(1, 2))
    goal = f"Delete from the list: {', '.join(cuts)}."
    return {
        "goal": goal, "spec": spec, "rows": cuts, "state": [row for row in rows if row not in cuts],
    }  # fmt: skip


def _make_move_row(random: Random) -> Wanted:
    rows, spec = _rows(random, 5)
    at = random.randint(1, 4)
    state = [rows[at], *rows[:at], *rows[at + 1 :]]
    goal = (
        f'Move "{rows[at]}" to the top of the list, above "{rows[0]}", and keep the others in '
        "their order."
    )
    return {"goal": goal, "spec": spec, "row": rows[at], "times": at, "state": state}


# -- how it is done --------------------------------------------------------------------------------


def _set(page: ObservedPage, field: Field, value: Any) -> Moves:
    kind, label = field["kind"], field["label"]
    if kind == "check":
        return (yield click(page, "checkbox", label))
    if kind == "radio":
        row = next(node for node in page.nodes if (node.name == label and node.id is None) or
                   (node.name == label and node.role != "text"))  # fmt: skip
        inside = [node for node in page.under(row) if node.name == value]
        node = inside[0] if inside else page.find("radio", value)
        assert node.id is not None
        return (yield call("computer", action="click", element=node.id))
    if kind == "choice":
        page = yield click(page, "combobox", label)
        return (yield click(page, "menuitem", value))
    role = "textbox" if kind == "text" else "spinbutton"
    page = yield click(page, role, label, verb="triple_click")
    return (yield type_text(f"{value}") if value != "" else press("BackSpace"))


def _play_form(page: ObservedPage, wanted: Wanted) -> Script:
    for tab in wanted["spec"]["pages"]:
        by_label = {field["label"]: field for field in tab["fields"]}
        fields = [by_label[label] for label in wanted["new"] if label in by_label]
        if fields and len(wanted["spec"]["pages"]) > 1:
            page = yield click(page, "tab", tab["label"])
        for field in fields:
            page = yield from _set(page, field, wanted["new"][field["label"]])
    page = yield click(page, "button", "Save")
    if wanted["spec"].get("confirm"):
        page = yield click(page, "button", "Yes")
    yield finish()


def _play_press(page: ObservedPage, wanted: Wanted) -> Script:
    for label in wanted["state"]:
        page = yield click(page, "button", label)
    yield finish()


def _play_add_row(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "textbox", "New row")
    page = yield type_text(wanted["row"])
    page = yield click(page, "button", "Add")
    yield finish()


def _play_delete_row(page: ObservedPage, wanted: Wanted) -> Script:
    for row in wanted["rows"]:
        page = yield click(page, "option", row)
        page = yield click(page, "button", "Delete")
    yield finish()


def _play_move_row(page: ObservedPage, wanted: Wanted) -> Script:
    for _ in range(wanted["times"]):
        page = yield click(page, "option", wanted["row"])
        page = yield click(page, "button", "Move up")
    yield finish()


# -- how it is judged ------------------------------------------------------------------------------


async def _is_state_right(desktop: LiveDesktop, wanted: Wanted, said: str) -> bool:
    data = await desktop.read(f"{_FOLDER}/{STATE}")
    try:
        return data is not None and read_json(data) == wanted["state"]
    except JsonLimitError:
        return False


def _files(wanted: Wanted) -> Mapping[str, bytes]:
    return {_SPEC: json.dumps(wanted["spec"]).encode()}


_template = partial(
    DesktopTemplate,
    program="form",
    check=_is_state_right,
    programs=lambda wanted: [[*COMMAND, f"/home/user/{_SPEC}"]],
    files=_files,
)
FORMS: tuple[DesktopTemplate, ...] = (
    _template("press", 1, _make_press, _play_press),
    _template("press_in_order", 1, _make_press_in_order, _play_press),
    _template("fill", 2, _make_fill, _play_form),
    _template("correct", 1, _make_correct, _play_form),
    _template("empty_field", 1, _make_empty, _play_form),
    _template("switches", 1, _make_switches, _play_form),
    _template("numbers", 1, _make_numbers, _play_form),
    _template("choice", 1, _make_choice, _play_form),
    _template("radio", 1, _make_radio, _play_form),
    _template("pages", 2, _make_pages, _play_form),
    _template("confirm", 2, _make_confirm, _play_form),
    _template("mixed", 3, _make_mixed, _play_form),
    _template("add_row", 1, _make_add_row, _play_add_row),
    _template("delete_row", 2, _make_delete_row, _play_delete_row),
    _template("move_row", 2, _make_move_row, _play_move_row),
)
"""Kinds of tasks in programs of our own."""

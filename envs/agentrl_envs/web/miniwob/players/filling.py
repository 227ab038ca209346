"""Players of families that are solved by filling in forms."""

import re
from collections.abc import Sequence

from agentrl.env import Action, call
from agentrl_envs.web.miniwob.players.scene import (
    ORDINALS,
    PlayerConversation,
    click,
    fields,
    fill,
    plans,
    plays,
    press,
    search,
    submit,
    texts,
)
from agentrl_envs.web.observation import AccessibilityNode, ObservedPage


@plans("enter-text", "enter-text-dynamic")
def _(scene: PlayerConversation) -> Sequence[Action]:
    return [fill(fields(scene.first)[0], scene.quoted[0]), submit(scene.first)]


@plans("enter-text-2")
def _(scene: PlayerConversation) -> Sequence[Action]:
    word = scene.quoted[0]
    word = word.lower() if "lower" in scene.goal else word.upper()
    return [fill(fields(scene.first)[0], word), submit(scene.first)]


@plans("enter-password")
def _(scene: PlayerConversation) -> Sequence[Action]:
    typed = [fill(field, scene.quoted[0]) for field in fields(scene.first)]
    return [*typed, submit(scene.first)]


@plans("enter-date")
def _(scene: PlayerConversation) -> Sequence[Action]:
    month, day, year = search(r"(\d\d)/(\d\d)/(\d{4})", scene.goal)
    return [fill(fields(scene.first)[0], f"{year}-{month}-{day}"), submit(scene.first)]


@plans("enter-time")
def _(scene: PlayerConversation) -> Sequence[Action]:
    hour, minute, half = search(r"(\d+):(\d\d) ([AP]M)", scene.goal)
    at = int(hour) % 12 + (12 if half == "PM" else 0)
    return [fill(fields(scene.first)[0], f"{at:02}:{minute}"), submit(scene.first)]


@plays("login-user", "login-user-popup")
def _(scene: PlayerConversation) -> Action:
    """Fill in what is still empty; a window that comes up in between is declined first."""
    if scene.page.all("button", "Cancel"):
        return submit(scene.page, "Cancel")
    for field, text in zip(fields(scene.page), scene.quoted, strict=True):
        if not field.value():
            return fill(field, text)
    return click(scene.page.find("button"))


@plans("focus-text", "focus-text-2")
def _(scene: PlayerConversation) -> Sequence[Action]:
    words = [word for word in scene.goal.split() if word in ORDINALS]
    return [click(fields(scene.first)[ORDINALS[words[0]] if words else 0])]


@plans("choose-list")
def _(scene: PlayerConversation) -> Sequence[Action]:
    (option,) = search(r"Select (.+) from the list", scene.goal)
    box = scene.first.find("combobox")
    return [call("select", id=box.id, option=option), submit(scene.first)]


@plans("copy-paste", "copy-paste-2")
def _(scene: PlayerConversation) -> Sequence[Action]:
    sources = [field for field in fields(scene.first) if field.has("multiline")]
    target = next(field for field in fields(scene.first) if not field.has("multiline"))
    words = [word for word in scene.goal.split() if word in ORDINALS]
    source = sources[ORDINALS[words[0]] if words else 0]
    return [fill(target, source.value()), submit(scene.first)]


@plans("find-word")
def _(scene: PlayerConversation) -> Sequence[Action]:
    (at,) = search(r"the (\d+)", scene.goal)
    words = re.findall(r"[\w'-]+", " ".join(texts(scene.first)))
    return [fill(fields(scene.first)[0], words[int(at) - 1]), submit(scene.first)]


@plans("form-sequence-2")
def _(scene: PlayerConversation) -> Sequence[Action]:
    radio, field = search(r"the (\w+) radio .* into the (\w+) textbox", scene.goal)
    return [
        click(scene.first.all("radio")[ORDINALS[radio]]),
        fill(fields(scene.first)[ORDINALS[field]], scene.quoted[0]),
        submit(scene.first),
    ]


@plays("form-sequence")
def _(scene: PlayerConversation) -> Action:
    """Move the slider with the keyboard, a step at a time."""
    value, box = search(r"Select (-?\d+) with the slider, click the (\w+) checkbox", scene.goal)
    handle = next(n for n in scene.page.nodes if "ui-slider-handle" in n.value("class"))
    if not handle.has("focused") and not scene.find_calls("press") and not scene.calls:
        return click(handle)
    readout = int(next(text for text in texts(scene.page) if re.fullmatch(r"-?\d+", text)))
    if readout != int(value):
        return press("ArrowRight" if readout < int(value) else "ArrowLeft")
    checkbox = scene.page.all("checkbox")[ORDINALS[box]]
    return submit(scene.page) if checkbox.has("checked") else click(checkbox)


@plays("form-sequence-3")
def _(scene: PlayerConversation) -> Action:
    option, button = search(r'Choose (.+) from the dropdown, .* labeled "(.+)"', scene.goal)
    if not scene.calls:
        return click(next(n for n in scene.page.nodes if n.id and n.role == "generic"))
    if len(scene.calls) == 1:
        return click(scene.page.find("generic", option))
    return submit(scene.page, button)


@plays("generate-number")
def _(scene: PlayerConversation) -> Action:
    readout = [int(text) for text in texts(scene.page) if re.fullmatch(r"-?\d+", text)]
    return submit(
        scene.page, "Submit" if readout and _is_suitable(readout[0], scene.goal) else "Generate"
    )


@plays("guess-number")
def _(scene: PlayerConversation) -> Action:
    """Halve what is left."""
    low, high = 0, 9
    field = scene.page.find("spinbutton")
    hint = " ".join(texts(scene.page))
    if scene.calls and scene.calls[-1].name == "fill":
        return submit(scene.page)
    bounds = [int(one.arguments["text"]) for one in scene.find_calls("fill")]
    for guess, after in zip(bounds, [*bounds, None][1:], strict=False):
        higher = after > guess if after is not None else "higher" in hint
        low, high = (guess + 1, high) if higher else (low, guess - 1)
    return fill(field, str((low + high) // 2))


@plans("multi-layouts", "multi-orderings")
def _(scene: PlayerConversation) -> Sequence[Action]:
    genre, director, year = search(
        r"Search for (.+) movies directed by (.+) from year (\d+)", scene.goal
    )
    labels = {"genre": genre, "director": director, "year": year, "date": year}
    return [
        *(
            fill(field, next(text for key, text in labels.items() if key in label.lower()))
            for label, field in _pair_labels(scene.first)
        ),
        click(scene.first.nodes[-1]),
    ]


@plans("read-table")
def _(scene: PlayerConversation) -> Sequence[Action]:
    (label,) = search(r"the value of (.+) into", scene.goal)
    return [fill(fields(scene.first)[0], _read_table(scene.first)[label]), submit(scene.first)]


@plans("read-table-2")
def _(scene: PlayerConversation) -> Sequence[Action]:
    table = _read_table(scene.first)
    fills = [fill(field, table[label.rstrip(":")]) for label, field in _pair_labels(scene.first)]
    return [*fills, submit(scene.first)]


@plans("simple-arithmetic")
def _(scene: PlayerConversation) -> Sequence[Action]:
    a, sign, b = search(r"(-?\d+) ?([+x*-]) ?(-?\d+)", " ".join(texts(scene.first)))
    number, right = int(a), int(b)
    answer = {"+": number + right, "-": number - right}.get(sign, number * right)
    return [fill(fields(scene.first)[0], str(answer)), submit(scene.first)]


@plans("simple-algebra")
def _(scene: PlayerConversation) -> Sequence[Action]:
    line = next(text for text in texts(scene.first) if re.search(r"\d", text))
    number, sign, right, total = search(r"(x|-?\d+) ([+-]) (x|-?\d+) = (-?\d+)", line)
    result = int(total)
    if number == "x":
        answer = result - int(right) if sign == "+" else result + int(right)
    else:
        answer = result - int(number) if sign == "+" else int(number) - result
    return [fill(fields(scene.first)[0], str(answer)), submit(scene.first)]


@plans("text-transform")
def _(scene: PlayerConversation) -> Sequence[Action]:
    return [fill(fields(scene.first)[0], "".join(texts(scene.first))), submit(scene.first)]


@plays("use-autocomplete", "use-autocomplete-nodelay")
def _(scene: PlayerConversation) -> Action:
    """Type the beginning, then take the item that ends as it should."""
    begins, ends = [*scene.quoted, ""][:2]
    if scene.calls and scene.calls[-1].name == "click":
        return submit(scene.page)
    if not scene.calls:
        return fill(fields(scene.page)[0], begins)
    for node in scene.page.nodes:
        item = node.id and node.role in ("generic", "option", "menuitem")
        if item and node.name.startswith(begins) and node.name.endswith(ends):
            return click(node)
    return call("wait", milliseconds=200)


@plays("use-spinner")
def _(scene: PlayerConversation) -> Action:
    (value,) = search(r"Select (-?\d+)", scene.goal)
    spinner = scene.page.find("spinbutton")
    if not scene.calls:
        return click(spinner)
    number = int(value) - int(spinner.value())
    return press("ArrowUp" if number > 0 else "ArrowDown") if number else submit(scene.page)


@plays("sign-agreement")
def _(scene: PlayerConversation) -> Action:
    names = scene.quoted
    if not names:
        return submit(scene.page, "Cancel" if "cancel" in scene.goal else "Agree")
    text, name = fields(scene.page)
    if name.has("disabled"):
        return call("scroll", direction="down", id=text.id)
    return submit(scene.page, names[1]) if name.value() else fill(name, names[0])


def _pair_labels(page: ObservedPage) -> list[tuple[str, AccessibilityNode]]:
    """Return the fields with the text before each; after each where a field comes first."""
    label, pairs = "", list[tuple[str, AccessibilityNode]]()
    nodes = [node for node in page.nodes if node.role in ("textbox", "text")]
    if nodes and nodes[0].role == "textbox" and not nodes[0].name:
        nodes.reverse()
    for node in nodes:
        if node.role == "textbox":
            pairs.append((node.name or label, node))
        else:
            label = node.name
    return pairs


def _read_table(page: ObservedPage) -> dict[str, str]:
    rows = [row.name.split(" | ") for row in page.all("row")]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def _is_suitable(number: int, goal: str) -> bool:
    if "odd" in goal or "even" in goal:
        return number % 2 == ("odd" in goal)
    relation, bound = search(r"(less|greater) than (-?\d+)", goal)
    return number < int(bound) if relation == "less" else number > int(bound)

"""Players of families that are solved by clicking on the right things."""

from collections.abc import Mapping, Sequence

from agentrl.env import Action, call, say
from agentrl_envs.web.miniwob.players.scene import (
    PlayerConversation,
    click,
    plans,
    plays,
    search,
    submit,
)
from agentrl_envs.web.observation import AccessibilityNode, ObservedPage


@plans("click-test")
def _(scene: PlayerConversation) -> Sequence[Action]:
    return [click(scene.first.find("button"))]


@plans("click-test-2", "click-test-transfer", "click-button-sequence")
def _(scene: PlayerConversation) -> Sequence[Action]:
    labels = [word.strip(".,") for word in scene.goal.split() if word.strip(".,").isupper()]
    if not all(scene.first.all("button", name) for name in labels):
        return [say("It lies under another button.")]  # about one problem in a thousand
    return [submit(scene.first, name) for name in labels]


@plans("click-button", "unicode-test")
def _(scene: PlayerConversation) -> Sequence[Action]:
    return [submit(scene.first, scene.quoted[0])]


@plans("click-link")
def _(scene: PlayerConversation) -> Sequence[Action]:
    return [click(scene.first.find("generic", scene.quoted[0]))]


@plans("click-option")
def _(scene: PlayerConversation) -> Sequence[Action]:
    (name,) = search(r"Select (.+) and click Submit", scene.goal)
    return [click(scene.first.find("radio", name)), submit(scene.first)]


@plans("click-checkboxes", "click-checkboxes-large", "click-checkboxes-transfer")
def _(scene: PlayerConversation) -> Sequence[Action]:
    (listed,) = search(r"Select (.+) and click Submit", scene.goal)
    names = [] if listed == "nothing" else listed.split(", ")
    return [*(click(scene.first.find("checkbox", name)) for name in names), submit(scene.first)]


@plays("click-collapsible", "click-collapsible-nodelay")
def _(scene: PlayerConversation) -> Action:
    header = scene.first.find("tab")
    return submit(scene.page) if scene.count_clicks(header.id) else click(header)


@plays(
    *("click-collapsible-2", "click-collapsible-2-nodelay"),
    *("click-tab-2", "click-tab-2-easy", "click-tab-2-medium", "click-tab-2-hard"),
)
def _(scene: PlayerConversation) -> Action:
    """Open one after the other until the link is there."""
    target = scene.quoted[0]
    for node in scene.page.all("generic", target):
        return click(node)
    tabs = [tab for tab in scene.page.all("tab") if not tab.has("selected")]
    return click(next(tab for tab in tabs if not scene.count_clicks(tab.id)))


@plans("click-tab")
def _(scene: PlayerConversation) -> Sequence[Action]:
    (name,) = search(r"Click on (.+)\.", scene.goal)
    return [click(scene.first.find("tab", name))]


@plans("click-color")
def _(scene: PlayerConversation) -> Sequence[Action]:
    (colour,) = search(r"the (\w+) colored", scene.goal)
    return [click(next(n for n in scene.first.nodes if n.value("fill") == _convert_colour(colour)))]


@plans("click-dialog")
def _(scene: PlayerConversation) -> Sequence[Action]:
    return [submit(scene.first, "Close")]


@plans("click-dialog-2")
def _(scene: PlayerConversation) -> Sequence[Action]:
    name = scene.quoted[0]
    return [submit(scene.first, "Close" if name == "x" else name)]


@plays("click-menu")
def _(scene: PlayerConversation) -> Action:
    (path,) = search(r"Select (.+)", scene.goal)
    names = path.split(">")
    at = len(scene.find_calls("hover"))
    for item in scene.page.all("menuitem", names[at]):
        return click(item) if at == len(names) - 1 else call("hover", id=item.id)
    return call("wait", milliseconds=300)


@plans("button-delay")
def _(scene: PlayerConversation) -> Sequence[Action]:
    """The first click and the waiting take the time of an action on top, 200 ms as it comes."""
    (seconds,) = search(r"wait (\d+) seconds", scene.goal)
    waiting = call("wait", milliseconds=int(seconds) * 1000 - 400)
    return [submit(scene.first, "ONE"), waiting, submit(scene.first, "TWO")]


@plays("stock-market")
def _(scene: PlayerConversation) -> Action:
    """Look for six seconds now and then, and then all the time: it falls low enough at 7.6."""
    (most,) = search(r"less than \$(\d+\.\d+)", scene.goal)
    (price,) = search(r"Stock price: \$(\d+\.\d+)", scene.page.text)
    if float(price) <= float(most):
        return submit(scene.page, "Buy")
    return call("wait", milliseconds=1000 if len(scene.calls) < 6 else 0)


@plays("click-pie", "click-pie-nodelay")
def _(scene: PlayerConversation) -> Action:
    """It unfolds for more than a second."""
    if len(scene.calls) == 1:
        return call("wait", milliseconds=2000)
    return click(scene.page.find("label", scene.quoted[0] if scene.calls else "+"))


@plans("click-widget")
def _(scene: PlayerConversation) -> Sequence[Action]:
    kind = scene.quoted[0]
    role = {"text": "textbox", "textarea": "textbox"}.get(kind, kind)
    several = kind == "textarea"
    return [click(next(n for n in scene.first.all(role) if n.has("multiline") == several))]


@plans("click-shades")
def _(scene: PlayerConversation) -> Sequence[Action]:
    (shade,) = search(r"shades of (\w+)", scene.goal)
    channel = ("red", "green", "blue").index(shade)
    boxes = [node for node in scene.first.all("generic") if node.has("fill")]
    matches = [box for box in boxes if _find_strongest_channel(box.value("fill")) == channel]
    return [*map(click, matches), submit(scene.first)]


@plans("ascending-numbers")
def _(scene: PlayerConversation) -> Sequence[Action]:
    labels = sorted(scene.first.all("label"), key=lambda node: int(node.name))
    return [call("click_at", x=label.at[0], y=label.at[1]) for label in labels]


@plans("grid-coordinate")
def _(scene: PlayerConversation) -> Sequence[Action]:
    x, y = map(int, search(r"\((-?\d+),(-?\d+)\)", scene.goal))
    circles = scene.first.all("circle")
    columns = sorted({circle.at[0] for circle in circles})
    rows = sorted({circle.at[1] for circle in circles}, reverse=True)
    place = (columns[x + 2], rows[y + 2])
    return [click(next(circle for circle in circles if circle.at == place))]


@plans("find-greatest")
def _(scene: PlayerConversation) -> Sequence[Action]:
    cards = [node for node in scene.first.all("generic") if node.name.lstrip("-").isdigit()]
    return [click(max(cards, key=lambda card: int(card.name))), submit(scene.first)]


@plans("click-shape")
def _(scene: PlayerConversation) -> Sequence[Action]:
    (target,) = search(r"Click on an? (.+)", scene.goal)
    return [click(next(node for node in _find_shapes(scene.first) if fits(node, target)))]


@plans("count-shape")
def _(scene: PlayerConversation) -> Sequence[Action]:
    (target,) = search(r"How many (.+) are there", scene.goal)
    count = sum(fits(node, target) for node in _find_shapes(scene.first))
    return [submit(scene.first, str(count))]


@plans("identify-shape")
def _(scene: PlayerConversation) -> Sequence[Action]:
    shape = _find_shapes(scene.first)[0]
    kinds = {"rect": "Rectangle", "circle": "Circle", "polygon": "Triangle"}
    name = kinds.get(shape.role) or ("Number" if shape.name.isdigit() else "Letter")
    return [submit(scene.first, name)]


@plans("odd-or-even")
def _(scene: PlayerConversation) -> Sequence[Action]:
    nodes = scene.first.nodes
    numbers = [at for at, node in enumerate(nodes) if node.role == "text"]
    odd = {at: int(nodes[at].name) % 2 for at in numbers}
    return [*(click(nodes[at - 1 if odd[at] else at + 1]) for at in numbers), submit(scene.first)]


@plans("buy-ticket")
def _(scene: PlayerConversation) -> Sequence[Action]:
    nodes = scene.first.nodes
    tickets = list[tuple[AccessibilityNode, Mapping[str, int]]]()
    for at, node in enumerate(nodes):
        if node.role == "button":
            (cost,) = search(r"\$(\d+)", node.name)
            hours, minutes = search(r"(\d+)h (\d+)m", nodes[at - 1].name)
            length = int(hours) * 60 + int(minutes)
            tickets.append((node, {"cost": int(cost), "duration": length}))
    by = "cost" if "cost" in scene.goal else "duration"
    ordered = sorted(tickets, key=lambda ticket: ticket[1][by])
    most = "most expensive" in scene.goal or "longest" in scene.goal
    return [click(ordered[-1 if most else 0][0])]


def fits(node: AccessibilityNode, wanted: str) -> bool:
    """Say whether a shape is what a description of size, colour and kind names."""
    return all(_matches_word(node, word) for word in wanted.split())


def _matches_word(node: AccessibilityNode, word: str) -> bool:
    one = word.removesuffix("s") if len(word) > 1 else word
    if one in ("shape", "item"):
        return one == "item" or node.role != "label"
    if one in ("small", "large"):
        return (node.size[1] > 15) == (one == "large")
    if one in ("digit", "letter"):
        return node.role == "label" and node.name.isdigit() == (one == "digit")
    if one in ("rectangle", "circle", "triangle"):
        return node.role == {"rectangle": "rect", "triangle": "polygon"}.get(one, one)
    if len(one) == 1:
        return node.name == one
    return node.value("fill") == _convert_colour(one)


def _convert_colour(colour: str) -> str:
    return {"aqua": "cyan", "gray": "grey"}.get(colour, colour)


def _find_shapes(page: ObservedPage) -> list[AccessibilityNode]:
    return [node for node in page.nodes if node.role in ("rect", "circle", "polygon", "label")]


def _find_strongest_channel(fill: str) -> int:
    colours = {"red": "#ff0000", "lime": "#00ff00", "green": "#008000", "blue": "#0000ff"}
    hex_ = colours.get(fill, fill).lstrip("#")
    parts = [int(hex_[at : at + 2], 16) for at in (0, 2, 4)]
    return parts.index(max(parts))

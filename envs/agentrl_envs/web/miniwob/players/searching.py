"""Players of families in which one looks for something first: mail, posts, trees, calendars."""

from collections.abc import Sequence

from agentrl.env import Action
from agentrl_envs.web.miniwob.players.scene import (
    PlayerConversation,
    click,
    fields,
    fill,
    plans,
    plays,
    search,
    submit,
    texts,
)
from agentrl_envs.web.observation import AccessibilityNode, ObservedPage

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)


@plays("choose-date", "choose-date-easy", "choose-date-medium", "choose-date-nodelay")
def _(scene: PlayerConversation) -> Action:
    """Open the calendar, leaf to the month, take the day."""
    month, day, _ = map(int, search(r"(\d\d)/(\d\d)/(\d{4})", scene.goal))
    field = fields(scene.page)[0]
    if field.value():
        return submit(scene.page)
    months = [text.split()[0] for text in texts(scene.page) if text.split()[0] in _MONTHS]
    if not months:
        return click(field)
    at = _MONTHS.index(months[0]) + 1
    if at != month:
        return click(scene.page.find(None, "Prev" if month < at else "Next"))
    return click(scene.page.find("link", str(day)))


@plays("phone-book")
def _(scene: PlayerConversation) -> Action:
    name, what = search(r"Find (.+) in the contact book and click on their (.+)\.", scene.goal)
    if not scene.page.all("heading", name):
        return click(scene.page.find("link", ">"))
    label = {"phone number": "Phone:", "email": "Email:", "address": "Address:"}[what]
    nodes = scene.page.nodes
    at = next(at for at, node in enumerate(nodes) if node.name == label)
    return click(nodes[at + 1])


@plays("search-engine")
def _(scene: PlayerConversation) -> Action:
    """Leaf until the result is on the page; three are on each."""
    (nth,) = search(r"the (\d+)\w+ search result", scene.goal)
    if not scene.calls:
        return fill(fields(scene.page)[0], scene.quoted[0])
    if len(scene.calls) == 1:
        return submit(scene.page, "Search")
    page_number, at = divmod(int(nth) - 1, 3)
    turned = len(scene.calls) - 2
    if turned < page_number:
        return click(scene.page.find("link", ">"))
    results = [n for n in scene.page.all("link") if not n.name.isdigit() and n.name not in "<>"]
    return click(results[at])


@plays("navigate-tree")
def _(scene: PlayerConversation) -> Action:
    """Open folders, the first ones first, until the name is there."""
    name = scene.quoted[0]
    for node in scene.page.all("generic", name):
        return click(node)
    closed = [n for n in scene.page.nodes if "expandable-hitarea" in n.value("class")]
    return click(next(node for node in closed if not scene.count_clicks(node.id)))


@plans("social-media-all", "social-media-some")
def _(scene: PlayerConversation) -> Sequence[Action]:
    (user,) = search(r"posts? by (@\w+)", scene.goal)
    kind = scene.quoted[0].lower()
    icons = [n for n, author in _find_icons(scene.first) if author == user and _has_class(n, kind)]
    if "on all posts" not in scene.goal:
        icons = icons[: int(search(r"on (\d+) posts?", scene.goal)[0])]
    return [*map(click, icons), submit(scene.first)]


@plays("social-media")
def _(scene: PlayerConversation) -> Action:
    (user,) = search(r"For the user (@\w+)", scene.goal)
    name = scene.quoted[0]
    kind = name.lower() if name in ("Reply", "Retweet", "Like") else "more"
    if scene.calls:
        names = (name, f"{name} {user}")
        return click(next(n for n in scene.page.nodes if n.id and n.name in names))
    icons = [n for n, author in _find_icons(scene.page) if author == user and _has_class(n, kind)]
    return click(icons[0])


@plans("order-food")
def _(scene: PlayerConversation) -> Sequence[Action]:
    """Each dish is a text, the marks of what is in it, and a button for less and one for more."""
    more = dict[str, AccessibilityNode]()
    marks = dict[str, list[str]]()
    dish = ""
    for node in scene.first.nodes:
        if node.role == "text":
            dish = node.name
        elif node.role == "img":
            marks.setdefault(dish, []).append(node.name)
        elif node.name == "+":
            more[dish] = node
    if "one of each" in scene.goal:
        dishes = scene.goal.split("item: ")[1].split(", ")
    else:
        count, mark = search(r"Order (\d+) items? that (?:are|is) (.+)", scene.goal)
        having = [dish for dish in more if mark in marks.get(dish, [])]
        dishes = [having[at % len(having)] for at in range(int(count))]
    return [*(click(more[dish]) for dish in dishes), submit(scene.first, "Order!")]


@plays(
    *("email-inbox", "email-inbox-delete", "email-inbox-important", "email-inbox-noscroll"),
    *("email-inbox-reply", "email-inbox-star-reply", "email-inbox-forward"),
)
def _(scene: PlayerConversation) -> Action:
    (name,) = search(r"the email by (\w+)", scene.goal)
    for verb, icon in (("delete it", "trash"), ("mark it as important", "star")):
        if verb in scene.goal:
            return click(_find_icon(scene.page, name, icon))
    if not scene.calls:
        return click(_find_mail(scene.page, name))
    forward = "forward" in scene.goal
    if len(scene.calls) == 1:
        label = "forward" if forward else "reply"
        return click(next(n for n in scene.page.nodes if label in _describe(n)))
    boxes = fields(scene.page)
    text = search(r"forward that email to (\w+)", scene.goal)[0] if forward else scene.quoted[0]
    if len(scene.calls) == 2:
        return fill(boxes[0], text)
    return click(next(n for n in scene.page.nodes if "send" in _describe(n)))


def _describe(node: AccessibilityNode) -> str:
    return f"{node.name} {node.value('class')}".lower() if node.id else ""


def _find_mail(page: ObservedPage, name: str) -> AccessibilityNode:
    line: AccessibilityNode | None = None
    for node in page.nodes:
        if node.id and node.depth == 0:
            line = node
        if node.name.split(" ")[0] == name and line is not None:
            return line
    raise LookupError(f"no mail by {name}: {page.text}")


def _find_icon(page: ObservedPage, name: str, icon: str) -> AccessibilityNode:
    line = _find_mail(page, name)
    return next(n for n in page.under(line) if icon in n.value("class").split())


def _find_icons(page: ObservedPage) -> list[tuple[AccessibilityNode, str]]:
    """Return the icons, each with the user whose post it is under."""
    author, icons = "", list[tuple[AccessibilityNode, str]]()
    for node in page.nodes:
        words = [word for word in node.name.split() if word.startswith("@")]
        if node.role == "text" and words:
            author = words[0]
        elif node.id:
            icons.append((node, author))
    return icons


def _has_class(node: AccessibilityNode, kind: str) -> bool:
    return kind in node.value("class").split()

"""Tasks in a browser, Chromium, on a site of our own: judged by what the site and it wrote down."""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from agentrl.runtime.json_limits import JsonLimitError, read_json
from agentrl_envs.accessibility.reading import ObservedPage
from agentrl_envs.gui.inside.site import COMMAND, PORT, STATE
from agentrl_envs.gui.tasks.moves import click, finish, press, type_text
from agentrl_envs.gui.tasks.state import FOLDER, are_documents_right, documents
from agentrl_envs.gui.tasks.template import DesktopTemplate
from agentrl_envs.gui.tasks.words import CITIES, FIRST_NAMES, LAST_NAMES, OPTIONS, THINGS, WORDS
from agentrl_envs.gui.world import LiveDesktop
from agentrl_envs.templates import Wanted
from agentrl_envs.web.sites.play import Script

CHROMIUM = "/usr/lib/chromium/chromium"
"""The program itself: Debian's script before it wants files of /etc."""
_FOLDER = "site"
_PROFILE = ".config/chromium"
_ORIGIN = f"http://localhost:{PORT}"
_FEATURES_OFF = (
    # Windows of the browser's own, without anything in them.
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup", "AimEnabled"),
    *("HttpsUpgrades", "HttpsFirstBalancedModeAutoEnable", "MediaRouter", "OptimizationHints"),
    *("PaintHolding", "PreloadTopChromeWebUI", "Translate"),
)
BROWSER = (
    # Without a desktop of GNOME it shows its tree only when it is told that somebody wants it.
    *("env", "ACCESSIBILITY_ENABLED=1", CHROMIUM),
    *("--force-renderer-accessibility", f"--user-data-dir=/home/user/{_PROFILE}"),
    *("--no-first-run", "--no-default-browser-check", "--password-store=basic"),
    *("--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-extensions", "--disable-breakpad", "--mute-audio"),
    *("--disable-search-engine-choice-screen", "--disable-smooth-scrolling"),
    f"--disable-features={','.join(_FEATURES_OFF)}",
)
"""Chromium as it is started on a desktop; its own sandbox works in there and stays on."""

_KINDS = ("Kitchen", "Garden", "Office", "Cellar")
_PREFERENCES = {"browser": {"hovercard": {"memory_usage_enabled": False}}}
"""A tab says otherwise how much memory its page holds, which is never the same."""


def _site(
    pages: Mapping[str, Any],
    *,
    forms: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the parts of a site; `forms` says where each leads once it is sent."""
    nav = [(page["title"], path) for path, page in pages.items() if not page.get("aside")]
    return {"nav": nav, "pages": pages, "forms": forms or {}, "files": files or {}}


def _page(title: str, *blocks: Mapping[str, Any], aside: bool = False) -> dict[str, Any]:
    return {"title": title, "blocks": blocks, "aside": aside}


def _text(text: str) -> dict[str, Any]:
    return {"kind": "text", "text": text}


def _path(title: str) -> str:
    return f"/{title.lower().replace(' ', '-')}"


def _full_names(random: Random, count: int) -> list[str]:
    firsts, lasts = random.sample(FIRST_NAMES, count), random.sample(LAST_NAMES, count)
    return [f"{first} {last}" for first, last in zip(firsts, lasts, strict=True)]


# -- a form ----------------------------------------------------------------------------------------


def _make_form(random: Random) -> Wanted:
    (name,), label = _full_names(random, 1), random.choice(list(OPTIONS))
    option, city = random.choice(OPTIONS[label]), random.choice(CITIES)
    fields = [
        {"kind": "text", "name": "Name"},
        {"kind": "text", "name": "City"},
        {"kind": "choice", "name": label, "options": OPTIONS[label]},
        {"kind": "check", "name": "Newsletter"},
    ]
    form = {"kind": "form", "action": "/join", "fields": fields, "button": "Send"}
    pages = {
        "/": _page("Welcome", _text("Members read more.")),
        "/join": _page("Join", form),
        "/thanks": _page("Thank you", _text("We have got your form."), aside=True),
    }
    return {
        "goal": f'On the page "Join" of the site that is open, fill in the form and send it: Name '
        f'"{name}", City "{city}", {label} "{option}", with the Newsletter.',
        "site": _site(pages, forms={"/join": "/thanks"}),
        "sent": [
            {"form": "/join", "fields": {"Name": name, "City": city, label: option,
                                         "Newsletter": "on"}}
        ],
        "label": label, "option": option, "name": name, "city": city,
    }  # fmt: skip


def _play_form(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "link", "Join")
    page = yield click(page, "textbox", "Name")
    page = yield type_text(wanted["name"])
    page = yield click(page, "textbox", "City")
    page = yield type_text(wanted["city"])
    page = yield click(page, "combobox", wanted["label"])
    page = yield type_text(wanted["option"])
    page = yield press("Return")
    page = yield click(page, "checkbox", "Newsletter")
    page = yield click(page, "button", "Send")
    yield finish()


def _make_edit(random: Random) -> Wanted:
    names = _full_names(random, 4)
    cities = random.sample(CITIES, 5)
    at, new = random.randrange(4), cities[4]
    pages = {"/": _page("Members", {"kind": "links", "links": [
        (name, f"/member/{i}") for i, name in enumerate(names)
    ]})}  # fmt: skip
    for i, name in enumerate(names):
        fields = [
            {"kind": "text", "name": "Name", "value": name},
            {"kind": "text", "name": "City", "value": cities[i]},
        ]
        form = {"kind": "form", "action": f"/member/{i}", "fields": fields, "button": "Save"}
        pages[f"/member/{i}"] = _page(name, form, aside=True)
    return {
        "goal": f"{names[at]} has moved to {new}. Change the City on that member's page of the "
        "site that is open, and save it.",
        "site": _site(pages, forms={f"/member/{i}": "/" for i in range(4)}),
        "sent": [{"form": f"/member/{at}", "fields": {"Name": names[at], "City": new}}],
        "name": names[at], "city": new,
    }  # fmt: skip


def _play_edit(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "link", wanted["name"])
    page = yield click(page, "textbox", "City", verb="triple_click")
    page = yield type_text(wanted["city"])
    page = yield click(page, "button", "Save")
    yield finish()


# -- pages -----------------------------------------------------------------------------------------


def _shop(random: Random) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Return the pages of a shop, and the prices of every one."""
    things = [f"{thing} {random.randint(100, 999)}" for thing in random.sample(THINGS, 9)]
    kinds = [f"{kind} {random.randint(10, 99)}" for kind in random.sample(_KINDS, 3)]
    prices: dict[str, dict[str, str]] = {}
    pages = {"/": _page("Start", _text("Choose a page above."))}
    for i, kind in enumerate(kinds):
        prices[kind] = {
            thing: f"{random.randint(2, 99)}.{random.randint(10, 99)}"
            for thing in things[3 * i : 3 * i + 3]
        }
        table = {"kind": "table", "head": ["Article", "Price"], "rows": [*prices[kind].items()]}
        pages[_path(kind)] = _page(kind, table)
    return pages, prices


def _make_answer(random: Random) -> Wanted:
    pages, prices = _shop(random)
    kind = random.choice(list(prices))
    thing = random.choice(list(prices[kind]))
    goal = (
        f"What is the price of {thing} on the site that is open? Its page is one of those linked "
        "at the top. Answer with the number alone."
    )
    return {
        "goal": goal, "site": _site(pages), "sent": [], "answer": prices[kind][thing],
        "thing": thing, "page": kind,
    }  # fmt: skip


def _read_after(page: ObservedPage, name: str) -> str:
    """Return the name of the node after the last one of a name."""
    names = [node.name for node in page.nodes]
    return names[len(names) - names[::-1].index(name)]


def _play_answer(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "link", wanted["page"])
    yield finish(_read_after(page, wanted["thing"]))


def _make_press(random: Random) -> Wanted:
    words = random.sample(WORDS, 4)
    paths = [f"{word}-{random.randint(10, 99)}" for word in words]
    pages = {"/": _page("Start", _text("Pages are opened by their addresses."))}
    for path in paths:
        form = {"kind": "form", "action": f"/{path}", "fields": [], "button": "Confirm"}
        pages[f"/{path}"] = _page(path.capitalize(), form, aside=True)
    return {
        "goal": f"Open the address {_ORIGIN}/{paths[0]} in the browser and press Confirm there.",
        "site": _site(pages, forms={f"/{path}": "/" for path in paths}),
        "sent": [{"form": f"/{paths[0]}", "fields": {}}], "address": f"{_ORIGIN}/{paths[0]}",
    }  # fmt: skip


def _play_press(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield press("ctrl+l")
    page = yield type_text(f"{wanted['address']}\n")
    page = yield click(page, "button", "Confirm")
    yield finish()


def _make_bookmark(random: Random) -> Wanted:
    pages, prices = _shop(random)
    kind = random.choice(list(prices))
    goal = f'Bookmark the page "{kind}" of the site that is open, and no other.'
    return {
        "goal": goal, "site": _site(pages), "sent": [], "page": kind,
        "bookmarks": [f"{_ORIGIN}{_path(kind)}"],
    }  # fmt: skip


def _play_bookmark(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "link", wanted["page"])
    page = yield press("ctrl+d")
    page = yield press("Return")
    yield finish()


def _make_download(random: Random) -> Wanted:
    names = [f"{word}-{random.randint(10, 99)}.csv" for word in random.sample(WORDS, 4)]
    files = {
        f"/files/{name}": "".join(f"{i},{random.randint(100, 999)}\n" for i in range(5))
        for name in names
    }
    links = {"kind": "links", "links": [(name, f"/files/{name}") for name in names]}
    pages = {"/": _page("Start", _text("Our figures:")), "/figures": _page("Figures", links)}
    return {
        "goal": f'Download the file {names[0]} from the page "Figures" of the site that is open, '
        "and no other.",
        "site": _site(pages, files=files), "sent": [], "name": names[0],
        "downloads": {names[0]: files[f"/files/{names[0]}"]},
    }  # fmt: skip


def _play_download(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "link", "Figures")
    page = yield click(page, "link", wanted["name"])
    yield finish()


def _make_note(random: Random) -> Wanted:
    names = _full_names(random, 5)
    rows = [(name, f"{random.randint(10**5, 10**6)}") for name in names]
    table = {"kind": "table", "head": ["Name", "Number"], "rows": rows}
    name, number = random.choice(rows)
    file = f"{random.choice(WORDS)}-{random.randint(10, 99)}.txt"
    return {
        "goal": f"Look up the number of {name} on the site in the browser, write it into the empty "
        f"file {file}, which is open in the editor, and save it.",
        "site": _site({"/": _page("Start", _text("Welcome.")), "/people": _page("People", table)}),
        "sent": [], "files": {file: ""}, "after": {file: number}, "name": name, "open": file,
    }  # fmt: skip


def _play_note(page: ObservedPage, wanted: Wanted) -> Script:
    page = yield click(page, "link", "People")
    number = _read_after(page, wanted["name"])
    page = yield press("alt+Tab")
    page = yield type_text(number)
    page = yield press("ctrl+s")
    yield finish()


# -- what is judged --------------------------------------------------------------------------------


async def _is_site_right(desktop: LiveDesktop, wanted: Wanted, said: str) -> bool:
    """Say whether the site got these forms and no other, the files and the bookmarks are right."""
    if "answer" in wanted and " ".join(said.split()) != wanted["answer"]:
        return False
    data = await desktop.read(f"{_FOLDER}/{STATE}")
    try:
        if (read_json(data) if data else []) != wanted["sent"]:
            return False
    except JsonLimitError:
        return False
    if "after" in wanted and not await are_documents_right(desktop, wanted, ""):
        return False
    if "downloads" in wanted:
        there = await desktop.files("Downloads")
        texts = {name: await desktop.read(f"Downloads/{name}") for name in there}
        if texts != {name: text.encode() for name, text in wanted["downloads"].items()}:
            return False
    if "bookmarks" in wanted:
        await desktop.quit()
        bookmarks = await desktop.read(f"{_PROFILE}/Default/Bookmarks")
        return read_bookmarks(bookmarks) == wanted["bookmarks"]
    return True


def read_bookmarks(data: bytes | None) -> list[str]:
    """Return the addresses in Chromium's file of bookmarks, in all its folders; none of a file
    that is over a limit."""
    urls: list[str] = []
    try:
        wave = deque[Any](read_json(data)["roots"].values() if data else ())
        while wave:
            one = wave.popleft()
            if one.get("type") == "url":
                urls.append(one["url"])
            wave.extend(one.get("children", ()))
    except (JsonLimitError, TypeError, KeyError, AttributeError):
        return []
    return urls


def _files(wanted: Wanted) -> Mapping[str, bytes]:
    site = json.dumps(wanted["site"], ensure_ascii=False).encode()
    more = documents(wanted) if "files" in wanted else {}
    settings = {f"{_PROFILE}/Local State": json.dumps(_PREFERENCES).encode()}
    return {f"{_FOLDER}/site.json": site, "Downloads/": b"", **settings, **more}


def _programs(wanted: Wanted) -> Sequence[Sequence[str]]:
    browser = [*COMMAND, f"/home/user/{_FOLDER}/site.json", *BROWSER, f"{_ORIGIN}/"]
    if "open" not in wanted:
        return [browser]
    return [["mousepad", f"/home/user/{FOLDER}/{wanted['open']}"], browser]


_template = partial(
    DesktopTemplate, program="browser", check=_is_site_right, programs=_programs, files=_files
)
BROWSER_TEMPLATES: tuple[DesktopTemplate, ...] = (
    _template("web_press", 1, _make_press, _play_press),
    _template("web_answer", 1, _make_answer, _play_answer),
    _template("web_download", 2, _make_download, _play_download),
    _template("web_bookmark", 2, _make_bookmark, _play_bookmark),
    _template("web_form", 2, _make_form, _play_form),
    _template("web_edit", 3, _make_edit, _play_edit),
    _template("web_note", 3, _make_note, _play_note),
)
"""Kinds of tasks in a browser."""

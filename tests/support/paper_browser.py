"""A browser made of paper: pages of our own sites as the accessibility tree that players read.

It knows links, forms and text, and runs no script: what a site does can be tested without Chromium.
"""

import asyncio
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode, urljoin

from agentrl.env import Action
from agentrl_envs.accessibility.node import AccessibilityNode
from agentrl_envs.web.episode_site import SiteVerdict, WebRequest
from agentrl_envs.web.sites.asgi import AsgiSite

HEADINGS = ("h1", "h2", "h3")
VOID = ("input", "meta", "br", "link")


@dataclass(slots=True)
class Thing:
    """An element that can be acted on, or a piece of text."""

    tag: str
    attributes: dict[str, str]
    form: "Thing | None" = None
    name: str = ""
    value: str = ""
    options: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    checked: bool = False

    @property
    def role(self) -> str:
        kind = self.attributes.get("type", "")
        return {
            "a": "link",
            "button": "button",
            "select": "combobox",
            "input": "checkbox" if kind == "checkbox" else "textbox",
            "textarea": "textbox",
            "text": "text",
        }.get(self.tag, "heading")


class Reader(HTMLParser):
    """Reads a page into things, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.title = ""
        self.things: list[Thing] = []
        self.hidden: list[Thing] = []
        self._form: Thing | None = None
        self._label = ""
        self._open: list[str] = []
        self._current: Thing | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {key: value or "" for key, value in attrs}
        if tag not in VOID:
            self._open.append(tag)
        if tag == "form":
            self._form = Thing(tag, attributes)
        elif tag == "label":
            self._label = ""
        elif tag == "option":
            assert self._current is not None
            self._current.options.append((attributes.get("value", "\0"), ""))
            if "selected" in attributes or len(self._current.options) == 1:
                self._current.value = str(len(self._current.options) - 1)
        elif tag in ("a", "button", "input", "select", "textarea", *HEADINGS):
            thing = Thing(tag, attributes, form=self._form, value=attributes.get("value", ""))
            thing.name = attributes.get("aria-label", self._label.strip())
            thing.checked = "checked" in attributes
            if attributes.get("type") == "hidden":
                self.hidden.append(thing)
                return
            self.things.append(thing)
            if tag != "input":
                self._current = thing
            elif thing.role == "checkbox":
                thing.name = ""

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass
        if tag == "form":
            self._form = None
        elif tag in ("a", "button", "select", "textarea", *HEADINGS):
            self._current = None
        elif tag == "label":
            self._label = ""

    def handle_data(self, data: str) -> None:
        words = " ".join(data.split())
        inside = self._open[-1] if self._open else ""
        if inside in ("script", "style") or not words:
            return
        if inside == "title":
            self.title = words
        elif inside == "option":
            assert self._current is not None
            value, _ = self._current.options[-1]
            self._current.options[-1] = (words if value == "\0" else value, words)
        elif inside == "textarea":
            assert self._current is not None
            self._current.value = data.removeprefix("\n")
        elif inside in ("a", "button", *HEADINGS):
            assert self._current is not None
            self._current.name = self._current.attributes.get("aria-label", words)
        elif "label" in self._open:
            self._label += words
            last = self.things[-1] if self.things else None
            if last and last.role == "checkbox" and not last.name:
                last.name = words
        else:
            self.things.append(Thing("text", {}, name=words))


class PaperBrowser:
    """One visit of a world."""

    def __init__(self, world: AsgiSite[Any]) -> None:
        self.world = world
        self.url = ""
        self.status = 0
        self.page = Reader("")
        self.get(world.start_url)

    def get(self, url: str) -> None:
        self._request(WebRequest(method="GET", url=url, headers={}))

    def _request(self, request: WebRequest) -> None:
        response = asyncio.run(self.world.answer(request))
        assert response is not None, request
        self.url, self.status = request.url, response.status
        if response.status == 303:
            self.get(urljoin(request.url, response.headers["location"]))
        else:
            self.page = Reader(response.body.decode())

    @property
    def text(self) -> str:
        """What the agent would read."""
        lines = [f"url: {self.url}", f"title: {self.page.title}"]
        for id, thing in enumerate(self.page.things, start=1):
            shown: dict[str, str] = {}
            if thing.role == "combobox":
                shown["value"] = thing.options[int(thing.value)][1]
            elif thing.value and thing.role == "textbox":
                shown["value"] = " ".join(thing.value.split())
            plain = thing.role in ("text", "heading")
            node = AccessibilityNode(
                role=thing.role, name=thing.name, id=None if plain else id, attributes=shown
            )
            lines.append(node.line)
        return "\n".join(lines)

    def act(self, action: Action) -> SiteVerdict:
        """Do what a player does, and judge."""
        (call,) = action.tool_calls
        arguments = dict(call.arguments)
        if call.name == "answer":
            return self.world.check(self.world.state, arguments["text"])
        thing = self.page.things[arguments["id"] - 1]
        match call.name:
            case "fill":
                assert thing.role == "textbox"
                thing.value = arguments["text"]
            case "select":
                labels = [label for _, label in thing.options]
                thing.value = str(labels.index(arguments["option"]))
            case "click":
                self._click(thing)
            case name:
                raise AssertionError(f"a paper browser cannot {name}")
        return self.world.check(self.world.state, None)

    def _click(self, thing: Thing) -> None:
        if thing.role == "link":
            self.get(urljoin(self.url, thing.attributes["href"]))
        elif thing.role == "checkbox":
            thing.checked = not thing.checked
        elif thing.form is not None:
            self._submit(thing.form)

    def _submit(self, form: Thing) -> None:
        sent: list[tuple[str, str]] = []
        for thing in [*self.page.things, *self.page.hidden]:
            if thing.form is not form or "name" not in thing.attributes:
                continue
            if thing.role == "combobox":
                sent.append((thing.attributes["name"], thing.options[int(thing.value)][0]))
            elif thing.role != "checkbox" or thing.checked:
                value = "on" if thing.role == "checkbox" else thing.value
                sent.append((thing.attributes["name"], value))
        url = urljoin(self.url, form.attributes["action"])
        if form.attributes.get("method") == "post":
            headers = {"content-type": "application/x-www-form-urlencoded"}
            body = urlencode(sent).encode()
            self._request(WebRequest(method="POST", url=url, headers=headers, body=body))
        else:
            self.get(f"{url}?{urlencode(sent)}")

"""The browser on the desktop: its site, how it is held to it, what is judged, what is shown.

Mutants seen caught, each applied to a copy of the tree: submissions not kept; unescaped pages; any
form accepted; any number of submissions judged right; further downloads overlooked; bookmarks only
of the bar; bookmarks read without asking the browser to end; no policies; settings not renewed
between episodes; /tmp, shared memory, a folder of a part or the log kept; marks of embedded
elements shown; texts told twice; windows without anything in them numbered; a closing message
compared where there is no answer.
"""

import http.client
import json
import re
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentrl.env import Step, call
from agentrl.task import Task
from agentrl_envs.accessibility.node import AccessibilityNode
from agentrl_envs.accessibility.reading import ObservedPage, read
from agentrl_envs.gui import GuiEnv
from agentrl_envs.gui.desktop import DesktopPool, DesktopSession, DesktopSettings
from agentrl_envs.gui.inside.site import STATE, BrowserSite, handler
from agentrl_envs.gui.observation import DesktopObservationOptions, ElementNumbers, build_nodes
from agentrl_envs.gui.tasks import template_pack
from agentrl_envs.gui.tasks.browser import BROWSER_TEMPLATES, read_bookmarks
from tests.support.processes import command_line, family

SETTINGS = DesktopSettings(desktops=1, warm=0, call_s=120, start_s=120, settle_s=20)
live = pytest.mark.gui
on_module_loop = pytest.mark.asyncio(loop_scope="module")


def first_task(name: str) -> Task:
    (task,) = islice(template_pack(templates=[name]).tasks("heldout", 1), 1)
    return task


def check_of(name: str) -> Any:
    return next(template.check for template in BROWSER_TEMPLATES if template.name == name)


# -- the site --------------------------------------------------------------------------------------

SPEC: dict[str, Any] = {
    "nav": [("A <b>", "/a?x=1&y=2")],
    "pages": {
        "/": {
            "title": "<Start>",
            "blocks": [
                {"kind": "text", "text": "1 < 2 & 3"},
                {"kind": "links", "links": [("to", "/to")]},
                {"kind": "table", "head": ["H"], "rows": [["<i>"]]},
                {
                    "kind": "form",
                    "action": "/send",
                    "button": "Send",
                    "fields": [
                        {"kind": "text", "name": "Name", "value": 'a"b'},
                        {"kind": "choice", "name": "Size", "options": ["S", "M"]},
                        {"kind": "check", "name": "On"},
                    ],
                },
            ],
        }
    },
    "forms": {"/send": "/"},
    "files": {"/f.csv": "1,2\n"},
}


@dataclass(frozen=True, slots=True)
class Served:
    """A site that answers on a port of this machine."""

    folder: Path
    port: int

    def ask(
        self, method: str, path: str, body: str | None = None
    ) -> tuple[int, str, Mapping[str, str]]:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            line.request(method, path, body)
            answer = line.getresponse()
            return answer.status, answer.read().decode(), dict(answer.getheaders())
        finally:
            line.close()

    @property
    def sent(self) -> Any:
        state = self.folder / STATE
        return json.loads(state.read_text()) if state.exists() else []


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(BrowserSite(SPEC, str(tmp_path))))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Served(tmp_path, server.server_address[1])
    server.shutdown()
    server.server_close()
    thread.join(60)


def test_a_page_is_written_as_text_and_not_as_markup(served: Served) -> None:
    status, page, _ = served.ask("GET", "/?from=elsewhere")
    assert status == 200
    for part in (
        "<title>&lt;Start&gt;</title>",
        "<p>1 &lt; 2 &amp; 3</p>",
        '<a href="/a?x=1&amp;y=2">A &lt;b&gt;</a>',
        "<td>&lt;i&gt;</td>",
        'value="a&quot;b"',
        "<option>M</option>",
        '<input type="checkbox" name="On"',
    ):
        assert part in page, part
    assert served.ask("GET", "/none")[0] == 404


def test_a_file_is_downloaded_and_not_shown(served: Served) -> None:
    status, text, headers = served.ask("GET", "/f.csv")
    assert (status, text) == (200, "1,2\n")
    assert headers["Content-Disposition"] == "attachment"


def test_what_is_submitted_is_kept_in_order(served: Served) -> None:
    assert served.sent == []
    status, _, headers = served.ask("POST", "/send", "Name=J%C3%B6rg+K&Size=&On=on")
    assert (status, headers["Location"]) == (303, "/")
    served.ask("POST", "/send", "Name=2")
    assert served.sent == [
        {"form": "/send", "fields": {"Name": "Jörg K", "Size": "", "On": "on"}},
        {"form": "/send", "fields": {"Name": "2"}},
    ]
    assert served.ask("POST", "/other", "Name=3")[0] == 404
    assert served.ask("POST", "/send?x=1", "Name=4")[0] == 404
    assert len(served.sent) == 2
    assert [path.name for path in served.folder.iterdir()] == [STATE]


# -- what is judged --------------------------------------------------------------------------------


@dataclass(slots=True)
class Left:
    """What an episode left on its desktop."""

    there: dict[str, bytes]
    has_quit: bool = field(default=False)

    async def read(self, path: str) -> bytes | None:
        late = path.endswith("/Bookmarks") and not self.has_quit
        return None if late else self.there.get(path)

    async def files(self, folder: str) -> Mapping[str, str]:
        return {
            path.removeprefix(f"{folder}/"): "file"
            for path in self.there
            if path.startswith(f"{folder}/")
        }

    async def quit(self) -> bool:
        self.has_quit = True
        return True

    async def nodes(self) -> Sequence[AccessibilityNode]:
        return ()


def state(sent: Any) -> dict[str, bytes]:
    return {f"site/{STATE}": json.dumps(sent).encode()}


@pytest.mark.parametrize("name", ["web_press", "web_form", "web_edit"])
async def test_only_what_was_asked_for_may_be_sent_and_once(name: str) -> None:
    wanted: dict[str, Any] = first_task(name).data["wanted"]
    check, (sent,) = check_of(name), wanted["sent"]
    assert await check(Left(state([sent])), wanted, "")
    assert await check(Left(state([sent])), wanted, "It is sent.\n\nAnything  else?\n")
    assert not await check(Left({}), wanted, "")
    assert not await check(Left(state([sent, sent])), wanted, "")
    assert not await check(Left(state([{**sent, "form": "/other"}])), wanted, "")
    assert not await check(
        Left(state([{**sent, "fields": {**sent["fields"], "x": ""}}])), wanted, ""
    )
    for field_name in sent["fields"]:
        other = {**sent["fields"], field_name: "other"}
        assert not await check(Left(state([{**sent, "fields": other}])), wanted, "")


async def test_a_download_is_judged_by_all_that_was_downloaded() -> None:
    wanted: dict[str, Any] = first_task("web_download").data["wanted"]
    check, ((name, text),) = check_of("web_download"), wanted["downloads"].items()
    right = {f"Downloads/{name}": text.encode()}
    assert await check(Left(right), wanted, "")
    assert not await check(Left({}), wanted, "")
    assert not await check(Left({f"Downloads/{name}": b"other"}), wanted, "")
    assert not await check(Left({**right, "Downloads/more.csv": b""}), wanted, "")
    assert not await check(Left({f"Downloads/{name}.crdownload": text.encode()}), wanted, "")


def bookmarks(*folders: Any) -> bytes:
    roots = dict(zip(("bookmark_bar", "other", "synced"), folders, strict=False))
    return json.dumps({"roots": roots, "version": 1}).encode()


def folder_of(*children: Any) -> dict[str, Any]:
    return {"type": "folder", "name": "F", "children": [*children]}


def link(url: str) -> dict[str, Any]:
    return {"type": "url", "name": "N", "url": url}


def test_bookmarks_are_found_in_every_folder() -> None:
    assert read_bookmarks(None) == []
    assert read_bookmarks(bookmarks(folder_of(), folder_of())) == []
    nested = bookmarks(folder_of(folder_of(link("a:"))), folder_of(link("b:")))
    assert sorted(read_bookmarks(nested)) == ["a:", "b:"]


async def test_a_bookmark_is_judged_once_the_browser_has_written_it_down() -> None:
    wanted: dict[str, Any] = first_task("web_bookmark").data["wanted"]
    check, (url,) = check_of("web_bookmark"), wanted["bookmarks"]
    path = ".config/chromium/Default/Bookmarks"
    assert await check(Left({path: bookmarks(folder_of(), folder_of(link(url)))}), wanted, "")
    both = bookmarks(folder_of(link("http://localhost:8000/")), folder_of(link(url)))
    assert not await check(Left({path: both}), wanted, "")
    assert not await check(Left({}), wanted, "")


# -- what is shown ---------------------------------------------------------------------------------

_SEEN = ["enabled", "sensitive", "showing", "visible"]


def element(depth: int, role: str, name: str, text: str | None = None, *more: str) -> list[Any]:
    reference = [":1", f"/{depth}/{role}/{name}/{text}"]
    return [reference, depth, role, name, [*_SEEN, *more], [1, 2, 3, 4], text, None, 7]


def lines(*elements: list[Any]) -> list[str]:
    seen = {"elements": [*elements], "windows": [], "silent": []}
    nodes, _, _ = build_nodes(seen, DesktopObservationOptions(), ElementNumbers())
    return [node.line for node in nodes]


def test_what_a_page_says_is_told_once() -> None:
    mark = "\N{OBJECT REPLACEMENT CHARACTER}"
    assert lines(
        element(0, "frame", "Page", mark),
        element(1, "document web", "Page", mark * 3),
        element(2, "heading", "", "Big  news"),
        element(3, "static", "Big news", "Big news"),
        element(2, "link", "", "to it"),
        element(2, "list item", "", f"• {mark}"),
        element(3, "static", "•", "•"),
        element(2, "entry", "Field", f"old{mark}", "editable"),
        element(2, "paragraph", "", "Words."),
        element(3, "static", "Words.", "Words."),
        element(2, "static", "Words.", "Words."),
    ) == [
        'window "Page" [1]',
        '  document "Page" [2]',
        '    heading "Big news" [3]',
        '    link "to it" [4]',
        '    text "•"',
        '    textbox "Field" [5] value=old',
        '    text "Words."',
        '    text "Words."',
    ]


def test_a_window_without_anything_in_it_is_not_there() -> None:
    assert lines(
        element(0, "frame", "", ""),
        element(1, "panel", ""),
        element(0, "frame", ""),
        element(1, "panel", ""),
        element(2, "label", "Bubble"),
        element(0, "frame", ""),
    ) == ["window [1]", '  text "Bubble"']


# -- on a desktop ----------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncGenerator[DesktopPool]:
    made = DesktopPool(SETTINGS)
    yield made
    await made.close()


async def begun(pool: DesktopPool, name: str) -> tuple[GuiEnv, Task, ObservedPage]:
    env, task = GuiEnv(pack=template_pack(templates=[name]), desktop=pool), first_task(name)
    opening, _ = await env.reset(options={"task": task})
    return env, task, read(opening.messages[-1].text)


def shown(step: Step) -> ObservedPage:
    return read(step[0].messages[-1].text)


async def does(env: GuiEnv, action: str, **arguments: Any) -> Step:
    return await env.step(call("computer", action=action, **arguments))


async def visited(env: GuiEnv, address: str) -> ObservedPage:
    await does(env, "key", keys="ctrl+l")
    return shown(await does(env, "type", text=f"{address}\n"))


def desktop_of(env: GuiEnv) -> DesktopSession:
    episode: Any = env._episode  # pyright: ignore[reportPrivateUsage]
    return episode.desktop


@live
@on_module_loop
async def test_the_browser_is_held_to_its_site(pool: DesktopPool) -> None:
    """No files of the desktop, no scripts of the user, nothing beyond the network namespace."""
    env, _, _ = await begun(pool, "web_press")
    for address in ("file:///home/user/site/site.json", "view-source:http://localhost:8000/",
                    "chrome://settings"):  # fmt: skip
        assert "blocked" in (await visited(env, address)).text, address
    for address in ("http://93.184.215.14/", "http://example.com/"):
        page = await visited(env, address)
        assert re.search("ERR_|can.t be reached|No internet", page.text), page.text
    page = await visited(env, "http://localhost:8000/")
    before = len(page.all("window"))
    for keys in ("ctrl+s", "ctrl+o", "F12", "ctrl+p"):
        page = shown(await does(env, "key", keys=keys))
        assert len(page.all("window")) == before, keys
        assert not [n for n in page.nodes if n.role == "dialog" and "file" in n.name.lower()], keys
    await visited(env, "javascript:document.forms[0]")
    assert f"site/{STATE}" not in await desktop_of(env).files("site")
    await env.close()


def filters_of_renderers(first: int) -> list[str]:
    """Return what kind of filter for system calls each process of a page has, below a process."""
    filters = list[str]()
    for pid in family(first):
        if b"--type=renderer" in command_line(pid):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                status = Path(f"/proc/{pid}/status").read_text()
                filters += re.findall(r"^Seccomp:\s*(\d)", status, re.MULTILINE)
    return filters


@live
@on_module_loop
async def test_the_browsers_own_sandbox_holds_its_renderers(pool: DesktopPool) -> None:
    env, _, _ = await begun(pool, "web_press")
    try:
        started: Any = desktop_of(env)._process  # pyright: ignore[reportPrivateUsage]
        filters = filters_of_renderers(started.pid)
    finally:
        await env.close()
    assert filters
    assert {*filters} == {"2"}


@live
@on_module_loop
async def test_what_is_sent_too_often_earns_nothing(pool: DesktopPool) -> None:
    env, task, _ = await begun(pool, "web_press")
    for _ in range(2):
        page = await visited(env, task.data["wanted"]["address"])
        await does(env, "click", element=page.id("button", "Confirm"))
    assert (await does(env, "done"))[1] == 0.0
    await env.close()


@live
@on_module_loop
async def test_windows_are_switched_and_the_next_key_is_not_lost(pool: DesktopPool) -> None:
    env, _, page = await begun(pool, "web_note")
    assert page.find("window", contains="Chromium").has("active")
    page = shown(await does(env, "key", keys="alt+Tab"))
    assert page.find("window", contains="Mousepad").has("active")
    page = shown(await does(env, "type", text="abc"))
    assert "abc" in [node.value() for node in page.nodes if node.role == "textbox"]
    page = shown(await does(env, "key", keys="alt+Tab"))
    assert page.find("window", contains="Chromium").has("active")
    await env.close()


@live
@on_module_loop
async def test_nothing_an_episode_wrote_reaches_the_next(pool: DesktopPool) -> None:
    """Not even over the settings of the window manager and the toolkit, or beside the home."""
    env, _, first = await begun(pool, "web_answer")
    desktop = desktop_of(env)
    fresh = {path: await desktop.read(path) for path in ("../../run/desktop/jwmrc",
             "../../run/desktop/etc/gtk-3.0/settings.ini")}  # fmt: skip
    others = (
        "../../run/desktop/etc/chromium/policies/managed/mine.json",
        "../../run/desktop/bin/left",
        "../../run/desktop/dbus-1/services/left.service",
        "../../run/desktop/folder/left",
        "../../dev/shm/left",
        "../../tmp/left",
        "../../tmp/.X-left",
        "../../tmp/.X11-unix/left",
        "left",
    )
    for path in (*fresh, *others, "../../run/desktop/log"):
        await desktop.put(path, b"<JWM><Trap/></JWM>")
    await env.close()
    await pool.wait_until_ready()
    env, _, again = await begun(pool, "web_answer")
    assert desktop_of(env) is desktop
    assert again.nodes == first.nodes
    assert {path: await desktop.read(path) for path in fresh} == fresh
    for path in others:
        assert await desktop.read(path) is None, path
    assert b"Trap" not in (await desktop.read("../../run/desktop/log") or b"")
    await env.close()

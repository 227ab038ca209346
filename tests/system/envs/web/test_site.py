"""A site of one's own: what is asked of it, what becomes of the answers, who judges.

Mutants seen caught: redirects followed here; cookies kept here; any origin asked; one cookie of
several; a reward of 0 that does not end it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

import agentrl
from agentrl.env import call, say
from agentrl.errors import ConfigError, EnvError
from agentrl.task import Split, Task, split_of
from agentrl_envs.web import WebEnv
from agentrl_envs.web.browser import BrowserSettings, parts
from agentrl_envs.web.browser.chromium import INSTALL
from agentrl_envs.web.episode_site import SiteVerdict, WebRequest
from agentrl_envs.web.observation import read
from agentrl_envs.web.site import CustomSite, CustomSitePack

START = "http://tasks.test/"
PROMPTS = [f"Add {word} to the list." for word in ("milk", "tea", "rice", "salt", "oil", "jam")]


@dataclass
class Notes:
    """An ASGI application that notes what it is sent, and who sends it."""

    noted: list[str] = field(default_factory=list[str])
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.asked.append({"path": scope["path"], "method": scope["method"], "headers": headers})
        status, sent, text = self._answer(scope["path"], body)
        await send({"type": "http.response.start", "status": status, "headers": sent})
        await send({"type": "http.response.body", "body": text})

    def _answer(self, path: str, body: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        if path == "/add":
            self.noted.append(body.decode().partition("=")[2])
            cookies = [(b"set-cookie", b"last=1"), (b"set-cookie", b"theme=dark; Path=/")]
            return 303, [(b"location", b"/"), (b"connection", b"close"), *cookies], b""
        form = "<form method=post action=/add><input name=text aria-label=Note><button>Add</button>"
        page = f"<title>{len(self.noted)} notes</title>{form}</form>"
        return 200, [(b"content-type", b"text/html"), (b"x-powered-by", b"notes")], page.encode()


notes = Notes()


def tasks(split: Split, seed: int) -> Iterator[Task]:
    for number in range(2):
        yield Task(prompt=f"{split} {seed} {number}", split=split)


def check(task: Task, page: Any, said: str | None) -> float | None:
    if notes.noted and notes.noted[-1] in task.messages[-1].text:
        return 1.0
    return None


def world(**changes: Any) -> CustomSite:
    made: dict[str, Any] = {"start_url": START, "tasks": PROMPTS, "checker": check, "app": Notes()}
    pack = CustomSitePack(**(made | changes))
    return pack.world(Task(prompt="Add milk to the list."))


def get(url: str = START, **headers: str) -> WebRequest:
    return WebRequest(method="GET", url=url, headers=headers)


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"start_url": "file:///etc/passwd"}, "start_url must be an http"),
        ({"start_url": "tasks.test"}, "start_url must be an http"),
        ({"origins": ["http://fine.test", "javascript:0"]}, r"origins must .*\['javascript:0'\]"),
        ({"checker": "no_such_module:check"}, "no_such_module"),
        ({"app": f"{__name__}:nothing"}, "nothing"),
    ],
)
def test_what_no_browser_could_open_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        world(**changes)


def test_prompts_are_tasks_each_in_one_split() -> None:
    pack = CustomSitePack(start_url=START, tasks=PROMPTS, checker=check)
    found = {split: [*pack.tasks(split, 0)] for split in agentrl.task.SPLITS}
    assert sorted(t.messages[-1].text for of in found.values() for t in of) == sorted(PROMPTS)
    for split, of in found.items():
        assert all(task.split == split == split_of(task.messages[-1].text) for task in of)


def test_tasks_and_checkers_have_names() -> None:
    pack = CustomSitePack(start_url=START, tasks=f"{__name__}:tasks", checker=f"{__name__}:check")
    assert [task.prompt for task in pack.tasks("heldout", 3)] == ["heldout 3 0", "heldout 3 1"]
    with pytest.raises(KeyError):
        pack.gold(Task(prompt="x"), ())


def test_origins_are_the_start_and_those_that_are_named_once() -> None:
    site = world(
        start_url="http://Tasks.test:80/begin?x=1", origins=["http://tasks.test", "https://b.test/"]
    )
    assert site.origins == ("http://tasks.test", "https://b.test")
    assert (site.start_url, site.reusable) == ("http://Tasks.test:80/begin?x=1", False)
    assert site.ahead() is None
    assert site.copy() is None


# -- what is asked, and answered -------------------------------------------------------------------


async def test_the_application_is_asked_and_its_answer_is_the_pages() -> None:
    app = Notes()
    site = world(app=app, headers={"authorization": "Bearer hidden"})
    answer = await site.answer(get(cookie="a=1", connection="keep-alive"))
    assert answer is not None
    assert (answer.status, answer.headers["x-powered-by"]) == (200, "notes")
    assert answer.body.startswith(b"<title>0 notes")
    assert "content-length" not in answer.headers
    sent = app.asked[0]["headers"]
    assert (sent["cookie"], sent["authorization"]) == ("a=1", "Bearer hidden")
    post = WebRequest(method="POST", url=f"{START}add", headers={}, body=b"text=milk")
    answer = await site.answer(post)
    assert answer is not None
    assert (answer.status, answer.headers["location"]) == (303, "/"), "the browser follows it"
    assert answer.headers["set-cookie"] == "last=1\ntheme=dark; Path=/"
    assert "connection" not in answer.headers
    assert app.noted == ["milk"]
    await site.answer(get())
    assert "cookie" not in app.asked[-1]["headers"], "cookies are the browser's to keep"
    assert [ask["path"] for ask in app.asked] == ["/", "/add", "/"]
    await site.close()
    await site.close()


@pytest.mark.parametrize(
    "url",
    ["http://other.test/", "https://tasks.test/", "http://tasks.test:81/", "file:///etc/passwd"],
)
async def test_other_places_do_not_exist(url: str) -> None:
    app = Notes()
    assert await world(app=app).answer(get(url)) is None
    assert app.asked == []


@asynccontextmanager
async def listening(reply: bytes) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """A server that says one thing, and what it was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", asked
    finally:
        server.close()


async def test_without_an_application_the_site_is_asked_over_http() -> None:
    reply = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
    async with listening(reply) as (url, asked):
        site = world(start_url=url, app=None, headers={"x-key": "hidden"})
        answer = await site.answer(get(f"{url}page?q=1"))
        await site.close()
    assert answer is not None
    assert (answer.status, answer.headers["location"]) == (302, "http://169.254.169.254/")
    assert asked[0].startswith(b"GET /page?q=1 HTTP/1.1\r\n")
    assert b"x-key: hidden" in asked[0]


async def test_a_site_that_is_down_is_a_bad_gateway_and_says_nothing_of_this_machine() -> None:
    async with listening(b"nonsense\r\n\r\n") as (url, _):
        site = world(start_url=url, app=None)
        broken = await site.answer(get(url))
    gone = await site.answer(get(url))
    await site.close()
    for answer in (broken, gone):
        assert answer is not None
        assert answer.status == 502
        assert answer.body.startswith(b"the site did not answer: ")
        assert b"127.0.0.1" not in answer.body


# -- who judges ------------------------------------------------------------------------------------


def gives(verdict: Any) -> Callable[..., Any]:
    def checker(task: Task, page: Any, said: str | None) -> Any:
        return verdict

    return checker


async def later(task: Task, page: Any, said: str | None) -> float | None:
    return None if said is None else 0.5


@pytest.mark.parametrize(
    ("checker", "said", "reward", "done"),
    [
        (gives(None), None, 0, False),
        (gives(None), "words", 0, True),
        (gives(0), None, 0, True),
        (gives(1), None, 1, True),
        (later, None, 0, False),
        (later, "words", 0.5, True),
        (gives(SiteVerdict(reward=0.25, done=False)), "words", 0.25, False),
    ],
)
async def test_a_number_ends_it_and_nothing_lets_it_go_on(
    checker: Any, said: str | None, reward: float, done: bool
) -> None:
    page: Any = None
    verdict = await world(checker=checker).judge(page, said)
    assert (verdict.reward, verdict.done) == (reward, done)


async def test_the_checker_is_told_which_task_it_is_and_what_was_said() -> None:
    seen: list[Any] = []

    def checker(*given: Any) -> None:
        seen.append(given)

    site = world(checker=checker)
    page: Any = object()
    assert await site.begin(page) == "Add milk to the list."
    await site.judge(page, "done")
    ((task, at, said),) = seen
    assert (task.messages[-1].text, at, said) == ("Add milk to the list.", page, "done")


# -- in a browser ----------------------------------------------------------------------------------


@pytest.mark.chromium
async def test_an_episode_on_a_site_of_ones_own() -> None:
    notes.noted.clear()
    env: Any = agentrl.make(
        "web/Site-v0",
        start_url=START,
        app=f"{__name__}:notes",
        tasks=[next(p for p in PROMPTS if split_of(p) == "train")],
        checker=f"{__name__}:check",
        headers={"authorization": "Bearer hidden"},
        browser={"warm": 0, "call_s": 60},
    )
    try:
        opening, _ = await env.reset(seed=0)
        page = read(opening.messages[-1].text)
        assert page.goal in PROMPTS
        word = page.goal.split()[1]
        step = await env.step(call("goto", url="http://elsewhere.test/"))
        assert (
            "is not allowed; the allowed addresses are http://tasks.test"
            in step[0].messages[-1].text
        )
        await env.step(call("fill", id=page.id("textbox", "Note"), text=word))
        _, reward, terminated, _, _ = await env.step(call("click", id=page.id("button", "Add")))
        assert (reward, terminated, notes.noted) == (1.0, True, [word])
        ask = [ask for ask in notes.asked if ask["path"] == "/"][-1]
        assert ask["headers"]["authorization"] == "Bearer hidden"
        assert ask["headers"]["cookie"] == "last=1; theme=dark"
        assert not hasattr(env, "gold")
    finally:
        await env.close()


@pytest.mark.chromium
async def test_a_checker_that_fails_is_no_reward() -> None:
    def fails(task: Task, page: Any, said: str | None) -> float:
        raise RuntimeError("the database is away")

    pack = CustomSitePack(start_url=START, app=Notes(), tasks=f"{__name__}:tasks", checker=fails)
    env = WebEnv(pack=pack, browser=BrowserSettings(warm=0, call_s=60))
    try:
        await env.reset(seed=0)
        with pytest.raises(EnvError, match=r"checker of task .*the database is away"):
            await env.step(say("done"))
    finally:
        await env.close()


# -- what the doctor says --------------------------------------------------------------------------


def test_the_doctor_sees_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    where = "agentrl_envs.web.browser.parts"
    monkeypatch.setattr(f"{where}.find", lambda: "/usr/bin/some-chromium")
    monkeypatch.setattr(f"{where}.shutil.which", "/usr/bin/{}".format)
    monkeypatch.setattr(f"{where}.explain_no_cgroups", lambda: "")
    program, isolation, bound = parts.parts()
    assert (program.name, program.live) == ("chromium", True)
    assert program.detail == "/usr/bin/some-chromium"
    assert (isolation.live, isolation.detail) == (True, "no network, no files")
    assert (bound.live, bound.detail) == (True, "a cgroup around every browser")


def test_the_doctor_names_what_is_missing_and_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing() -> str:
        raise ConfigError("no Chromium was found")

    where = "agentrl_envs.web.browser.parts"
    monkeypatch.setattr(f"{where}.find", missing)
    monkeypatch.setattr(f"{where}.shutil.which", dict[str, str]().get)
    monkeypatch.setattr(f"{where}.explain_no_cgroups", lambda: "cgroups are read-only here")
    program, isolation, bound = parts.parts()
    assert (program.live, program.detail, program.get_it) == (False, "not found", INSTALL)
    assert not isolation.live
    assert "browsers do not start without it" in isolation.detail
    assert isolation.get_it == "apt-get install bubblewrap"
    assert (bound.live, bound.detail) == (False, "cgroups are read-only here")

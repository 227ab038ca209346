"""A site for tests: pages by path, a form that saves words, a checker that looks at what it has."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.env import Action, call, say
from agentrl.message import Message
from agentrl.task import Split, Task
from agentrl_envs.web.episode_site import LivePage, SiteVerdict, WebRequest, WebResponse
from agentrl_envs.web.observation import read

ORIGIN = "http://pages.test"
HTML = {"content-type": "text/html; charset=utf-8"}

FORM = (
    "<title>Form</title><h1>Form</h1>"
    "<form method=post action=/save><input name=word aria-label=Word><button>Save</button></form>"
    "<a href=/other>Other</a>"
)
PAGES: Mapping[str, str] = {"/": FORM, "/other": "<title>Other</title><p>Nothing here.</p>"}
_PUT_BACK = """() => {
  for (const form of document.forms) form.reset();
  document.activeElement?.blur();
  scrollTo(0, 0);
}"""


@dataclass
class Pages:
    """One episode on the site."""

    want: str = "apple"
    pages: Mapping[str, str] = field(default_factory=lambda: dict(PAGES))
    saved: list[str] = field(default_factory=list[str])
    asked: list[WebRequest] = field(default_factory=list[WebRequest])
    start_url: str = f"{ORIGIN}/"
    origins: tuple[str, ...] = (ORIGIN,)
    reusable: bool = False
    copies: bool = True
    early: bool = False
    closed: bool = False
    on_answer: Callable[[WebRequest], WebResponse | None] | None = None

    async def answer(self, request: WebRequest) -> WebResponse | None:
        self.asked.append(request)
        if self.on_answer is not None and (made := self.on_answer(request)) is not None:
            return made
        path = request.url.removeprefix(ORIGIN).partition("?")[0].partition("#")[0]
        if path == "/save":
            self.saved.append(request.body.decode().partition("=")[2])
            return WebResponse(status=303, headers={"location": "/done"})
        if path == "/done":
            body = f"<title>Done</title><p>{len(self.saved)} saved</p><a href=/>Back</a>"
            return WebResponse(headers=HTML, body=body.encode())
        page = self.pages.get(path)
        return None if page is None else WebResponse(headers=HTML, body=page.encode())

    async def begin(self, page: LivePage) -> str:
        if self.reusable:
            await page.evaluate(_PUT_BACK)
        return f"Save the word {self.want}, then say done."

    async def judge(self, page: LivePage, said: str | None) -> SiteVerdict:
        won = self.saved == [self.want]
        return SiteVerdict(reward=float(won and said == "done"), done=said is not None)

    def ahead(self) -> "Pages | None":
        return Pages(pages=self.pages, on_answer=self.on_answer) if self.early else None

    def copy(self) -> "Pages | None":
        if not self.copies:
            return None
        return Pages(
            want=self.want, pages=self.pages, saved=list(self.saved), reusable=self.reusable
        )

    async def close(self) -> None:
        self.closed = True


@dataclass
class PagesPack:
    """Words to save, or the one page that is given."""

    pages: Mapping[str, str] | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    made: list[Pages] = field(default_factory=list[Pages])

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        words = ["apple", "pear", "plum"] if split == "train" else ["grape", "fig"]
        for word in words[seed % len(words) :] + words[: seed % len(words)]:
            yield Task(prompt=f"Save {word}", id=word, split=split, data={"word": word})

    def world(self, task: Task) -> Pages:
        pages = PAGES if self.pages is None else self.pages
        self.made.append(Pages(want=task.data["word"], pages=dict(pages), **self.options))
        return self.made[-1]

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        page = read(seen[-1].text)
        if page.title == "Done":
            return say("done")
        field_ = page.find("textbox", "Word")
        if field_.value() != task.data["word"]:
            return call("fill", id=field_.id, text=task.data["word"])
        return call("click", id=page.id("button", "Save"))

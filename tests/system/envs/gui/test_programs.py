"""Debian's programs on the desktop: every kind of task can be done, and only doing it pays."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
import pytest_asyncio

from agentrl.task import Task
from agentrl_envs.accessibility.node import AccessibilityNode
from agentrl_envs.gui.desktop import DesktopPool, DesktopSettings
from agentrl_envs.gui.tasks import template_pack
from agentrl_envs.gui.tasks.pack import HELD_OUT, TEMPLATES
from agentrl_envs.gui.tasks.state import cells_of, sheet
from agentrl_envs.gui.tasks.template import DesktopTemplate
from tests.support.examples import spread_cases
from tests.support.gui_play import gold_earns_one_and_doing_nothing_earns_nothing

OTHERS = [template for template in TEMPLATES if template.program != "form"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncGenerator[DesktopPool]:
    made = DesktopPool(DesktopSettings(desktops=2, warm=1, call_s=120, start_s=120, settle_s=20))
    yield made
    await made.close()


def first_task(template: DesktopTemplate) -> Task:
    (task,) = islice(template_pack(templates=[template.name]).tasks("heldout", 1), 1)
    return task


@pytest.mark.gui
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("template", spread_cases(OTHERS, 12), ids=lambda template: template.name)
async def test_gold_earns_one(pool: DesktopPool, template: DesktopTemplate) -> None:
    episode = await gold_earns_one_and_doing_nothing_earns_nothing(pool, first_task(template))
    assert 1 <= len(episode.actions) <= 15


def test_there_are_enough_kinds_of_tasks_in_every_program() -> None:
    programs = {template.program for template in TEMPLATES}
    assert len(TEMPLATES) >= 30
    assert len({template.name for template in TEMPLATES}) == len(TEMPLATES)
    assert {template.program for template in TEMPLATES if template.name in HELD_OUT} == programs


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_every_template_has_tasks_of_both_splits(template: DesktopTemplate) -> None:
    pack = template_pack(templates=[template.name])
    for split in ("train", "heldout"):
        assert len(list(islice(pack.tasks(split, 0), 10))) == 10


# -- what is judged --------------------------------------------------------------------------------


@dataclass(slots=True)
class Folder:
    """A desktop of which only the files matter."""

    texts: Mapping[str, bytes]
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])

    async def read(self, path: str) -> bytes | None:
        return self.texts.get(path.removeprefix("Documents/").removeprefix("form/"))

    async def files(self, folder: str) -> Mapping[str, str]:
        assert folder == "Documents"
        return {name.rstrip("/"): "folder" if name.endswith("/") else "file" for name in self.texts}

    async def quit(self) -> bool:
        return True

    async def nodes(self) -> Sequence[AccessibilityNode]:
        return ()


def with_files(template: DesktopTemplate) -> tuple[Task, dict[str, bytes], Any]:
    task = first_task(template)
    wanted: dict[str, Any] = task.data["wanted"]
    return task, {name: text.encode() for name, text in wanted["after"].items()}, wanted


FILED = [
    t for t in OTHERS if "after" in first_task(t).data["wanted"] and t.program != "spreadsheet"
]


@pytest.mark.parametrize("template", FILED, ids=lambda template: template.name)
async def test_files_are_judged_to_the_last_one(template: DesktopTemplate) -> None:
    task, after, wanted = with_files(template)
    check, name = template.check, next(name for name in after if not name.endswith("/"))
    said = task.answer or ""
    assert await check(Folder(after), wanted, said)
    assert await check(Folder(after | {name: after[name].rstrip(b"\n")}), wanted, said)
    assert not await check(Folder(after | {name: after[name] + b"x"}), wanted, said)
    assert not await check(Folder(after | {name: after[name] + b"\n\n"}), wanted, said)
    assert not await check(Folder(after | {"other.txt": b""}), wanted, said)
    assert not await check(Folder(after | {"other/": b""}), wanted, said)
    fewer = {other: text for other, text in after.items() if other != name}
    assert not await check(Folder(fewer), wanted, said)


ANSWERED = [t for t in OTHERS if first_task(t).answer is not None]


@pytest.mark.parametrize("template", ANSWERED, ids=lambda template: template.name)
async def test_another_answer_earns_nothing(template: DesktopTemplate) -> None:
    task = first_task(template)
    wanted: dict[str, Any] = task.data["wanted"]
    files = {name: text.encode() for name, text in wanted.get("files", {}).items()}
    assert await template.check(Folder(files), wanted, f" {task.answer}")
    for said in ("", f"{task.answer}1", f"It is {task.answer}."):
        assert not await template.check(Folder(files), wanted, said)
    if files:
        assert not await template.check(Folder({**files, "more.txt": b""}), wanted, task.answer)


@pytest.mark.parametrize(
    "template", [t for t in OTHERS if t.program == "spreadsheet"], ids=lambda t: t.name
)
async def test_cells_are_judged_one_by_one(template: DesktopTemplate) -> None:
    wanted: dict[str, Any] = first_task(template).data["wanted"]
    after: dict[str, str] = wanted["after"]

    def saved(cells: dict[str, str]) -> Folder:
        return Folder({"book.gnumeric": sheet(cells)})

    assert await template.check(saved(after), wanted, "")
    assert not await template.check(saved(wanted["cells"]), wanted, "")
    assert not await template.check(saved(after | {"F9": "1"}), wanted, "")
    for name in after:
        assert not await template.check(saved(after | {name: "other"}), wanted, "")
    assert not await template.check(Folder({}), wanted, "")
    assert not await template.check(Folder({"book.gnumeric": b"no workbook"}), wanted, "")


def test_a_workbook_is_read_as_it_was_written() -> None:
    import gzip

    cells = {"A1": "a < b & c", "C7": "12", "B2": "=sum(A1:A3)", "Z99": "-1.5"}
    assert cells_of(sheet(cells)) == cells
    assert cells_of(gzip.compress(sheet(cells))) == cells
    large = sheet(cells).replace(b"?>", b"?>" + b" " * 2**24, 1)
    assert cells_of(large) is None
    assert cells_of(gzip.compress(large)) is None, "it is not unpacked without end"
    assert cells_of(b'<!DOCTYPE x [<!ENTITY a "b">]>' + sheet(cells)) is None
    assert cells_of(gzip.compress(sheet(cells))[:40]) is None
    assert cells_of(sheet(cells).replace(b'Row="0"', b'Row="x"')) is None

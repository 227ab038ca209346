"""The table of inputs in docs/security.md: its limits are the code's, and each has its test.

Mutants seen caught: a watchdog that keeps no time; a program's output that is kept whole; a number
written into the table by hand; a row's test without the watchdog.
"""

import ast
import asyncio
import base64
import gzip
import io
import re
import sys
import time
from pathlib import Path

import pytest
from PIL import Image as Pictures

from agentrl.chat.call_json import CALL_LIMITS
from agentrl.chat.dialects import DIALECTS
from agentrl.gateway.images import from_base64
from agentrl.message import Image
from agentrl.runtime.image_decoding import decode_image
from agentrl.runtime.json_limits import DEFAULT_LIMITS, JsonLimitError, read_json
from agentrl.runtime.threads import run_in_thread
from agentrl.task import Task
from agentrl_envs.blackbox.program import RESULT_BYTES as PROGRAM_BYTES
from agentrl_envs.blackbox.program import CommandProgram, ProgramEndpoint
from agentrl_envs.gui.osworld.tables import MAX_SHEETS, NoWorkbook, workbook
from agentrl_envs.gui.tasks.state import cells_of, sheet
from agentrl_envs.web.browser.relay import MAX_EVENT_BYTES, MessageGate
from agentrl_envs.web.browser.traffic import MAX_BODY_BYTES, build_fulfilment
from agentrl_envs.web.episode_site import WebRequest, WebResponse
from agentrl_envs.web.sites import wiki_pack
from agentrl_envs.web.sites.pages import BODY_BYTES_MAX
from tests.support.watchdog import STANDS_S, watched, watched_loop
from tests.support.xlsx_files import SHEET, archive
from tests.system.security import inputs
from tests.system.security.inputs import BEGIN, END, LOOP, markdown, rows
from tests.system.security.table import DOCUMENT

ROOT = Path(__file__).parents[3]
MADE = inputs.InputRow.__name__
TASK = Task(prompt="Write.", answer="", id="t")


def test_the_document_has_the_table() -> None:
    table, end, _ = DOCUMENT.read_text().partition(BEGIN)[2].partition(END)
    assert end, f"no {END!r} in {DOCUMENT.name}"
    assert table.strip() == markdown().strip(), "run: python -m tests.system.security.inputs"


def test_every_limit_has_its_place() -> None:
    table = list(rows())
    assert len({one.source for one in table}) == len(table) > 30
    for one in table:
        file, _, name = one.test.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        tests = {node.name: node for node in ast.walk(tree) if isinstance(node, functions)}
        assert name in tests, f"{one.source} has no test {one.test}"
        if one.runs_in == LOOP:
            names = {node.id for node in ast.walk(tests[name]) if isinstance(node, ast.Name)}
            assert names & {"watched", "watched_loop"}, f"{one.test} does not watch the loop"
        assert "/" not in one.place or (ROOT / one.place).is_file(), one.place


def test_every_number_of_the_table_is_a_constant_of_the_code() -> None:
    tree = ast.parse(Path(inputs.__file__).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    limits = [
        call.args[1] for call in calls if isinstance(call.func, ast.Name) and call.func.id == MADE
    ]
    assert len(limits) == len(list(rows()))
    for limit in limits:
        for part in ast.walk(limit):
            if isinstance(part, ast.Constant):
                assert not re.search(r"\d", str(part.value)), ast.unparse(limit)


@watched
async def test_a_program_writes_a_result_up_to_the_limit() -> None:
    endpoint = ProgramEndpoint(
        openai_url="http://localhost", anthropic_url="http://localhost", key="k"
    )
    for more in (-1, 0, 2**24):
        writes = f"import sys; sys.stdout.write('x' * {PROGRAM_BYTES + more})"
        result = await CommandProgram(words=(sys.executable, "-c", writes)).run(TASK, endpoint)
        assert len(result) == min(PROGRAM_BYTES + more, PROGRAM_BYTES)


async def test_the_watchdog_sees_a_loop_that_stands() -> None:
    def stand() -> None:
        end_s = time.thread_time() + 1.5 * STANDS_S
        while time.thread_time() < end_s:
            pass

    with pytest.raises(AssertionError, match="the loop stood for"):
        async with watched_loop():
            stand()
    async with watched_loop() as watchdog:
        await run_in_thread(stand)
    assert watchdog.longest_s < STANDS_S


async def test_json_at_the_limits_leaves_the_loop_free() -> None:
    wide = "[" + "1," * (DEFAULT_LIMITS.values - 2) + "1]"
    deep = "[" * DEFAULT_LIMITS.depth + "]" * DEFAULT_LIMITS.depth
    texts = (wide, deep, '"' + "x" * (DEFAULT_LIMITS.text_bytes - 2) + '"')
    absurd = ("[" * 2**20, "9" * 2**20, '{"a":' * 2**17, '"\\ud800"' * 2**16, "x" * 2**22)
    async with watched_loop():
        for text in texts:
            read_json(text)
            await asyncio.sleep(0)
        for text in absurd:
            with pytest.raises(JsonLimitError):
                read_json(text)
            await asyncio.sleep(0)


@pytest.mark.parametrize("dialect", ["hermes", "llama3"])
async def test_absurd_turns_leave_the_loop_free(dialect: str) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
    inner = (
        "[" * 5_000,
        "[" * 700 + "]" * 700,
        '"' + "x" * CALL_LIMITS.text_bytes + '"',
        "9" * 9_999,
    )
    turns = [call % one for one in inner]
    turns += [
        call % "{}" * 2_000,
        "<tool_call>" * 20_000,
        '{"name": "f"' * 20_000,
        "\ud800" * 9_999,
    ]
    async with watched_loop():
        for turn in turns:
            DIALECTS[dialect].parse(turn, 0)
            await asyncio.sleep(0)


async def test_pictures_at_the_limits_leave_the_loop_free() -> None:
    out = io.BytesIO()
    Pictures.new("RGB", (4096, 4096), (1, 2, 3)).save(out, "PNG")
    data = base64.b64encode(out.getvalue()).decode()
    async with watched_loop():
        image = from_base64(data, "image/png")
        assert isinstance(image, Image)
        assert (await run_in_thread(decode_image, image)).size == (4096, 4096)


async def test_workbooks_at_the_limits_leave_the_loop_free() -> None:
    cell = b'<c r="A1"><v>1</v></c>'
    rows_ = SHEET.replace(
        b"<sheetData/>", b"<sheetData><row>%s</row></sheetData>" % (cell * 150_000)
    )
    bomb = gzip.compress(sheet({"A1": "x"}) + bytes(64 * 2**20))
    async with watched_loop():
        assert len(await run_in_thread(workbook, archive(rows_))) == 1
        with pytest.raises(NoWorkbook):
            await run_in_thread(workbook, archive(SHEET, sheets=MAX_SHEETS * 400))
        assert await run_in_thread(cells_of, bomb) is None


async def test_what_a_browser_says_at_the_limits_leaves_the_loop_free() -> None:
    """The relay is a process of its own; an answer of a world is encoded on the loop."""
    gate = MessageGate()
    assert len(gate.feed(b'{"method":"X","params":{},"sessionId":"A"}\0' * 9)) > 0
    body = build_fulfilment(WebResponse(body=bytes(MAX_BODY_BYTES)))
    assert len(body["body"]) > MAX_EVENT_BYTES
    async with watched_loop():
        build_fulfilment(WebResponse(body=bytes(MAX_BODY_BYTES)))


async def test_a_huge_form_is_an_empty_one() -> None:
    pack = wiki_pack()
    world = pack.world(next(iter(pack.tasks("train", 0))))
    headers = {"content-type": "application/x-www-form-urlencoded"}
    before = repr(world.state)
    async with watched_loop():
        for body in (b"title=x&text=" + b"y" * BODY_BYTES_MAX, b"&a=b" * (BODY_BYTES_MAX // 4)):
            url = f"{world.origins[0]}/new"
            await world.answer(WebRequest(method="POST", url=url, headers=headers, body=body))
    assert repr(world.state) == before

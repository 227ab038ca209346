"""Looking at real pages: what is shown, what is left out, and where one would press."""

import io
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from PIL import Image as Pictures

from agentrl_envs.web import WebEnv
from agentrl_envs.web.browser import BrowserPool, BrowserSettings
from agentrl_envs.web.observation import ObservedPage, read
from agentrl_envs.web.observation.look import mark
from tests.support.watchdog import watched
from tests.support.web_pages import PagesPack

BROWSER = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

CONTROLS = """<!doctype html><title>Con\u202etrols</title><body>
<h1>Hello <b>world</b></h1><p>Some <i>inline</i> text<br>more</p>
<button>Submit <span>now</span></button><label for=n>Name</label><input id=n value='x"y'>
<label><input type=checkbox checked> Agree</label><select><option>S<option selected>M</select>
<a href="#">Help</a><div id=l>listens</div><span style="cursor:pointer">points</span>
<svg width=100 height=50><circle cx=20 cy=20 r=10 fill=red /></svg>
<table><tr><td>a</td><td>b</td></tr></table><input type=password value=secret aria-label=Secret>
<script>document.getElementById('l').addEventListener('click', () => 0)</script>"""
HIDDEN = """<!doctype html><body><div style="display:none">no1</div>
<div style="visibility:hidden">no2</div><div style="opacity:0">no3</div>
<div aria-hidden=true>no4</div><div style="position:absolute;left:-999px">no5</div>
<div style="width:1px;height:1px;overflow:hidden">no6</div>
<div style="position:relative;width:80px"><button>no7</button>
<div style="position:absolute;inset:0;background:red"></div></div><button>yes</button>"""
NESTED = """<!doctype html><body><div id=host></div>
<iframe srcdoc="<button>In the frame</button>"></iframe>
<script>document.getElementById('host').attachShadow({mode: 'open'}).innerHTML =
'<button>In the shadow</button>'</script>"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncGenerator[BrowserPool]:
    made = await BrowserPool.open(BrowserSettings(call_s=60, warm=0))
    yield made
    await made.close()


async def opening(pool: BrowserPool, html: str, **options: object) -> tuple[str, list[bytes]]:
    env = WebEnv(pack=PagesPack(pages={"/": html}), browser=pool, **options)  # pyright: ignore[reportArgumentType]
    try:
        shown, _ = await env.reset(seed=0)
    finally:
        await env.close()
    return shown.messages[0].text, [image.data for image in shown.messages[0].images]


def lines(page: ObservedPage) -> list[str]:
    return [node.line for node in page.nodes]


class TestLook:
    """In a real browser."""

    pytestmark = BROWSER

    async def test_a_page_is_a_line_per_thing_that_matters(self, pool: BrowserPool) -> None:
        page = read((await opening(pool, CONTROLS))[0])
        assert page.title == "Controls"
        shown = lines(page)
        assert shown[:10] == [
            'heading "Hello world"',
            'text "Some inline text"',
            'text "more"',
            'button "Submit now" [1]',
            r'textbox "Name" [2] value="x\"y"',
            'checkbox "Agree" [3] checked',
            "combobox [4] value=M options=S|M",
            'link "Help" [5]',
            'generic "listens" [6]',
            'generic "points" [7]',
        ]
        assert shown[10].startswith("svg [8] at=")
        assert shown[11].startswith("  circle [9] fill=red at=")
        assert shown[12:14] == ["table", '  row "a | b"']
        assert "secret" not in "\n".join(shown)

    async def test_what_cannot_be_seen_is_left_out(self, pool: BrowserPool) -> None:
        assert lines(read((await opening(pool, HIDDEN))[0])) == ['button "yes" [1]']

    async def test_shadows_and_frames_are_entered(self, pool: BrowserPool) -> None:
        page = read((await opening(pool, NESTED))[0])
        assert page.find("button", "In the shadow").depth == 0
        assert page.find("button", "In the frame").depth == 1

    @watched
    async def test_a_cap_leaves_out_and_counts(self, pool: BrowserPool) -> None:
        html = "<!doctype html><body>" + "<p><button>x</button></p>" * 50_000
        text, _ = await opening(pool, html, observation_kwargs={"max_nodes": 10, "deadline_s": 60})
        assert len(read(text).nodes) == 10
        left = int(text.rpartition("... ")[2].split()[0])
        assert 99_000 < left < 100_100

    async def test_markup_and_text_come_beside_the_tree(self, pool: BrowserPool) -> None:
        text, _ = await opening(pool, CONTROLS, observation=["axtree", "dom", "text"])
        assert '<button ref="1">' in text
        assert "dom:\n" in text
        assert "text:\nHello world\nSome inline text\nmore\nSubmit now\n" in text
        assert "secret" not in text

    async def test_marks_are_on_the_picture_and_not_in_the_page(self, pool: BrowserPool) -> None:
        _, (plain, marked) = await opening(
            pool, CONTROLS, observation=["screenshot", "marks"], screen=(320, 240)
        )
        with Pictures.open(io.BytesIO(plain)) as one, Pictures.open(io.BytesIO(marked)) as other:
            assert one.size == other.size == (320, 240)
            assert one.convert("RGB").tobytes() != other.tobytes()


def test_a_mark_is_a_frame_around_its_box() -> None:
    white = io.BytesIO()
    Pictures.new("RGB", (60, 40), "white").save(white, "PNG")
    marked = mark(white.getvalue(), {1: (20, 10, 30, 20), 2: (500, 10, 5, 5)}, (60, 40))
    with Pictures.open(io.BytesIO(marked)) as picture:
        assert picture.getpixel((49, 29)) == (214, 39, 40)
        assert picture.getpixel((45, 25)) == (255, 255, 255)
        assert picture.getpixel((55, 35)) == (255, 255, 255)

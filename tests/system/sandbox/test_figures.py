"""Figures of a cell: what the code drew comes back as PNG, and nothing it does can break a cell.

Drawing is tested in a process of its own, because it must show that nothing is imported unasked,
and then in a session.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from agentrl.sandbox import Limits, SandboxSettings
from agentrl_sandbox import ForkServerPool
from agentrl_sandbox.inside import figures

PNG = b"\x89PNG\r\n\x1a\n"
DRAW = "import matplotlib.pyplot as plt\n"
MIB = 2**20


def pixels(picture: bytes) -> tuple[int, int]:
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where matplotlib keeps its list of fonts, made once."""
    return tmp_path_factory.mktemp("matplotlib")


class Cell:
    """Runs code and collects what it drew, twice, as an interpreter does after each cell."""

    def __init__(self, root: Path, cache: Path) -> None:
        self.cache = cache
        self.environ = {
            **os.environ,
            "PYTHONPATH": str(root / "sandbox"),
            "PYTHONWARNINGS": "error",
        }
        figures.prepare(self.environ, str(cache))

    def draws(
        self, code: str, *, limit: int = 4, bytes_max: int = MIB
    ) -> tuple[list[bytes], str, dict[str, object]]:
        """Return the pictures, standard error and what was found afterwards."""
        script = (
            "import json, sys\n"
            "from agentrl_sandbox.inside import figures\n"
            f"exec({code!r}, {{}})\n"
            f"pictures = figures.collect({limit}, {bytes_max})\n"
            "again = len(figures.collect(4, 2**20))\n"
            "found = {'again': again, 'matplotlib': 'matplotlib' in sys.modules}\n"
            "json.dump([[p.hex() for p in pictures], found], sys.__stdout__)\n"
        )
        ran = subprocess.run(
            [sys.executable, "-c", script],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        pictures, found = json.loads(ran.stdout)
        return [bytes.fromhex(picture) for picture in pictures], ran.stderr, found


@pytest.fixture
def cell(root: Path, cache: Path) -> Cell:
    return Cell(root, cache)


def test_without_matplotlib_there_is_nothing_and_nothing_is_imported(cell: Cell) -> None:
    assert cell.draws("x = 1") == ([], "", {"again": 0, "matplotlib": False})
    assert cell.draws("import matplotlib") == ([], "", {"again": 0, "matplotlib": True})


def test_every_open_figure_is_shown_once_in_order(cell: Cell, cache: Path) -> None:
    code = (
        DRAW + "plt.figure(figsize=(2, 1)); plt.plot([1, 3])\n"
        "plt.figure(figsize=(1, 2)); plt.plot([2, 1]); plt.show()\n"
        "closed = plt.figure(); plt.close(closed)\n"
    )
    pictures, stderr, found = cell.draws(code)
    assert [picture[:8] for picture in pictures] == [PNG, PNG]
    assert [pixels(picture) for picture in pictures] == [(200, 100), (100, 200)]
    assert (stderr, found["again"]) == ("", 0)
    assert cell.draws(code)[0] == pictures
    assert [path.name for path in cache.iterdir()] == [".matplotlib"]


def test_what_is_too_many_is_left_out_and_closed(cell: Cell) -> None:
    code = DRAW + "for n in range(5): plt.figure(figsize=(1, 1))\n"
    pictures, stderr, found = cell.draws(code, limit=2)
    assert (len(pictures), found["again"]) == (2, 0)
    assert stderr == "(3 figures are left out; a cell can show at most 2)\n"


def test_what_is_too_large_gets_smaller_or_is_left_out(cell: Cell) -> None:
    noise = (
        DRAW + "import numpy\n"
        "f = plt.figure(figsize=(4, 4))\n"
        "f.figimage(numpy.random.default_rng(0).integers(0, 255, (400, 400, 3), 'uint8'))\n"
    )
    (whole,), _, _ = cell.draws(noise)
    (smaller,), stderr, _ = cell.draws(noise, bytes_max=len(whole) // 4)
    assert len(smaller) <= len(whole) // 4 < len(whole)
    assert pixels(smaller) < pixels(whole)
    assert stderr == ""
    none, stderr, _ = cell.draws(noise, bytes_max=60)
    assert (none, stderr.startswith("(figure 1 is left out: ")) == ([], True)


def test_a_gigantic_figure_is_drawn_small(cell: Cell) -> None:
    code = DRAW + "plt.figure(figsize=(1000, 500), dpi=1000)\n"
    (picture,), _, _ = cell.draws(code)
    width, height = pixels(picture)
    assert 0.9 * figures.PIXELS_MAX < width * height <= 1.01 * figures.PIXELS_MAX


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            DRAW + "plt.figure().savefig = lambda *a, **k: 1 / 0",
            "figure 1 cannot be drawn: ZeroDiv",
        ),
        (DRAW + "plt.figure().savefig = lambda *a, **k: exit(3)", "cannot be drawn: SystemExit"),
        (
            DRAW + "plt.figure().savefig = lambda *a, **k: None",
            "the output of savefig is not a PNG",
        ),
        (DRAW + "plt.title('$\\\\nosuch$')", "cannot be drawn: ValueError"),
        (DRAW + "plt.figure(figsize=(1, 1)).set_size_inches(1e-9, 1)", "figure 1"),
        (DRAW + "plt.get_fignums = None", "the figures cannot be shown: TypeError"),
        (DRAW + "del plt.close", "the figures cannot be closed: AttributeError"),
        ("import sys\nsys.modules['matplotlib.pyplot'] = 7", "cannot be shown: AttributeError"),
        (DRAW + "import sys\nplt.close = None\nsys.stderr = None", ""),
        (DRAW + "import sys\nplt.close = None\nsys.stderr.close()", ""),
        (
            "import sys\nclass E(BaseException):\n    def __str__(self): raise self\n"
            "class P:\n    def get_fignums(self): raise E\n    def close(self, which): raise E\n"
            "sys.modules['matplotlib.pyplot'] = P()",
            "the figures cannot be closed: E",
        ),
    ],
)
def test_nothing_the_code_does_breaks_the_cell(cell: Cell, code: str, words: str) -> None:
    pictures, stderr, _ = cell.draws(code)
    assert pictures == []
    assert words in stderr
    assert "Traceback" not in stderr


def test_a_glyph_that_is_missing_is_no_noise(cell: Cell) -> None:
    pictures, stderr, _ = cell.draws(DRAW + "plt.title('\\u6f22')")
    assert (len(pictures), stderr) == (1, "")


MATPLOTLIB = (
    *("matplotlib", "mpl_toolkits", "numpy", "numpy.libs", "PIL", "pillow.libs", "contourpy"),
    *("cycler", "dateutil", "fontTools", "kiwisolver", "packaging", "pyparsing", "six.py"),
)
"""With what it needs: the packages of the tests have agentrl among them, which is refused."""


@pytest.fixture
def packages(tmp_path: Path) -> str:
    """Make a directory of packages, of links where the file system allows them."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    for name in MATPLOTLIB:
        path = Path(sysconfig.get_path("purelib"), name)
        if path.is_dir():
            shutil.copytree(path, tmp_path / name, copy_function=link)
        elif path.exists():
            link(str(path), str(tmp_path / name))
    tmp_path.chmod(0o755)  # of pytest's it is its user's alone, and a session's user is another
    return str(tmp_path)


@pytest.mark.namespaces
async def test_a_session_returns_the_figures_of_a_cell(packages: str) -> None:
    """What it drew before an error too; a fork draws its own; the next cell begins without any."""
    settings = SandboxSettings(
        packages=packages,
        limits=Limits(wall_s=60, memory_bytes=2 * 2**30),
    )
    pool = ForkServerPool(settings)
    try:
        session = await pool.open()
        drawn = await session.exec(DRAW + "f = plt.figure(figsize=(2, 1)); plt.plot([1, 3]); 7")
        assert (drawn.status, drawn.stderr, drawn.value) == ("ok", "", "7"), drawn.error
        (image,) = drawn.images
        assert (image.media_type, pixels(image.data)) == ("image/png", (200, 100))
        assert (await session.exec("x = 1")).images == ()
        copy = await session.fork()
        failed = await copy.exec("plt.figure(figsize=(1, 1)); plt.figure(figsize=(1, 2)); 1 / 0")
        assert failed.status == "error"
        assert [pixels(image.data) for image in failed.images] == [(100, 100), (100, 200)]
        assert (await session.exec("plt.get_fignums()")).value == "[]"
    finally:
        await pool.close()

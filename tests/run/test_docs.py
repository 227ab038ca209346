"""Every block of code in the documentation runs, or says why it cannot; every link leads somewhere.

Python runs from top to bottom of a page, in one namespace; YAML is loaded as a config, laid over a
small one where it is a part of one; `agentrl` runs, and where that would take minutes or a terminal
its arguments are parsed and its config is loaded. Where a page says so its runs are trained, small.
tests/support/pages.py has the marks.

Mutants seen caught, of pages: a key or a value of YAML misspelt, an option, a config, a script or a
make target that is not there, other output, a name that does not exist, one given too few, broken
JSON, a mark misspelt or without a reason, an extra that is not there, a command hidden in `text`, a
block without a language, a link to no heading or no file, a page in no list. Of what reads them:
marks found in mid-line, lines counted from 0, tables of contents taken for code, continued lines
cut.
"""

import ast
import asyncio
import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from inspect import CO_COROUTINE
from itertools import pairwise
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import typer
import yaml

from agentrl.cli.app import add_commands, app
from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.registry import make
from agentrl_envs import register_envs
from tests.conftest import PARTS
from tests.support.chat_server import chat_server
from tests.support.commands import agentrl
from tests.support.foreign_packages import BENCH
from tests.support.page_names import NAMES
from tests.support.pages import LANGUAGES, Block, blocks, find, lines_of, names, pages

ROOT = Path(__file__).parents[2]
PAGES = {str(page.relative_to(ROOT)): blocks(page, ROOT) for page in pages(ROOT)}
REFERENCE = "docs/api.md"
ELSEWHERE = {"docs/tutorial.md": "tests/run/test_tutorial.py"}
"""Pages that another test runs, whole."""
SMALL = """
run: {name: quickstart, steps: 2, threads: 1}
env: {id: reasoning/ChainSum-v0, kwargs: {difficulty: 0}}
policy: {make: {hidden_size: 32, layers: 1, heads: 2, kv_heads: 2, head_dim: 16, vocab_size: 320}}
warmstart: {steps: 2, batch_size: 4, demonstrations: 40}
engine: {slots: 8, context_tokens: 512}
sampling: {max_turn_tokens: 24}
rollout: {tasks_per_step: 2, group_size: 2, max_turns: 1}
evaluate: {tasks: 4}
metrics: {tensorboard: false}
"""
QUICK: Mapping[str, str] = {
    "run.steps": "1",
    "run.threads": "1",
    "policy.make": "null",
    "warmstart": "null",
    "engine.slots": "8",
    "engine.context_tokens": "1024",
    "sampling.max_turn_tokens": "16",
    "rollout.tasks_per_step": "2",
    "rollout.group_size": "2",
    "evaluate.tasks": "2",
    "metrics.tensorboard": "false",
}
"""What a run that is trained small is given besides `MODEL`: little of everything."""
SERVED = "http://localhost:8000/v1"
"""Where pages say that somebody's model is served."""
MODEL = "models/mine"
"""What pages call a model of the reader's own. Here it is that of the small run."""
RUNS = ("quickstart", "NAME", "one", "two")
"""What pages call the runs they speak of. Here all of them are one small run."""


@dataclass(slots=True)
class Reader:
    """Somebody who does what a page says, in a folder of their own."""

    capsys: pytest.CaptureFixture[str]
    folder: Path
    known: dict[str, Any]
    stands_for: Mapping[str, str]
    """What a page names and nobody has, such as `/path/to`, and what is meant here."""
    printed: str = ""

    def read(self, block: Block) -> None:
        """Do what a block says. Raises for whatever is wrong with it."""
        kind = block.language
        block = replace(block, text=self.translate(block.text))
        if "file" in block.marks:
            (self.folder / block.marks["file"]).write_text(block.text)
        if "not run" in block.marks or "run by" in block.marks:
            return
        if "output" in block.marks:
            assert self.printed == block.text, f"{block.place} is not what is printed"
        elif kind == "python" and "file" not in block.marks:
            self.printed = run_python(block, self.known)
        elif kind == "yaml":
            load_yaml(block, self.folder)
        elif kind == "json":
            json.loads(block.text)
        elif kind == "sh":
            changes = block.marks.get("small")
            for command in lines_of(block.text):
                self.run(command, None if changes is None else parse_changes(changes))

    def translate(self, text: str) -> str:
        """Return a text with what is there in the place of what is not."""
        for word, meaning in self.stands_for.items():
            text = text.replace(word, meaning)
        return text

    def run(self, command: str, changes: Mapping[str, str] | None) -> None:
        """Run a command, or as much of it as can be run here; with changes also what trains."""
        words, _, file = command.partition(" > ")
        name, *rest = shlex.split(re.sub(r"^\.venv/bin/", "", words))
        if name == "agentrl":
            shown = self.agentrl(rest, changes)
            if file:
                (self.folder / file).write_text(shown)
        else:
            check = CHECKS.get(name)
            assert check, (
                f"{command!r}: nothing here knows {name}; mark the block <!-- not run: -->"
            )
            check(rest)

    def agentrl(self, arguments: list[str], changes: Mapping[str, str] | None) -> str:
        """Run a command of ours, or parse it where running takes minutes, a terminal or a fleet.

        Return what it has written to stdout.
        """
        parse(arguments)
        if changes is not None and arguments[0] in ("train", "eval"):
            small = {"policy.path": MODEL, **QUICK, **changes}
            arguments = [*arguments, *(f"{key}={value}" for key, value in small.items())]
        elif dry(arguments):
            if arguments[0] in ("train", "warmstart"):
                config, *overrides = (word for word in arguments[1:] if not word.startswith("--"))
                env_of(load_config(config, overrides))
            return ""
        code, out, err = agentrl(self.capsys, *arguments)
        assert code == 0, f"agentrl {shlex.join(arguments)}: exit code {code}\n{out}\n{err}"
        return out


def parse_changes(text: str) -> dict[str, str]:
    """Return the keys and values of a mark; a value may be a mapping with spaces in it."""
    return dict(re.findall(r"([\w.]+)=(\{[^}]*\}|\S+)", text))


DRY: Mapping[str, tuple[str, str]] = {
    "train": ("", "minutes of training"),
    "warmstart": ("", "minutes of training"),
    "simulate": ("", "minutes of search"),
    "record": ("", "it plays as many episodes as its page says"),
    "image": ("", "it builds from a mirror"),
    "gc": ("", "it removes what others on this machine left"),
    "view": ("--serve", "it serves until it is stopped"),
}
"""Commands that are parsed and not run, those with an option only where it is given; and why."""


def dry(arguments: list[str]) -> bool:
    option, _ = DRY.get(arguments[0], (None, ""))
    return option is not None and (not option or option in arguments)


def command_of(arguments: list[str]) -> tuple[Any, str, list[str]]:
    """Return the command that a line names, its whole name, and what is left of the line."""
    command: Any = typer.main.get_command(app)
    path, rest = "agentrl", arguments
    while rest and (below := getattr(command, "commands", None)) is not None:
        name, *left = rest
        if name.startswith("--"):
            break
        assert name in below, f"{path} {name}: there are {[*below]}"
        command, path, rest = below[name], f"{path} {name}", left
    return command, path, rest


def parse(arguments: list[str]) -> None:
    """Parse a command line of ours. Raises typer's errors for what it would refuse."""
    command, path, rest = command_of([word for word in arguments if word != "--debug"])
    assert not hasattr(command, "commands"), f"{path} wants a command"
    command.make_context(path, rest).close()


def run_python(block: Block, known: dict[str, Any]) -> str:
    """Run a block with the names of its page; return what it prints.

    Tracebacks show the lines of the page. A block may await, as in a notebook.
    """
    given = names(block.marks.get("given", ""))
    made = NAMES.get(block.page, dict)() if given else {}
    assert made.keys() == given, f"{block.place}: given {sorted(given)}, made {sorted(made)}"
    known |= made
    source = "\n" * block.line + block.text
    code: CodeType = compile(source, block.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if code.co_flags & CO_COROUTINE:
            asyncio.run(eval(code, known))
        else:
            exec(code, known)
    return printed.getvalue()


def load_yaml(block: Block, folder: Path) -> None:
    """Load a config, or a part of one laid over a small one."""
    found = yaml.safe_load(block.text)
    assert isinstance(found, dict), f"{block.place} is no config"
    config = folder / block.marks.get("file", "block.yaml")
    base = "" if {"env", "base"} & found.keys() else "base: small.yaml\n"
    config.write_text(base + block.text)
    env_of(load_config(config))


def env_of(config: RunConfig) -> None:
    """Make the environment of a config, unless it is in a module of the reader's own."""
    module = config.env.id.partition(":")[0]
    if "/" in module or module.startswith("agentrl"):
        make(config.env.id, **config.env.kwargs)


def check_make(arguments: list[str]) -> None:
    """See that make knows the targets."""
    text = (ROOT / "Makefile").read_text()
    for target in arguments:
        assert re.search(rf"^{re.escape(target)}:", text, re.MULTILINE), f"make {target}"


def check_python(arguments: list[str]) -> None:
    """See that a script or a module is there, and that it has the flags it is called with."""
    first, *rest = arguments
    if first == "-m":
        name, *rest = rest
        found = importlib.util.find_spec(name)
        assert found, f"python -m {name}"
        script = Path(found.origin or "")
    else:
        script = ROOT / first
    sources = [script.read_text()]
    if script.parent == ROOT / "benchmarks":
        sources.append((ROOT / "benchmarks/harness.py").read_text())
    for flag in (word for word in rest if word.startswith("--")):
        assert any(f'"{flag}"' in source for source in sources), f"{script} has no {flag}"


def check_paths(arguments: list[str]) -> None:
    """See that tests and modules are there."""
    for place in arguments:
        assert place.startswith("-") or (ROOT / place.partition("::")[0]).exists(), place


def check_ruff(arguments: list[str]) -> None:
    """See that it is what `make check` runs, or `make format`."""
    assert f"ruff {shlex.join(arguments)}\n" in (ROOT / "Makefile").read_text(), arguments


def check_pip(arguments: list[str]) -> None:
    """See that what is installed is an extra of ours, or a package that tests have."""
    name, *packages = arguments
    assert name == "install", f"pip {name}"
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for package in {*packages} - {*pinned}:
        found = re.fullmatch(rf"{project['name']}\[([\w,]+)\]", package)
        assert found, f"pip install {package}: mark the block <!-- not run: -->"
        for extra in found[1].split(","):
            assert extra in project["optional-dependencies"], f"no extra is called {extra}"


CHECKS: Mapping[str, Callable[[list[str]], None]] = {
    "make": check_make,
    "pip": check_pip,
    "python": check_python,
    "pyright": check_paths,
    "pytest": check_paths,
    "ruff": check_ruff,
}
"""Commands of others, of which it can be seen that they exist. Running them takes minutes."""


def module_of(page: str) -> str:
    """Return a name for what a page defines: classes are looked up by their module."""
    return "docs_" + re.sub(r"\W", "_", page)


def needed_parts(page: str) -> set[str]:
    return {part for block in PAGES[page] for part in names(block.marks.get("needs", ""))}


def needs(page: str) -> list[pytest.MarkDecorator]:
    parts = needed_parts(page)
    assert parts <= PARTS.keys(), f"{page}: {sorted(parts - PARTS.keys())} are no parts"
    return [getattr(pytest.mark, part) for part in sorted(parts)]


def served_model() -> AbstractContextManager[str]:
    """Serve a model that answers questions, and as a judge wants reasons."""
    return chat_server(lambda text: f"Score: {9 if 'because' in text else 0}")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small run, trained here."""
    from agentrl.run.train import train

    register_envs()
    place = tmp_path_factory.mktemp("run")
    (place / "small.yaml").write_text(SMALL)
    train(place / "small.yaml", {"run.folder": str(place)})
    return place / "quickstart"


@pytest.fixture
def reader(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Reader]:
    """Return a reader whose folder has the configs, and runs if commands may ask for them."""
    register_envs()
    add_commands()
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "gem-venv").symlink_to(ROOT / ".bench/gem")
    (tmp_path / "small.yaml").write_text(SMALL)
    page: str = request.getfixturevalue("page")
    text = "".join(block.text for block in PAGES[page])
    if MODEL in text or any("small" in block.marks for block in PAGES[page]):
        (tmp_path / MODEL).parent.mkdir()
        (tmp_path / MODEL).symlink_to(request.getfixturevalue("run_folder") / "policy")
    if "pyarrow" in needed_parts(page):
        monkeypatch.syspath_prepend(BENCH / "pyarrow")
    if any(re.search(rf"runs/({'|'.join(RUNS)})\b", block.text) for block in PAGES[page]):
        for name in RUNS:
            shutil.copytree(request.getfixturevalue("run_folder"), tmp_path / "runs" / name)
    # As where the environment that runs this is active.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("webbrowser.open", id)
    monkeypatch.syspath_prepend(tmp_path)
    with served_model() if SERVED in text else nullcontext(SERVED) as address:
        stands_for = {SERVED: address, "/path/to": str(tmp_path)}
        yield Reader(capsys, tmp_path, {"__name__": module_of(page)}, stands_for)
    for name, loaded in [*sys.modules.items()]:
        if str(getattr(loaded, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=needs(page))
        for page, found in PAGES.items()
        if found and page not in ELSEWHERE
    ],
)
def test_the_page_runs(page: str, reader: Reader) -> None:
    for block in PAGES[page]:
        try:
            reader.read(block)
        except BaseException as error:
            error.add_note(f"in the block at {block.place}")
            raise


@pytest.mark.parametrize(
    ("example", "below"),
    [pair for pair in pairwise(PAGES[REFERENCE]) if pair[0].language == "python"],
    ids=lambda block: block.place,
)
def test_an_example_of_the_reference_runs_alone(
    example: Block, below: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who pastes one into a file has no name of another, and sees what the page says."""
    monkeypatch.chdir(tmp_path)
    assert run_python(example, {"__name__": module_of(REFERENCE)}) == below.text


@pytest.mark.parametrize("page", [page for page, found in PAGES.items() if found])
def test_every_block_says_what_it_is(page: str) -> None:
    for block in PAGES[page]:
        assert block.language in LANGUAGES, f"{block.place}: ```{block.language}"
        assert block.marks.keys() & {"not run", "run by"} == set() or any(
            len(block.marks.get(mark, "")) > 10 for mark in ("not run", "run by")
        ), f"{block.place} does not say why it is not run"
        if place := block.marks.get("run by"):
            assert (ROOT / place).is_file(), f"{block.place}: there is no {place}"
        # Nobody types what is in `text`, so a command may not hide there.
        if block.language == "text" and block.page != "docs/cli.md":
            first = block.text.split(maxsplit=1)[0]
            assert first not in {"agentrl", *CHECKS}, f"{block.place}: a command in ```text"


def test_what_is_not_run_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The table of it is part of what the tests print, and short."""
    blocks = [block for found in PAGES.values() for block in found]
    rows = [(b.place, b.marks["not run"]) for b in blocks if "not run" in b.marks]
    elsewhere = [(b.place, f"run by {b.marks['run by']}") for b in blocks if "run by" in b.marks]
    elsewhere += [(page, f"run by {test}") for page, test in ELSEWHERE.items()]
    rows += [(f"agentrl {name} {option}", f"parsed: {why}") for name, (option, why) in DRY.items()]
    with capsys.disabled():
        print("\nblocks of the documentation that no page's test runs:")  # noqa: T201
        for place, why in (*elsewhere, *rows):
            print(f"  {place:28} {why}")  # noqa: T201
    assert len(rows) <= 28


def inline(page: str) -> Iterator[str]:
    """Yield the commands of ours that a page's sentences and tables name."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    for found in re.finditer(r"`(?:\.venv/bin/)?agentrl ([^`]+)`", text):
        yield found[1]


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_sentences_exist(page: str) -> None:
    add_commands()
    for line in inline(page):
        if line.startswith("COMMAND "):
            continue
        command, path, rest = command_of(line.replace("\\|", "|").split())
        taken = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        options = {word.partition("=")[0] for word in rest if word.startswith("--")}
        strange = options - taken - {"--help", "--debug"}
        assert not strange, f"{page}: {path} has no {sorted(strange)}"


def anchors(page: Path) -> set[str]:
    """Return what a link may name in a page, as GitHub and the site make it of its headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_links_lead_somewhere(page: str) -> None:
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        place = (ROOT / page).parent / path if path else ROOT / page
        assert place.exists(), f"{page}: {target}"
        if anchor and place.suffix == ".md":
            assert anchor in anchors(place), f"{page}: {target}"


def test_every_page_is_in_the_site_and_in_the_readme() -> None:
    """A page that no list names is one that nobody finds."""
    index, readme = ((ROOT / place).read_text() for place in ("docs/index.md", "README.md"))
    entries = set(re.findall(r"^([a-z/-]+)$", index, re.MULTILINE))
    for page in PAGES:
        name = page.removeprefix("docs/").removesuffix(".md")
        if page.startswith("docs/") and name != "index":
            assert name in entries, f"{page} is in no table of contents of docs/index.md"
            assert f"(docs/{name}.md)" in readme, f"{page} is not in README.md"


def test_a_page_s_blocks_and_marks_are_found() -> None:
    text = (
        "# A\n\n<!-- a note -->\n\n```{toctree}\nb\n```\n\nText <!-- file: no.py -->\n"
        "<!-- needs: gem -->\n<!-- not run: for two\nlines -->\n```python\nx = 1\n```\n"
        "```sh\nls\n```\n"
    )
    python, shell = find(text, "p.md")
    assert (python.language, python.text, python.place) == ("python", "x = 1\n", "p.md:13")
    assert python.marks == {"needs": "gem", "not run": "for two lines"}
    assert (shell.text, shell.marks, shell.line) == ("ls\n", {}, 16)
    with pytest.raises(ValueError, match=r"p\.md:2: 'nod run' is no mark"):
        list(find("<!-- nod run: why -->\n```sh\nls\n```\n", "p.md"))
    assert list(lines_of("# no\na \\\n  b  # c\n\nd#e\n")) == ["a    b", "d#e"]


def test_what_a_small_run_changes_is_read_from_its_mark() -> None:
    (block,) = find("<!-- small: a.b={c: 1, d: 2} e=f -->\n```sh\nls\n```\n", "p.md")
    assert parse_changes(block.marks["small"]) == {"a.b": "{c: 1, d: 2}", "e": "f"}
    (block,) = find("<!-- small -->\n```sh\nls\n```\n", "p.md")
    assert parse_changes(block.marks["small"]) == {}


def test_only_extras_that_are_there_are_installed() -> None:
    check_pip(["install", "agentrl-gym[vllm]", "agentrl-gym[train,web]"])
    with pytest.raises(AssertionError, match="no extra is called vlllm"):
        check_pip(["install", "agentrl-gym[train,vlllm]"])
    with pytest.raises(AssertionError, match="mark the block"):
        check_pip(["install", "no-such-package"])

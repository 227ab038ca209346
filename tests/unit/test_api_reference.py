"""docs/api.md is a whole reference: every public name, all of it described, and shown in use.

The examples run in tests/run/test_docs.py. Here the page and the docstrings are read.

Mutants seen caught: a function and an alias that the page does not have, a directive twice, a
class, a field and an alias without a docstring, a parameter left out or misspelt, of a function and
of a constructor, a result that nobody describes, an error that is raised and not named, in the
function or in a private one that it calls, an error that does not exist, a heading without an
example, a name that no example uses, an example without what it prints.
"""

import ast
import builtins
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest

import agentrl
from agentrl import errors
from tests.support.pages import blocks
from tests.support.reference import (
    PAGE,
    Function,
    Name,
    Section,
    described,
    initialiser,
    parameters,
    public,
    raised,
    sections,
    syntax,
)

ROOT = Path(__file__).parents[2]
SECTIONS = sections(ROOT)
NAMES = {name.full: name for section in SECTIONS for name in section.names}
SPAN = re.MULTILINE | re.DOTALL
SAYS = ("Return", "Yield")
"""First words of a docstring that says what comes back."""
NOTHING = ("None", "Generator[None]")
PRIVATE = re.compile(r"\b_[A-Z]")
"""A type that nobody is meant to make: the page shows no constructor that takes one."""


def callables(name: Name) -> Iterator[tuple[str, Function]]:
    """Yield every function that the page shows of a name: itself, or its methods."""
    if isinstance(name.node, Function):
        yield name.full, name.node
    for method, node in name.methods.items():
        yield f"{name.full}.{method}", node


def is_property(function: Function) -> bool:
    return any(ast.unparse(each) == "property" for each in function.decorator_list)


def is_contract(name: Name) -> bool:
    return getattr(name.value, "_is_protocol", False)


def inherited(name: Name, function: Function) -> bool:
    """Return whether a contract describes a method, so that what keeps it need not do so again."""
    there = [each.methods for each in NAMES.values() if is_contract(each)]
    known = [parameters(methods[function.name]) for methods in there if function.name in methods]
    return not is_contract(name) and parameters(function) in known


@pytest.mark.parametrize("module", [each for section in SECTIONS for each in section.modules])
def test_every_public_name_of_a_module_is_on_the_page(module: str) -> None:
    """By the object: what `agentrl` has of other modules is listed where it is defined, or here."""
    there = [name.value for name in NAMES.values()]
    there += [import_module(each) for section in SECTIONS for each in section.modules]
    values = {name: getattr(import_module(module), name) for name in public(module)}
    missing = [name for name, value in values.items() if not any(value is one for one in there)]
    assert not missing, f"docs/api.md has no directive for {missing} of {module}"


def test_the_page_lists_what_the_package_itself_has() -> None:
    listed = re.search(r"^- `agentrl` itself has (.*?)\. ", (ROOT / PAGE).read_text(), SPAN)
    assert listed
    assert sorted(re.findall(r"`(\w+)`", listed[1])) == sorted(agentrl.__all__)


def test_no_name_is_there_twice() -> None:
    names = [name.full for section in SECTIONS for name in section.names]
    assert len(names) > 100
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_and_its_members_have_docstrings(name: Name) -> None:
    """Sphinx leaves out what has none, and says nothing."""
    assert name.doc, f"{name.full} has no docstring"
    undescribed = [member for member, doc in name.attributes.items() if not doc]
    for member, node in name.methods.items():
        undescribed += [] if ast.get_docstring(node) else [member]
    assert not undescribed, f"{name.full}: {undescribed} have no docstring"
    shown = {*name.attributes, *name.methods}
    assert name.members is None or shown >= {*name.members}, f"{name.full} has no {name.members}"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_every_parameter_is_described(name: Name) -> None:
    """And no other: the names in `Args:` are those of the signature, in its order."""
    for full, node in callables(name):
        wanted = parameters(node)
        told = described(ast.get_docstring(node) or "").get("Args", ())
        if not told and inherited(name, node):
            continue
        assert told == wanted, f"{full} takes {wanted} and describes {told}"
    init = initialiser(name.node) if isinstance(name.node, ast.ClassDef) else None
    if init is not None and not PRIVATE.search(ast.unparse(init.args)):
        told, wanted = described(name.doc).get("Args", ()), parameters(init)
        assert told == wanted, f"{name.full} is made of {wanted} and describes {told}"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_docstring_says_what_comes_back(name: Name) -> None:
    for full, node in callables(name):
        if node.returns is None or is_property(node) or inherited(name, node):
            continue
        doc, returns = ast.get_docstring(node) or "", ast.unparse(node.returns)
        says = doc.startswith(SAYS) or "Returns" in described(doc)
        assert says or returns in NOTHING, f"{full} returns {returns} and does not say what that is"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_docstring_names_what_is_raised(name: Name) -> None:
    """An error is named by its class or by one above it, and what is named there is an error."""
    found = [(full, ast.get_docstring(node) or "", [node]) for full, node in callables(name)]
    around = name.node if isinstance(name.node, ast.ClassDef) else None
    if around is not None:
        made = ("__init__", "__post_init__")
        begin = [part for part in around.body if isinstance(part, Function) and part.name in made]
        found.append((name.full, name.doc, begin))
    for full, doc, nodes in found:
        named = described(doc).get("Raises", ())
        classes = tuple(error_class(each) for each in named)
        beside = [*syntax(name.home).body, *(around.body if around is not None else ())]
        for node in nodes:
            for error in raised(node, beside=beside, known=vars(import_module(name.home))):
                assert issubclass(error, classes), f"{full} raises {error} and names {named}"


def error_class(name: str) -> type[BaseException]:
    """Return the error of a name in a docstring: one of ours, or one of Python's."""
    found = getattr(errors, name, None) or getattr(builtins, name, None)
    assert inspect.isclass(found), f"there is no error called {name}"
    assert issubclass(found, BaseException), f"{name} is no error"
    return found


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.heading)
def test_every_heading_has_an_example(section: Section) -> None:
    """One that runs as it is; only a heading of headings needs none."""
    at = SECTIONS.index(section)
    parts = SECTIONS[at + 1 : at + 2]
    if not section.names and parts and parts[0].level > section.level:
        return
    assert section.examples, f"docs/api.md:{section.line}: {section.heading} has no example"
    for block in section.examples:
        assert not block.marks.keys() & {"not run", "run by", "given", "file"}, block.place


def test_every_example_is_followed_by_what_it_prints() -> None:
    *found, last = blocks(ROOT / PAGE, ROOT)
    assert last.language == "text"
    for example, below in pairwise((*found, last)):
        if example.language == "python":
            assert "output" in below.marks, f"{example.place} does not say what it prints"
            assert below.text.strip(), f"{example.place} shows nothing"


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.heading)
def test_every_name_is_used_in_an_example_beside_it(section: Section) -> None:
    used = set[str]()
    for block in section.examples:
        for part in ast.walk(ast.parse(block.text)):
            if isinstance(part, ast.Name):
                used.add(part.id)
            elif isinstance(part, ast.Attribute):
                used.add(part.attr)
    unused = [name.full for name in section.names if name.name not in used]
    assert not unused, f"docs/api.md:{section.line}: no example uses {unused}"


SOURCE = '''
def f(a, /, b, *c, d, **e):
    """Do it.

    Text: no section.

    Args:
        a: The first.
            b: not one of its own.
        b: The second.

    Returns:
        The sum: a number.

    Raises:
        ValueError: It is wrong.
    """
    self._helper()
    try:
        _caught()
    except KeyError:
        raise TypeError from None
    raise error


def _helper():
    def later():
        raise IndexError

    raise OurError("told")


def _caught():
    raise KeyError
'''


def test_what_is_read_of_a_function() -> None:
    module = ast.parse(SOURCE).body
    function = module[0]
    assert isinstance(function, ast.FunctionDef)
    assert parameters(function) == ("a", "b", "c", "d", "e")
    doc = ast.get_docstring(function) or ""
    told = {"Args": ("a", "b"), "Returns": (), "Raises": ("ValueError",)}
    assert described(doc) == told
    known = {"OurError": errors.EnvError}
    assert raised(function, beside=module, known=known) == {TypeError, errors.EnvError}

"""Needs of this package's environments, checked before a run begins.

Each function is given the config of a run, with the registered settings of its environment, and
yields a sentence for every part that is missing. None of them starts anything.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError
from agentrl.runtime.extras import find_missing
from agentrl_sandbox.needs import find_missing_image

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig

PROGRAMS_OF: Mapping[str, Sequence[str]] = {
    "form": (),
    "dialog": ("yad",),
    "editor": ("mousepad",),
    "files": ("thunar",),
    "calculator": ("galculator", "mousepad"),
    "spreadsheet": ("gnumeric",),
    "terminal": ("lxterminal", "xterm"),
    "browser": ("chromium", "mousepad"),
}
"""The commands that put the programs of tasks on a desktop, by `DesktopTemplate.program`."""


def missing_problems(config: "RunConfig") -> Iterator[str]:
    """Yield that the generators of problems are missing, or what one of them needs."""
    from agentrl_envs.reasoning.optional_pycosat import PYCOSAT_MISSING, lacks_pycosat

    yield from find_missing(config.env.id, "reasoning_gym")
    families = config.env.kwargs.get("families", ())
    for family in [families] if isinstance(families, str) else families:
        if lacks_pycosat(family):
            yield f"task family {family!r} {PYCOSAT_MISSING}"


def missing_search(config: "RunConfig") -> Iterator[str]:
    """Yield that the index of search tools is missing."""
    yield from find_missing(config.env.id, "bm25s")


def missing_pictures(config: "RunConfig") -> Iterator[str]:
    """Yield that what draws screens is missing."""
    yield from find_missing(config.env.id, "PIL")


def missing_interpreter(config: "RunConfig") -> Iterator[str]:
    """Yield that there is no interpreter of the name that `python` has."""
    python = config.env.kwargs.get("python")
    if python is not None and shutil.which(str(python)) is None:
        yield (
            f"python (of env.kwargs) is {python!r}, but there is no such program: name the "
            "interpreter of the virtual environment that has the library"
        )


def missing_gateway(config: "RunConfig") -> Iterator[str]:
    """Yield that the agent program that asks the gateway, or a file of its command, is missing."""
    command = config.env.kwargs.get("command")
    if isinstance(command, list) and command:
        yield from _find_command_faults([str(word) for word in command])
    yield from _find_listen_fault(config.env.kwargs)


def _find_command_faults(command: Sequence[str]) -> Iterator[str]:
    from agentrl_envs.blackbox.program import fill_folder

    program, *words = map(fill_folder, command)
    if shutil.which(program) is None:
        yield (
            f"command (of env.kwargs) starts with {program!r}, but there is no such program on "
            "PATH: install it, or give its path"
        )
    for word, path in zip(command[1:], words, strict=True):
        if word.startswith("{here}") and not Path(path).exists():
            yield (
                f"command (of env.kwargs) has {word!r}, but there is no {path}: start agentrl in "
                "the folder that has it, or give its path"
            )


def _find_listen_fault(settings: Mapping[str, Any]) -> Iterator[str]:
    from agentrl.gateway.listening import LOOPBACK, open_socket, parse_listen_address

    host, advertise = settings.get("host", LOOPBACK), settings.get("advertise")
    if not isinstance(host, str) or not isinstance(advertise, str | None):
        return  # a wrong type is told where the environment is made
    try:
        open_socket(parse_listen_address(host, advertise)).close()
    except ConfigError as error:
        yield f"{error} (keys of env.kwargs)"


def missing_pages(config: "RunConfig") -> Iterator[str]:
    """Yield that the pages of MiniWoB++ are missing."""
    yield from find_missing(config.env.id, "miniwob")


def missing_site_server(config: "RunConfig") -> Iterator[str]:
    """Yield that what the pages of our own sites are made with is missing."""
    yield from find_missing(config.env.id, "jinja2")


def missing_browser(config: "RunConfig") -> Iterator[str]:
    """Yield what of a browser is missing: its driver, the program, what isolates it."""
    from agentrl_envs.web.browser.chromium import find
    from agentrl_envs.web.browser.launch import WAY_OUT

    yield from find_missing(config.env.id, "playwright")
    settings = _settings(config, "browser")
    try:
        find(settings.get("executable", ""))
    except ConfigError as error:
        yield str(error)
    isolation = settings.get("isolation", "bubblewrap")
    if isolation == "bubblewrap" and shutil.which("bwrap") is None:
        yield f"browsers run inside bubblewrap, but bwrap is not installed; {WAY_OUT}"


def missing_desktop(config: "RunConfig") -> Iterator[str]:
    """Yield what of a desktop is missing: a screen, or the programs of the chosen tasks."""
    from agentrl_envs.gui.desktop.parts import find_missing_parts
    from agentrl_envs.gui.desktop.settings import DesktopSettings
    from agentrl_sandbox.recipe import RECIPES

    yield from find_missing(config.env.id, "PIL")
    settings = _settings(config, "desktop")
    if settings.get("backend") == "docker":
        image = str(settings.get("image", DesktopSettings.image))
        yield from find_missing_image(RECIPES["desktop"].image(image))
        return
    yield from find_missing_parts(_commands(config.env.kwargs))


def missing_harbor(config: "RunConfig") -> Iterator[str]:
    """Yield what Harbor's tasks lack: a folder that is whole, containers, images, time."""
    from agentrl_envs.harbor.engine import find_missing_images
    from agentrl_envs.harbor.namespaces import open_namespaces
    from agentrl_envs.harbor.task_folder import find_tasks

    settings = config.env.kwargs
    try:
        tasks = find_tasks(str(settings.get("path", "")))
    except ConfigError as error:
        yield str(error)
        return
    chosen = settings.get("tasks") or [task.name for task in tasks]
    played = [task for task in tasks if task.name in chosen] or tasks
    command_s = float(settings.get("command_timeout_s", 45.0))
    if config.rollout.step_s <= command_s:
        yield (
            f"rollout.step_s is {config.rollout.step_s:g}, but command_timeout_s (of env.kwargs) "
            f"is {command_s:g}: a step must have more time than one command"
        )
    provider = settings.get("provider", "docker")
    try:
        if provider == "namespaces":
            open_namespaces(
                played,
                settings.get("provider_kwargs") or {},
                network=settings.get("network", "none"),
                build_network=settings.get("build_network", "none"),
            )
        if provider != "docker":
            return
        missing = find_missing_images(played)
    except ConfigError as error:
        yield str(error)
        return
    for image in missing:
        yield f"a Harbor task needs the image {image!r}; get it first: `docker pull {image}`"


def _commands(settings: Mapping[str, Any]) -> list[str]:
    """Return the programs that the tasks of an environment put on a desktop."""
    if settings.get("pack") != "agentrl_envs.gui.tasks:template_pack":
        return []  # what a pack of one's own starts, nobody knows
    from agentrl_envs.gui.tasks.pack import TEMPLATES

    programs, templates = settings.get("programs"), settings.get("templates")
    template_programs = [
        template.program
        for template in TEMPLATES
        if (not programs or template.program in programs)
        and (not templates or template.name in templates)
    ]
    return list(dict.fromkeys(one for program in template_programs for one in PROGRAMS_OF[program]))


def _settings(config: "RunConfig", name: str) -> Mapping[str, Any]:
    section = config.env.kwargs.get(name)
    return section if isinstance(section, dict) else {}

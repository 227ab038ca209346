"""Environments that come with agentrl. Importing this package imports none of them.

- `reasoning/*`: a question and an answer (`agentrl_envs.reasoning`);
- `code/*`: the same questions with a Python interpreter (`agentrl_envs.code`);
- `programs/*`: a program to write, graded apart on hidden inputs (`agentrl_envs.programs`);
- `retrieval/*`: questions that a corpus answers, with search tools (`agentrl_envs.retrieval`);
- `miniwob/*`: the pages of MiniWoB++ in a browser (`agentrl_envs.web.miniwob`);
- `shop/Mix-v0`, `wiki/Mix-v0`: sites of our own in a browser (`agentrl_envs.web.sites`);
- `gui/*`: tasks in programs on a real desktop (`agentrl_envs.gui`);
- `web/Site-v0`: a site of yours in a browser (`agentrl_envs.web.site`);
- `blackbox/Program-v0`: an agent program of yours, as it is (`agentrl_envs.blackbox`);
- `visual/SeeButton-v0`: a screen to look at and click on (`agentrl_envs.visual`);
- `recorded/Expert-v0`: an expert's recorded trajectories to follow (`agentrl_envs.recorded`);
- `KIND:WHAT`: things from elsewhere (`agentrl_envs.kinds`).
"""

from agentrl.registry import register
from agentrl_envs.families import FAMILIES, MINIWOB, PROGRAMS, camel
from agentrl_envs.kinds import register_kinds

__all__ = ["FAMILIES", "MINIWOB", "PROGRAMS", "register_envs"]

_SANDBOX = "agentrl_sandbox.needs:find_missing_sandbox"
_PROBLEMS = "agentrl_envs.needs:missing_problems"
_BROWSER = "agentrl_envs.needs:missing_browser"
_PAGES = "agentrl_envs.needs:missing_pages"
_SITE_SERVER = "agentrl_envs.needs:missing_site_server"
_DESKTOP = "agentrl_envs.needs:missing_desktop"
_KINDS = {
    "reasoning": ("agentrl_envs.reasoning:ReasoningEnv", "answered directly", (_PROBLEMS,)),
    "code": ("agentrl_envs.code:CodeEnv", "with a stateful Python tool", (_PROBLEMS, _SANDBOX)),
}
_PROGRAMS = "agentrl_envs.programs:ProgramsEnv"
_WEB = "agentrl_envs.web:WebEnv"
_SITES = {
    "shop": ("agentrl_envs.web.sites:shop_pack", "a shop: search, compare, order"),
    "wiki": ("agentrl_envs.web.sites:wiki_pack", "an encyclopaedia of a made-up world, to search"),
}
_GUI = "agentrl_envs.gui:GuiEnv"
_DESKTOP_PROGRAMS = {
    "form": "forms, panels of buttons and lists of our own",
    "dialog": "dialogs as scripts show them",
    "editor": "a text editor",
    "files": "a file manager",
    "calculator": "a calculator, alone and beside an editor",
    "spreadsheet": "a spreadsheet",
    "browser": "a browser, on a site of our own",
    "terminal": "terminals, with and without an accessibility tree",
}
MINIWOB_NAME_CHARACTERS = 400
"""Of a text that is shown: a terminal's list of files is one, and the file to delete its last."""
_ONE_PAGE = (
    *("click", "double_click", "fill", "select", "press", "hover", "drag", "scroll"),
    *("click_at", "drag_at", "wait", "answer"),
)
"""The actions for tasks that are one page: its address and its tabs are none of the task."""


def register_envs() -> None:
    """Register `<kind>/<Family>-v0` of every family, the mix of every kind, and `KIND:WHAT`.

    The mixes get their `families` when they are made. Called through the entry-point group
    `agentrl.envs`, once per process.
    """
    register_kinds()
    for kind, (entry_point, how, needs) in _KINDS.items():
        register(
            f"{kind}/Mix-v0",
            entry_point,
            description=f"any of reasoning-gym's families, {how}; needs families=...",
            needs=needs,
        )
        for family in FAMILIES:
            register(
                f"{kind}/{camel(family)}-v0",
                entry_point,
                kwargs={"families": family},
                description=f"reasoning-gym's {family}, {how}",
                needs=needs,
            )
    register(
        "programs/Mix-v0",
        _PROGRAMS,
        needs=(_SANDBOX,),
        description="any of the programming families, graded on hidden inputs; needs families=...",
    )
    register(
        "blackbox/Program-v0",
        "agentrl_envs.blackbox:BlackBoxEnv",
        needs=("agentrl_envs.needs:missing_gateway",),
        description="an agent program that asks over HTTP; needs tasks, score, agent or command",
    )
    register(
        "recorded/Expert-v0",
        "agentrl_envs.recorded:RecordedEnv",
        description="recorded expert trajectories, patched where left; needs recordings=...",
    )
    register(
        "visual/SeeButton-v0",
        "agentrl_envs.visual:SeeButtonEnv",
        needs=("agentrl_envs.needs:missing_pictures",),
        description="a screen of buttons, drawn; click the one that is named",
    )
    register(
        "retrieval/Wiki-v0",
        "agentrl_envs.retrieval:WikiEnv",
        needs=("agentrl_envs.needs:missing_search",),
        description="questions of one to four facts about a made-up world, with search tools",
    )
    register(
        "retrieval/Corpus-v0",
        "agentrl_envs.retrieval:CorpusEnv",
        needs=("agentrl_envs.needs:missing_search",),
        description="your questions about your texts, with search tools; needs corpus, questions",
    )
    _register_web()
    _register_gui()
    for family in PROGRAMS:
        register(
            f"programs/{camel(family)}-v0",
            _PROGRAMS,
            kwargs={"families": family},
            needs=(_SANDBOX,),
            description=f"write a program: {family}, graded on hidden inputs",
        )


def _register_web() -> None:
    page = {
        "pack": "agentrl_envs.web.miniwob.pack:MiniWobPack",
        "actions": list(_ONE_PAGE),
        "screen": [400, 300],
        "observation_kwargs": {"max_name_characters": MINIWOB_NAME_CHARACTERS},
    }
    register(
        "miniwob/Mix-v0",
        _WEB,
        kwargs=page,
        needs=(_BROWSER, _PAGES),
        description="any of the pages of MiniWoB++, in a browser; needs families=...",
    )
    for family in MINIWOB:
        register(
            f"miniwob/{camel(family.replace('-', '_'))}-v0",
            _WEB,
            kwargs={**page, "families": family},
            needs=(_BROWSER, _PAGES),
            description=f"MiniWoB++'s {family}, in a browser",
        )
    for name, (pack, what) in _SITES.items():
        register(
            f"{name}/Mix-v0",
            _WEB,
            kwargs={"pack": pack, "fork": "copy"},
            needs=(_BROWSER, _SITE_SERVER),
            description=f"{what}, in a browser",
        )
    register(
        "web/Site-v0",
        _WEB,
        kwargs={"pack": "agentrl_envs.web.site:CustomSitePack"},
        needs=(_BROWSER,),
        description="a site of yours in a browser; needs start_url, tasks, checker",
    )


def _register_gui() -> None:
    pack = {"pack": "agentrl_envs.gui.tasks:template_pack"}
    register(
        "gui/Mix-v0",
        _GUI,
        kwargs=pack,
        needs=(_DESKTOP,),
        description="tasks in any of the programs on a desktop",
    )
    register(
        "gui/OSWorld-v0",
        _GUI,
        kwargs={
            "pack": "agentrl_envs.gui.osworld:osworld_pack",
            "desktop": {"width": 1920, "height": 1080},
        },
        needs=(_DESKTOP,),
        description="tasks of OSWorld's format that need no virtual machine; needs path=...",
    )
    for program, what in _DESKTOP_PROGRAMS.items():
        register(
            f"gui/{camel(program)}-v0",
            _GUI,
            kwargs={**pack, "programs": [program]},
            needs=(_DESKTOP,),
            description=f"tasks in {what}, on a desktop",
        )

"""The application: its commands, and how an error reaches the user."""

import errno
import os
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from agentrl.cli import (
    branches,
    check_env,
    check_splits,
    check_template,
    compare,
    config,
    configs,
    doctor,
    engine,
    envs,
    eval,
    export,
    gc,
    import_env,
    init,
    methods,
    model,
    plan,
    record,
    reverify,
    simulate,
    trace,
    train,
    view,
    warmstart,
    watch,
)
from agentrl.cli.console import err, out, show_error, show_text
from agentrl.cli.reference import markdown
from agentrl.errors import AgentrlError, ConfigError
from agentrl.runtime.distribution import __version__
from agentrl.runtime.extras import explain_missing, missing_module

DEBUG = "--debug"
FULL = (errno.ENOSPC, errno.EDQUOT)
COMMANDS = "agentrl.commands"
"""Group of typer applications that distributions add, each a command with commands below it."""

app = typer.Typer(
    name="agentrl",
    help="Train tool-using language-model agents with multi-turn reinforcement learning.",
    no_args_is_help=True,
    rich_markup_mode=None,  # its help takes three times as long, and has boxes in a log, too
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 120} if out.is_terminal else {"terminal_width": 1000},
)
app.command("init")(init.init)
app.command("train")(train.train)
app.command("eval")(eval.evaluate)
app.command("reverify")(reverify.reverify)
app.command("compare")(compare.compare)
app.command("envs")(envs.envs)
app.command("import")(import_env.import_env)
app.command("configs")(configs.configs)
app.command("methods", cls=methods.MethodsCommand)(methods.methods)
app.command("warmstart")(warmstart.warmstart)
app.command("check-env")(check_env.check_env)
app.command("check-splits")(check_splits.check_splits)
app.command("check-template")(check_template.check_template)
app.command("record")(record.record)
app.command("export")(export.export)
app.command("doctor")(doctor.doctor)
app.command("gc")(gc.gc)
app.command("plan")(plan.plan)
app.command("simulate")(simulate.simulate)
app.command("branches")(branches.branches)
app.command("view")(view.view)
app.command("watch")(watch.watch)
app.add_typer(config.app, name="config")
app.add_typer(trace.app, name="trace")
app.add_typer(engine.app, name="engine")
app.add_typer(model.app, name="model")


def _show_reference(wanted: bool) -> None:
    if wanted:
        show_text(markdown(app))
        raise typer.Exit


def _show_version(wanted: bool) -> None:
    if wanted:
        show_text(f"agentrl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool,
        typer.Option(
            DEBUG, help="Show the traceback of an error; valid anywhere on the command line."
        ),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    reference: Annotated[
        bool,
        typer.Option(
            "--markdown",
            callback=_show_reference,
            is_eager=True,
            help="Print the reference of every command as Markdown.",
        ),
    ] = False,
) -> None:
    """Train tool-using language-model agents with multi-turn reinforcement learning."""


def add_commands() -> None:
    """Add the commands of other distributions; one that cannot be imported is left out, aloud."""
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group=COMMANDS)):
        try:
            app.add_typer(point.load(), name=point.name)
        except ImportError as error:
            show_error(ImportError(f"the command {point.name!r} is not available: {error}"))


def needs_no_others(arguments: Sequence[str]) -> bool:
    """Return whether a command line can be followed without commands of other distributions."""
    word = next((argument for argument in arguments if not argument.startswith("-")), "")
    command_names = [command.name for command in (*app.registered_commands, *app.registered_groups)]
    return word in command_names or (not word and "--version" in arguments)


def _is_key_option(argument: str) -> bool:
    """Whether an argument is a key of a config with the dashes of an option before it."""
    name = argument.removeprefix("--").partition("=")[0]
    return argument.startswith("--") and "." in name and name.partition(".")[0].isidentifier()


@contextmanager
def _sigterm_as_ctrl_c() -> Generator[None]:
    """Stop as cleanly when a scheduler or a container runtime asks as when a person does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    of_ctrl_c = signal.getsignal(signal.SIGINT)
    if of_ctrl_c is signal.SIG_IGN:
        # What a script starts in the background ignores it, and would ignore what we make of it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, of_ctrl_c)


def main() -> None:
    """Run a command, the working folder importable; exit 2 for an error raised on purpose."""
    arguments = sys.argv[1:]
    debug = DEBUG in arguments
    try:
        sys.path.insert(0, os.getcwd())
    except FileNotFoundError as error:
        show_error(error, "the working directory has been deleted; change to another one")
        sys.exit(2)
    if not err.is_terminal:
        # Bars of other packages, which would fill a log.
        os.environ.setdefault("TQDM_DISABLE", "1")
    # The shell hands over what has been typed so far where it asks how it may go on.
    if not needs_no_others(arguments or os.environ.get("COMP_WORDS", "").split()[1:]):
        add_commands()
    arguments = [argument for argument in arguments if argument != DEBUG]
    if key := next(filter(_is_key_option, arguments), None):
        name, _, value = key.removeprefix("--").partition("=")
        show_error(
            ConfigError(
                f"{key} is not an option: set config keys without leading dashes, as "
                f"{name}={value or 'VALUE'}"
            )
        )
        sys.exit(2)
    try:
        with _sigterm_as_ctrl_c():
            app(arguments, prog_name="agentrl")
    except AgentrlError as error:
        if debug:
            raise
        show_error(error)
        sys.exit(2)
    except ModuleNotFoundError as error:
        module = missing_module(error)
        if debug or module is None:
            raise
        command = next(word for word in arguments if not word.startswith("-"))
        show_error(error, explain_missing(f"agentrl {command}", module))
        sys.exit(2)
    except OSError as error:
        if debug or (error.filename is None and error.errno not in FULL):
            raise
        place = "" if error.filename is None else f"{error.filename}: "
        rule = (
            "check that the path exists, that you have permission to use it, and that the disk is "
            "not full"
        )
        show_error(error, f"{place}{error.strerror}; {rule}")
        sys.exit(2)

"""`agentrl view`."""

import webbrowser
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.arguments import check_writable
from agentrl.cli.completion import complete_run
from agentrl.cli.console import err, show_text

PORT = 8765
MOST_RUNS = 2


def view(
    runs: Annotated[
        list[Path],
        typer.Argument(
            autocompletion=complete_run,
            metavar="RUN",
            help="Run folder; two are shown side by side.",
        ),
    ],
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="HTML file to write; NAME.html in the working directory by default."
        ),
    ] = None,
    opens: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
    step: Annotated[
        str | None, typer.Option(metavar="A:B", help="Show only groups of steps A to B, inclusive.")
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            min=1, help="Maximum number of trajectories; beyond it, groups are sampled evenly."
        ),
    ] = 100_000,
    serve: Annotated[
        bool,
        typer.Option(
            show_default=False,
            help="Serve the page over HTTP and update it live, instead of writing a file.",
        ),
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port for --serve; 0 picks a free port.")
    ] = PORT,
) -> None:
    """Write the groups, trees, trajectories, and tokens of a run, or of two, to one HTML page."""
    from agentrl.errors import ConfigError
    from agentrl.view.document import page
    from agentrl.view.group_choice import StepRange
    from agentrl.view.run_reader import RunReader

    if len(runs) > MOST_RUNS:
        raise ConfigError(
            f"{len(runs)} run folders are given, and a page shows {MOST_RUNS} at most; name fewer"
        )
    steps = StepRange.parse(step)
    if serve:
        if output is not None:
            raise ConfigError(f"--serve writes no file; omit --out {output}")
        from agentrl.view.serve import serve as serve_run

        serve_run(runs, steps=steps, port=port, announce=partial(_announce, opens=opens))
        return
    output = output or Path("-".join(run.resolve().name for run in runs) + ".html")
    check_writable(output, "--out")
    with ExitStack() as opened:
        sources = [opened.enter_context(RunReader(run)) for run in runs]
        unfinished = output.with_name(f".{output.name}.partial")
        try:
            with unfinished.open("w", encoding="utf-8", errors="replace") as file:
                for part in page(
                    sources, steps=steps, limit=limit, say=partial(show_text, stream=err)
                ):
                    file.write(part)
            unfinished.replace(output)
        except OSError as error:
            raise ConfigError(
                f"{output} cannot be written: {error.strerror}; choose another path with --out"
            ) from error
        finally:
            unfinished.unlink(missing_ok=True)
    show_text(f"wrote {output}, {output.stat().st_size / 2**20:.1f} MiB", err)
    if opens:
        webbrowser.open(output.resolve().as_uri())


def _announce(url: str, *, opens: bool) -> None:
    show_text(url)
    if opens:
        webbrowser.open(url)

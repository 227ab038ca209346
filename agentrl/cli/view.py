"""`agentrl view`."""

import webbrowser
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.console import err, out

PORT = 8765


def view(
    run: Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="A run's folder.")],
    *,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="The HTML file; NAME.html here.")
    ] = None,
    opens: Annotated[
        bool, typer.Option("--open/--no-open", help="Open it in a browser afterwards.")
    ] = True,
    step: Annotated[
        str | None, typer.Option(metavar="A:B", help="Groups of these steps alone, both included.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Most trajectories; beyond, groups are chosen evenly.")
    ] = 4000,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the page instead, with what is new as it comes.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of --serve; 0 takes any.")] = PORT,
) -> None:
    """Make one HTML file of a run that opens from disk: groups, trees, trajectories, tokens."""
    from agentrl.errors import ConfigError
    from agentrl.view.document import page
    from agentrl.view.group_choice import StepRange
    from agentrl.view.run_reader import RunReader

    steps = StepRange.parse(step)
    if serve:
        if output is not None:
            raise ConfigError(f"--serve makes no file; leave --out {output} out")
        from agentrl.view.serve import serve as serve_run

        serve_run(run, steps=steps, port=port, announce=partial(_announce, opens=opens))
        return
    output = output or Path(f"{run.resolve().name}.html")
    with RunReader(run) as source:
        unfinished = output.with_name(f".{output.name}.partial")
        try:
            with unfinished.open("w", encoding="utf-8", errors="replace") as file:
                for part in page(source, steps=steps, limit=limit):
                    file.write(part)
            unfinished.replace(output)
        except OSError as error:
            raise ConfigError(
                f"{output} cannot be written: {error.strerror}; choose another place with --out"
            ) from error
        finally:
            unfinished.unlink(missing_ok=True)
    size = output.stat().st_size
    err.print(f"{output} written, {size / 2**20:.1f} MiB", markup=False)
    if opens:
        webbrowser.open(output.resolve().as_uri())


def _announce(url: str, *, opens: bool) -> None:
    out.print(url, markup=False, highlight=False)
    if opens:
        webbrowser.open(url)

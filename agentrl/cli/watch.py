"""`agentrl watch`."""

import time
from dataclasses import asdict
from typing import Annotated

import typer

from agentrl.cli.arguments import JsonFlag, RunFolder
from agentrl.cli.console import out, show_json


def watch(
    run: RunFolder,
    *,
    once: Annotated[
        bool, typer.Option(show_default=False, help="Print one frame and exit.")
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.2, metavar="SECONDS", help="Seconds between frames.")
    ] = 2.0,
    as_json: JsonFlag = False,
) -> None:
    """Show the live status of a run: reward, throughput, failures, stalled trajectories."""
    from rich.live import Live

    from agentrl.view.frame import frame
    from agentrl.view.run_reader import RunReader
    from agentrl.view.run_status import RunMonitor

    with RunReader(run) as source:
        looking = RunMonitor(source)
        if as_json:
            state = looking.look(now_s=time.monotonic())
            show_json({**asdict(state), "left_s": state.left_s})
            return
        console = out.open_console()
        if once or not out.is_terminal:
            console.print(frame(looking.look(now_s=time.monotonic())))
            return
        with Live(console=console, auto_refresh=False, screen=True) as live:
            try:
                while True:
                    live.update(frame(looking.look(now_s=time.monotonic())), refresh=True)
                    time.sleep(every)
            except KeyboardInterrupt:
                return

"""`agentrl engine serve`."""

from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.arguments import ConfigFile, Overrides
from agentrl.cli.console import show_text
from agentrl.runtime.extras import check_installed

app = typer.Typer(help="Serve inference engines for runs on other machines.", no_args_is_help=True)


@app.callback()
def engine() -> None:
    """Serve inference engines for runs on other machines."""


@app.command("serve")
def serve(
    config_file: ConfigFile,
    overrides: Overrides = None,
    *,
    policy: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Model folder to load first; policy.path by default. A run sends its own weights "
                "when it connects, so any model of the same shape works."
            )
        ),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 picks a free port."),
    ] = "127.0.0.1:7440",
) -> None:
    """Serve the engine of a config until Ctrl-C, to runs whose engine.addresses name it.

    The key of engine.key_file is asked for; what travels is not encrypted.
    """
    import asyncio

    check_installed("agentrl engine serve", "torch", "transformers")
    from agentrl.config.load import load_config
    from agentrl.engine.remote.address import read_key
    from agentrl.engine.remote.server import listening_place, serve_until_told
    from agentrl.errors import ConfigError
    from agentrl.models.place import policy_place
    from agentrl.run.build_engine import build_engine_spec
    from agentrl.runtime.machine import device_of

    config = load_config(config_file, overrides or ())
    folder = policy or config.policy.path
    if folder is None:
        raise ConfigError(
            "the config creates a new policy (policy.make), which does not exist on this machine; "
            "name a model folder of the same shape with --policy, such as policy/ of a run folder"
        )
    host, port = listening_place(listen)
    key = read_key(config.engine.key_file)
    recipe = build_engine_spec(config, policy_place(folder), device=device_of(config.policy.device))
    asyncio.run(
        serve_until_told(
            recipe,
            host,
            port,
            key=key,
            ready=lambda place: show_text(
                f"the engine listens on {place}; press Ctrl-C to stop it"
            ),
        )
    )

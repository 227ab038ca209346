"""`agentrl engine serve`."""

from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.arguments import ConfigFile, Overrides
from agentrl.cli.console import out
from agentrl.runtime.machine import device_of

app = typer.Typer(help="Engines that runs on other machines use.", no_args_is_help=True)


@app.callback()
def engine() -> None:
    """Engines that runs on other machines use."""


@app.command("serve")
def serve(
    config_file: ConfigFile,
    overrides: Overrides = None,
    *,
    policy: Annotated[
        Path | None,
        typer.Option(
            help="Model folder to begin with: that of policy.path by default. A run that comes "
            "sends its own weights, so any of the same shape will do."
        ),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one."),
    ] = "127.0.0.1:7440",
) -> None:
    """Serve the engine of a config until Ctrl-C, to runs whose engine.addresses name it.

    The key of engine.key_file is asked for; what travels is not encrypted.
    """
    import asyncio

    from agentrl.config.load import load_config
    from agentrl.engine.remote.address import read_key
    from agentrl.engine.remote.serving import listening_place, serve_until_told
    from agentrl.errors import ConfigError
    from agentrl.models.place import policy_place
    from agentrl.run.build_engine import recipe_of

    config = load_config(config_file, overrides or ())
    folder = policy or config.policy.path
    if folder is None:
        raise ConfigError(
            "the config makes a policy of its own, which is not here; name a model folder of its "
            "shape with --policy, a run's policy/ say"
        )
    host, port = listening_place(listen)
    key = read_key(config.engine.key_file)
    recipe = recipe_of(config, policy_place(folder), device=device_of(config.policy.device))
    asyncio.run(
        serve_until_told(
            recipe,
            host,
            port,
            key=key,
            ready=lambda place: out.print(
                f"the engine listens at {place}; Ctrl-C ends it", markup=False, highlight=False
            ),
        )
    )

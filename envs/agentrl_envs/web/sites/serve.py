"""Look at a site in a browser of your own: `python -m agentrl_envs.web.sites.serve shop --seed 3`.

One state for everybody who looks, forgotten at the end; only this machine can look.
"""

import argparse
from collections.abc import MutableMapping, Sequence
from typing import Any

from agentrl_envs.web.sites import find_site
from agentrl_envs.web.sites.asgi import STATE_KEY, AsgiApp
from agentrl_envs.web.sites.pack import TemplateSite


def build_app(site: TemplateSite[Any], seed: int) -> AsgiApp:
    """Return an application with a state of its own."""
    state, app = site.state(seed), site.app()

    async def call_with_state(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        scope[STATE_KEY] = state
        await app(scope, receive, send)

    return call_with_state


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a site until it is interrupted."""
    import uvicorn

    parser = argparse.ArgumentParser(description="Serve a site on this machine, to look at it.")
    parser.add_argument("site", choices=("shop", "wiki"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args(arguments)
    app: Any = build_app(find_site(args.site), args.seed)
    uvicorn.run(app, host="127.0.0.1", port=args.port, lifespan="off")


if __name__ == "__main__":
    main()

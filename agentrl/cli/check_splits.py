"""`agentrl check-splits`."""

from typing import Annotated

import typer

from agentrl.cli.arguments import ConfigFile, JsonFlag, Overrides
from agentrl.cli.console import show_json, show_table, show_text

EXCERPT = 100


def check_splits(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    train_tasks: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of train tasks to compare; split_guard.train_tasks by default."
        ),
    ] = None,
    show: Annotated[int, typer.Option(help="Number of pairs to list.")] = 10,
    as_json: JsonFlag = False,
) -> None:
    """Find held-out tasks that leak into training, exactly or nearly. Exits 2 if there are any."""
    from agentrl.config.load import load_config
    from agentrl.evaluation.split_guard import check_overlap
    from agentrl.run import build

    loaded = load_config(config, overrides or ())
    env = build.build_env_factory(loaded, plays=False)()
    heldout = build.build_evaluation_tasks(loaded, env)
    overlap = build.find_split_overlap(loaded, env, heldout, train_tasks=train_tasks)
    pairs = [*overlap.exact, *overlap.near]
    if as_json:
        show_json(
            {
                "heldout": overlap.heldout,
                "train": overlap.train,
                "identical": len(overlap.exact),
                "nearly_identical": len(overlap.near),
                "pairs": [
                    {
                        "similarity": pair.similarity,
                        "heldout": str(pair.heldout.prompt),
                        "train": str(pair.train.prompt),
                    }
                    for pair in pairs
                ],
            }
        )
    else:
        looked = f"{overlap.heldout} held-out and {overlap.train} train tasks"
        show_text(f"{looked}: {len(overlap.exact)} identical, {len(overlap.near)} nearly identical")
    if pairs and show > 0 and not as_json:
        rows = [
            (f"{pair.similarity:.0%}", _excerpt(pair.heldout.prompt), _excerpt(pair.train.prompt))
            for pair in pairs[:show]
        ]
        show_table(("alike", "held out", "train"), rows)
    check_overlap(overlap, max_near_fraction=loaded.split_guard.max_near_fraction)


def _excerpt(prompt: object) -> str:
    text = " ".join(str(prompt).split())
    # The end of a task is where it differs from the others, most of the time.
    return text if len(text) <= EXCERPT else f"...{text[-EXCERPT:]}"

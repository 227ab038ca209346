"""Writing an export: a folder that is there whole or not at all."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentrl.errors import ConfigError
from agentrl.export.atif import atif_of
from agentrl.export.choice import ExportCondition
from agentrl.export.episode import ExportedTrajectory, episodes_of
from agentrl.export.parquet import ParquetFiles
from agentrl.export.row import FILE, Row, line_of, row_of
from agentrl.runtime.atomic_files import write_json
from agentrl.runtime.image_files import ImageFiles
from agentrl.runtime.surrogates import replace_surrogates
from agentrl.task import Split

Format = Literal["jsonl", "hf", "atif"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSummary:
    """Counts of the trajectories that were written and of those that were not."""

    written: int
    left_out: int
    """Trajectories that a filter or the split excluded, and those in which nothing was said."""
    pruned_groups: int
    """Groups whose records the run has removed."""


def export(
    run: Path,
    output: Path,
    *,
    to: Format,
    split: Split | None = None,
    filters: Sequence[str] = (),
    tokens: bool = False,
) -> ExportSummary:
    """Write a run's ended trajectories into the new folder `output`; `ConfigError` if it cannot."""
    conditions = [ExportCondition.parse(text) for text in filters]
    if split is not None:
        conditions.append(ExportCondition("split", "=", split))
    if output.exists():
        raise ConfigError(f"{output} already exists; give another --output, or remove it")
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)
    try:
        counts = Counter[Literal["written", "left out", "pruned"]]()
        with ExitStack() as stack:
            write = _writer(to, partial, stack, tokens=tokens)
            for episode in episodes_of(run, tokens=tokens):
                if episode is None:
                    counts["pruned"] += 1
                elif all(one.holds(episode) for one in conditions) and write(episode):
                    counts["written"] += 1
                else:
                    counts["left out"] += 1
        partial.rename(output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return ExportSummary(
        written=counts["written"], left_out=counts["left out"], pruned_groups=counts["pruned"]
    )


def _writer(
    to: Format, folder: Path, stack: ExitStack, *, tokens: bool
) -> Callable[[ExportedTrajectory], bool]:
    """Return a function that writes an episode and returns whether it did."""
    images = ImageFiles(folder)

    def build_row(episode: ExportedTrajectory) -> Row:
        return replace_surrogates(row_of(episode, images))

    match to:
        case "jsonl":
            file = stack.enter_context((folder / FILE).open("w", encoding="utf-8"))
            return lambda episode: file.write(line_of(build_row(episode))) > 0
        case "hf":
            table = stack.enter_context(ParquetFiles(folder, tokens=tokens))

            def add(episode: ExportedTrajectory) -> bool:
                table.add(build_row(episode))
                return True

            return add
        case "atif":

            def write(episode: ExportedTrajectory) -> bool:
                document = atif_of(episode, images)
                if document is not None:
                    write_json(
                        folder / f"{episode.trajectory:06d}.json", replace_surrogates(document)
                    )
                return document is not None

            return write

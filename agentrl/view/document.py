"""One HTML file with a run in it: tables first, then stories in compressed chunks."""

import gzip
import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import isfinite
from typing import Any, cast

from agentrl.view.group_choice import StepRange, choose_groups
from agentrl.view.index import GroupRow, columns
from agentrl.view.run_files import (
    FileFaults,
    MetricLine,
    read_metric_lines,
    read_scores,
    read_sessions,
    read_summary,
)
from agentrl.view.run_reader import RunReader
from agentrl.view.shell import begin_script, build_shell

CHUNK_BYTES = 2**20
"""Of JSON, about: what one click decompresses."""
MAX_BYTES = 96 * 2**20
"""Of the stories of a page; then some are left out, and the page says how many."""
LIMIT = 100_000
"""Trajectories of a page, unless it is asked for more."""


@dataclass(slots=True)
class PageChunks:
    """Stories, packed. A chunk is base64 of gzip of a JSON list.

    When there is no more room, every other chunk goes, and from then on every other one is taken:
    those that stay lie at even distances.
    """

    limit_bytes: int = MAX_BYTES
    packed: dict[int, str] = field(default_factory=dict[int, str])
    """Chunks by their number."""
    places: dict[int, int] = field(default_factory=dict[int, int])
    """The chunk of each group."""
    left_out: int = 0
    """Groups whose story had no room."""
    _open: dict[int, str] = field(default_factory=dict[int, str])
    _open_bytes: int = 0
    _count: int = 0
    _stride: int = 1
    """One chunk in so many has room."""

    def add(self, group: int, story: dict[str, Any]) -> None:
        """Take a story, if there is room."""
        self._open[group] = dump(story)
        self._open_bytes += len(self._open[group])
        if self._open_bytes >= CHUNK_BYTES:
            self.close()

    def close(self) -> None:
        """Pack what is open. Idempotent."""
        if not self._open:
            return
        if self._count % self._stride == 0:
            self.packed[self._count] = pack(f"[{','.join(self._open.values())}]")
            self.places |= dict.fromkeys(self._open, self._count)
        else:
            self.left_out += len(self._open)
        self._count += 1
        self._open, self._open_bytes = {}, 0
        while len(self.packed) > 1 and sum(map(len, self.packed.values())) > self.limit_bytes:
            self._thin()

    def _thin(self) -> None:
        self._stride *= 2
        self.packed = {at: one for at, one in self.packed.items() if at % self._stride == 0}
        places = {group: at for group, at in self.places.items() if at in self.packed}
        self.left_out += len(self.places) - len(places)
        self.places = places


def page(
    sources: Sequence[RunReader],
    *,
    steps: StepRange,
    limit: int = LIMIT,
    max_bytes: int = MAX_BYTES,
    say: Callable[[str], None] | None = None,
) -> Iterator[str]:
    """Yield the parts of a page of one run or two, in order.

    It opens from disk and asks nobody for anything. Runs share the room that stories have. `say`
    hears of each invalid value in a run's files; the page lists them, too.
    """
    names = name_runs(sources)
    stories: list[str] = []
    parts: list[str] = []
    for number, source in enumerate(sources):
        prefix = f"{number}-" if number else ""
        groups, left_out = choose_groups(source.facts(), steps=steps, limit=limit)
        rows: list[GroupRow] = []
        chunks = PageChunks(limit_bytes=max_bytes // len(sources))
        faults = FileFaults()
        for group_page in source.read_pages(groups, decisions=source.read_decisions(faults)):
            rows.append(group_page.row)
            if group_page.story is not None:
                chunks.add(group_page.row.id, group_page.story)
        chunks.close()
        if chunks.left_out:
            left_out.append(
                f"the conversations and tokens of {chunks.left_out:,} of {len(rows):,} groups, for "
                f"which {chunks.limit_bytes / 2**20:,.0f} MiB had no room; groups at even "
                "distances have theirs (--step, --serve)"
            )
        index = build_index(
            source, rows, chunks.places, left_out, name=names[number], faults=faults
        )
        if say is not None:
            for line in index["run"]["faults"]:
                say(f"{source.folder}/{line}")
        parts.append(_script(f"{prefix}index", pack(dump(index))))
        stories += [_script(f"{prefix}chunk-{at}", one) for at, one in chunks.packed.items()]
    head, tail = build_shell(" and ".join(names), runs=len(sources), is_served=False)
    yield head
    yield from parts
    # It draws now, before the stories have been read.
    yield begin_script(len(sources), is_served=False)
    yield from stories
    yield tail


def name_runs(sources: Sequence[RunReader]) -> list[str]:
    """Return the names of runs, without secrets; those of one name with what their paths differ in.

    The folder says it, or the folder above where that one is the same, and so on.
    """
    folders = [source.folder.resolve() for source in sources]
    configs: list[dict[str, Any]] = [source.config.get("run") or {} for source in sources]
    names = [
        str(config.get("name") or folder.name)
        for config, folder in zip(configs, folders, strict=True)
    ]
    if len(set(names)) < len(names) and len(set(folders)) == len(folders):
        depth = next(n for n in count(1) if len({f.parts[-n:] for f in folders}) == len(folders))
        tails = ["/".join(folder.parts[-depth:]) for folder in folders]
        names = [f"{name} ({tail})" for name, tail in zip(names, tails, strict=True)]
    return [source.redaction.text(name) for source, name in zip(sources, names, strict=True)]


def build_index(
    source: RunReader,
    rows: Sequence[GroupRow],
    places: dict[int, int],
    left_out: Sequence[str],
    *,
    name: str,
    faults: FileFaults,
) -> dict[str, Any]:
    """Return everything but the stories; `faults` holds those of the files read for stories."""
    run: dict[str, Any] = source.config.get("run") or {}
    hide, folder = source.redaction, source.folder
    metrics = _metrics(read_metric_lines(folder, faults))
    sessions = hide.value(read_sessions(folder, faults))
    summary = read_summary(folder, faults)
    evaluation = hide.value(read_scores(folder, faults))
    return {
        "run": {
            "name": name,
            "env": hide.text(str((source.config.get("env") or {}).get("id", ""))),
            "steps": run.get("steps"),
            "config": hide.text(source.config_text),
            "settings": hide.value(dict(_flatten(source.config))),
            "sessions": sessions,
            "summary": summary,
            "evaluation": evaluation,
            "faults": faults.lines(hide.text),
            "readAt": round(time.time()),
            "openings": source.openings,
            "hasTokenizer": source.page_builder.vocabulary.is_known,
        },
        "leftOut": list(left_out),
        "metrics": metrics,
        **columns(rows, places),
    }


def dump(value: Any) -> str:
    """Return JSON without a space too many and without half a surrogate pair.

    A number that is not finite becomes null: an edited file of a run may hold one.
    """
    encode = partial(json.dumps, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    try:
        text = encode(value)
    except ValueError:
        text = encode(_drop_infinite(value))
    # A policy can write half a pair, which is no letter and has no place in UTF-8.
    return (
        text
        if text.isascii()
        else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )


def pack(text: str) -> str:
    """Return text as base64 of gzip, which holds no `<` and so cannot end a script."""
    # Without a time, so that the same run gives the same page.
    return b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def _drop_infinite(value: Any) -> Any:
    match value:
        case float():
            return value if isfinite(value) else None
        case dict():
            items = cast("dict[Any, Any]", value).items()
            return {name: _drop_infinite(item) for name, item in items}
        case list() | tuple():
            return [_drop_infinite(item) for item in cast("Sequence[Any]", value)]
        case _:
            return value


def _metrics(lines: Sequence[MetricLine]) -> dict[str, list[Any]]:
    names = {name: None for line in lines for name in line}
    return {name: [line.get(name) for line in lines] for name in names}


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings of a config with their dotted keys, values as JSON."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _flatten(cast("dict[str, Any]", value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value, ensure_ascii=False, default=str)


def _script(name: str, text: str) -> str:
    return f'<script type="text/plain" id="agentrl-{name}">{text}</script>\n'

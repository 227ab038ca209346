"""One HTML file with a run in it: tables first, then stories in compressed chunks."""

import gzip
import json
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib import resources
from typing import Any, cast

from agentrl.evaluation.reports import REPORT
from agentrl.view.group_choice import StepRange, choose_groups
from agentrl.view.index import GroupRow, columns
from agentrl.view.run_reader import RunReader

CHUNK_BYTES = 2**20
"""Of JSON, about: what one click decompresses."""
MAX_BYTES = 96 * 2**20
"""Of a page; then stories are left out, and the page says which."""
LIMIT = 4_000
"""Trajectories of a page, unless it is asked for more."""

_DATA = "<!--agentrl:data-->"
TITLE = "<!--agentrl:title-->"
"""In the built page: where its title goes."""


@dataclass(slots=True)
class PageChunks:
    """Stories, packed. A chunk is base64 of gzip of a JSON list."""

    limit_bytes: int = MAX_BYTES
    packed: list[str] = field(default_factory=list[str])
    places: dict[int, int] = field(default_factory=dict[int, int])
    """The chunk of each group."""
    left_out: int = 0
    """Groups whose story had no room."""
    size_bytes: int = 0
    _open: list[str] = field(default_factory=list[str])
    _open_bytes: int = 0

    def add(self, group: int, story: dict[str, Any]) -> None:
        """Take a story, unless there is no room."""
        if self.size_bytes >= self.limit_bytes:
            self.left_out += 1
            return
        text = dump(story)
        self.places[group] = len(self.packed)
        self._open.append(text)
        self._open_bytes += len(text)
        if self._open_bytes >= CHUNK_BYTES:
            self.close()

    def close(self) -> None:
        """Pack what is open. Idempotent."""
        if self._open:
            self.packed.append(pack(f"[{','.join(self._open)}]"))
            self.size_bytes += len(self.packed[-1])
            self._open, self._open_bytes = [], 0


def page(source: RunReader, *, steps: StepRange, limit: int = LIMIT) -> Iterator[str]:
    """Yield the parts of a page, in order; it opens from disk and asks nobody for anything."""
    groups, left_out = choose_groups(source.facts(), steps=steps, limit=limit)
    rows: list[GroupRow] = []
    chunks = PageChunks()
    for group_page in source.read_pages(groups):
        rows.append(group_page.row)
        if group_page.story is not None:
            chunks.add(group_page.row.id, group_page.story)
    chunks.close()
    if chunks.left_out:
        left_out.append(
            f"the trajectories of {chunks.left_out:,} groups, for which there was no room (--step)"
        )
    head, tail = template()
    index = build_index(source, rows, chunks.places, left_out)
    yield head.replace(TITLE, escape(f"{index['run']['name']} - agentrl"))
    yield _script("index", pack(dump(index)))
    # It draws now, before the stories have been read.
    yield "<script>agentrlBegin()</script>\n"
    for number, chunk in enumerate(chunks.packed):
        yield _script(f"chunk-{number}", chunk)
    yield tail


def build_index(
    source: RunReader,
    rows: Sequence[GroupRow],
    places: dict[int, int],
    left_out: Sequence[str],
) -> dict[str, Any]:
    """Return everything but the stories."""
    run: dict[str, Any] = source.config.get("run") or {}
    hide = source.redaction
    return {
        "run": {
            "name": hide.text(str(run.get("name") or source.folder.resolve().name)),
            "env": hide.text(str((source.config.get("env") or {}).get("id", ""))),
            "steps": run.get("steps"),
            "config": hide.text(source.config_text),
            "sessions": source.json("environment.json"),
            "summary": source.json("summary.json"),
            "evaluation": _evaluation(source.json(REPORT)),
            "readAt": round(time.time()),
            "hasTokenizer": source.page_builder.vocabulary.is_known,
        },
        "leftOut": list(left_out),
        "metrics": _metrics(source),
        **columns(rows, places),
    }


def dump(value: Any) -> str:
    """Return JSON without a space too many, and without NaN."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def pack(text: str) -> str:
    """Return text as base64 of gzip, which holds no `<` and so cannot end a script."""
    # Without a time, so that the same run gives the same page.
    data = gzip.compress(text.encode("utf-8", "replace"), compresslevel=6, mtime=0)
    return b64encode(data).decode()


@cache
def template() -> tuple[str, str]:
    """Return the built page before and after the place of the data."""
    file = resources.files("agentrl.view") / "page" / "viewer.html"
    head, mark, tail = file.read_text(encoding="utf-8").partition(_DATA)
    assert mark, "the built page has no place for data"
    return head, tail


def _evaluation(report: Any) -> dict[str, Any] | None:
    if not isinstance(report, dict):
        return None
    summary = cast("dict[str, Any]", report)

    def rates(scores: Mapping[str, Any]) -> dict[str, Any]:
        return {name: scores[name] for name in ("pass@1", "reward") if name in scores}

    tags: Mapping[str, Any] = summary.get("tags") or {}
    return {
        "confidence": summary.get("confidence"),
        "overall": rates(summary),
        "families": {tag: rates(scores) for tag, scores in tags.items()},
    }


def _metrics(source: RunReader) -> dict[str, list[Any]]:
    lines = source.metrics()
    names = {name: None for line in lines for name in line}
    return {name: [line.get(name) for line in lines] for name in names}


def _script(name: str, text: str) -> str:
    return f'<script type="text/plain" id="agentrl-{name}">{text}</script>\n'

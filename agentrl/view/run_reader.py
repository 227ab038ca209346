"""Content of a run folder for display, of a run that has ended or goes on."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Self

from agentrl.config.document import read
from agentrl.errors import ConfigError
from agentrl.metrics.writer import FILE as METRICS
from agentrl.metrics.writer import read_metrics
from agentrl.store.errors import StoreError
from agentrl.store.reader import GroupIndexRow, StoreReader
from agentrl.store.token_credit import read_credit
from agentrl.view.group_page import GroupPageBuilder, read_decisions
from agentrl.view.index import GroupRow, build_bare_row, build_row
from agentrl.view.redaction import SecretRedaction
from agentrl.view.token_texts import find_vocabulary

PRUNED = "its tokens were deleted; keep them with store.keep=all"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPage:
    """One group: its row, and its story where there is one."""

    row: GroupRow
    story: dict[str, Any] | None
    has_story: bool
    """Its tokens are there, whether a story was asked for or not."""


class RunReader:
    """A run folder, read-only. Use it in `with`. Raises `ConfigError` where there is no run."""

    def __init__(self, folder: Path, *, environ: Mapping[str, str] = os.environ) -> None:
        self.folder = folder
        if not (folder / "config.yaml").is_file():
            raise ConfigError(
                f"{folder} is not a run folder: it has no config.yaml; name a folder created by "
                "`agentrl train`, such as runs/quickstart"
            )
        self.config = read(folder / "config.yaml").values
        self.config_text = (folder / "config.yaml").read_text(encoding="utf-8")
        patterns: Sequence[str] = (self.config.get("view") or {}).get("redact") or ()
        self.redaction = SecretRedaction(environ, patterns)
        has_store = (folder / "store" / "ledger.sqlite").is_file()
        self.store = StoreReader(folder / "store") if has_store else None
        self._credit = lru_cache(maxsize=4)(partial(read_credit, folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.store is not None:
            self.store.close()

    @cached_property
    def page_builder(self) -> GroupPageBuilder:
        """Converter of this run's groups to JSON."""
        policy: Any = (self.config.get("policy") or {}).get("path")
        vocabulary = find_vocabulary(self.folder, policy)
        return GroupPageBuilder(vocabulary=vocabulary, redaction=self.redaction)

    def facts(self) -> list[GroupIndexRow]:
        """Return all groups, oldest first."""
        return [] if self.store is None else self.store.facts()

    def read_pages(
        self, groups: Sequence[GroupIndexRow], *, stories: bool = True
    ) -> Iterator[GroupPage]:
        """Yield the groups in order, each with its row; with its story if its tokens are there."""
        assert self.store is not None or not groups
        decisions = read_decisions(self.folder) if stories else {}
        for facts in groups:
            yield self._read_page(facts, decisions, stories=stories)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of `metrics.jsonl`; none before the first step."""
        return read_metrics(self.folder) if (self.folder / METRICS).exists() else []

    def json(self, name: str) -> Any:
        """Return a JSON file of the folder without secrets, or None if it is not there or whole."""
        try:
            text = (self.folder / name).read_text(encoding="utf-8")
            return self.redaction.value(json.loads(text))
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def _read_page(
        self, facts: GroupIndexRow, decisions: Mapping[int, list[dict[str, Any]]], *, stories: bool
    ) -> GroupPage:
        assert self.store is not None
        group, why = None, PRUNED
        if not facts.is_pruned:
            try:
                group = self.store.group(facts.id)
            except StoreError as error:
                why = str(error)
        if group is None:
            trajectories = self.store.trajectories(facts.id)
            row = build_bare_row(facts, trajectories, why, self.redaction)
            return GroupPage(row=row, story=None, has_story=False)
        credit = self._credit(facts.step) if facts.state == "trained" else {}
        row = build_row(facts, group, credit, self.redaction)
        story = None
        if stories:
            chosen = decisions.get(facts.id, ())
            story = self.page_builder.story(group, credit=credit, decisions=chosen)
        return GroupPage(row=row, story=story, has_story=True)

"""Content of a run folder for display, of a run that has ended or goes on."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from stat import S_ISREG
from typing import Any, Self, cast

from agentrl.config.document import read
from agentrl.errors import ConfigError
from agentrl.store.errors import StoreError
from agentrl.store.reader import GroupIndexRow, StoreReader
from agentrl.store.token_credit import TokenCredit, read_credit
from agentrl.view.group_page import Decisions, GroupPageBuilder, read_decisions
from agentrl.view.index import GroupRow, build_bare_row, build_row
from agentrl.view.redaction import SecretRedaction
from agentrl.view.run_files import FileFaults
from agentrl.view.token_texts import find_vocabulary

_SECTIONS = ("run", "env", "policy", "view")
"""Those of a config that are shown, or used here."""
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
        self._environ = environ
        self.openings = 0
        """Times that the folder's files have been opened: once more after each was replaced."""
        self.store: StoreReader | None = None
        self._identity: tuple[object, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        """Open the folder again if its config or its store is not the file that was opened.

        A run may open its store later than it is viewed, build its ledger again when it resumes,
        or be replaced by another one. Raises `ConfigError` where there is no run any more.
        """
        ledger = self.folder / "store" / "ledger.sqlite"
        identity = (_identify(self.folder / "config.yaml"), _identify(ledger))
        if identity[0] is None:
            raise ConfigError(
                f"{self.folder} is not a run folder: it has no config.yaml; name a folder created "
                "by `agentrl train`, such as runs/quickstart"
            )
        if identity == self._identity:
            if not self.page_builder.vocabulary.is_known:
                del self.page_builder  # the run may have written its tokenizer by now
            return
        self.close()
        self.config_text, self.config = _read_config(self.folder / "config.yaml")
        self.redaction = _build_redaction(self.folder / "config.yaml", self.config, self._environ)
        self.store = None if identity[1] is None else StoreReader(self.folder / "store")
        self._credit = lru_cache(maxsize=4)(partial(_read_credit, self.folder))
        self.__dict__.pop("page_builder", None)
        self._identity = identity
        self.openings += 1

    def close(self) -> None:
        """Close the store. Idempotent."""
        if self.store is not None:
            self.store.close()
        self.store, self._identity = None, ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

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
        self, groups: Sequence[GroupIndexRow], *, decisions: Decisions | None
    ) -> Iterator[GroupPage]:
        """Yield the groups in order, each with its row; with its story if its tokens are there.

        Without `decisions` no story is read.
        """
        assert self.store is not None or not groups
        for facts in groups:
            yield self._read_page(facts, decisions)

    def read_decisions(self, faults: FileFaults) -> Decisions:
        """Return the decisions about branches, by group; none without a log that can be read."""
        return read_decisions(self.folder, faults)

    def _read_page(self, facts: GroupIndexRow, decisions: Decisions | None) -> GroupPage:
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
        if decisions is not None:
            own_decisions = decisions.get(facts.id, ())
            story = self.page_builder.story(group, credit=credit, decisions=own_decisions)
        return GroupPage(row=row, story=story, has_story=True)


def _identify(file: Path) -> tuple[int, int] | None:
    """Return device and inode of a file, or None where there is none."""
    try:
        status = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (status.st_dev, status.st_ino) if S_ISREG(status.st_mode) else None


def _read_config(file: Path) -> tuple[str, dict[str, Any]]:
    """Return a config as text and by section. Raises `ConfigError` if it is not a run's."""
    config = read(file).values
    for name in _SECTIONS:
        section = config.get(name)
        if not isinstance(section, dict | None):
            raise ConfigError(
                f"{file} is not the config of a run: {name} is {section!r}, expected its settings"
            )
    steps, policy = (config.get("run") or {}).get("steps"), (config.get("policy") or {}).get("path")
    if steps is not None and type(steps) is not int:
        raise ConfigError(f"{file}: run.steps is {steps!r:.40}, expected a whole number")
    if not isinstance(policy, str | None):
        raise ConfigError(f"{file}: policy.path is {policy!r:.40}, expected a path or a name")
    return file.read_text(encoding="utf-8"), config


def _build_redaction(
    file: Path, config: Mapping[str, Any], environ: Mapping[str, str]
) -> SecretRedaction:
    """Return the redaction of a config; `ConfigError` for invalid patterns, which hide nothing."""
    patterns: Any = (config.get("view") or {}).get("redact") or []
    if not isinstance(patterns, list):
        raise ConfigError(
            f"{file}: view.redact is {patterns!r:.40}, expected a list of regular expressions"
        )
    try:
        return SecretRedaction(environ, cast("list[str]", patterns))
    except (re.error, TypeError) as error:
        raise ConfigError(
            f"{file}: view.redact is {patterns!r:.80}, expected regular expressions: {error}"
        ) from error


def _read_credit(folder: Path, step: int) -> dict[tuple[int, int], TokenCredit]:
    """Return a step's token credit; none where its file is not whole, as after a power failure, or
    cannot be read."""
    try:
        return read_credit(folder, step)
    except (ConfigError, OSError):
        return {}

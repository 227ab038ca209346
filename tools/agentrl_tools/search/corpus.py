"""A corpus: documents with names, from a program, a JSONL file or a folder of texts."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from agentrl.errors import ConfigError

TEXT_SUFFIXES = (".md", ".rst", ".txt")


@dataclass(frozen=True, slots=True)
class CorpusDocument:
    """One text."""

    id: str
    """Identifier that opens it; unique in its corpus."""
    text: str
    title: str = ""
    """Counts as more than a word of the text; the id where it is left empty."""

    @property
    def name(self) -> str:
        """Return the title, or the id of a document without one."""
        return self.title or self.id


class SearchCorpus:
    """Documents by id, in a fixed order. Immutable.

    Raises `ConfigError` for no documents, two of one id, and one without an id or a text.
    """

    def __init__(self, documents: Sequence[CorpusDocument], *, source: str = "this corpus") -> None:
        self.documents = tuple(documents)
        self.source = source
        if not self.documents:
            raise ConfigError(f"{source} has no documents; a search needs at least one")
        self._by_id: dict[str, CorpusDocument] = {}
        for place, document in enumerate(self.documents):
            if not document.id.strip() or not document.text.strip():
                raise ConfigError(
                    f"document {place + 1} of {source} has id={document.id!r} and "
                    f"{len(document.text)} characters; every document needs an id and a text"
                )
            if self._by_id.setdefault(document.id, document) is not document:
                raise ConfigError(
                    f"two documents of {source} have the id {document.id!r}, but ids must be "
                    "unique because documents are opened by id; rename one"
                )
        titled = {document.name.casefold(): document for document in self.documents}
        ids = {name.casefold(): document for name, document in self._by_id.items()}
        self._by_name = {**titled, **ids}

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of all documents in order, in hexadecimal."""
        parts = [[d.id, d.title, d.text] for d in self.documents]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def get(self, name: str) -> CorpusDocument | None:
        """Return the document of an id, or else of an id or title but for its case."""
        return self._by_id.get(name) or self._by_name.get(name.strip().casefold())


def read_corpus(path: str | Path) -> SearchCorpus:
    """Return the corpus of a JSONL file or of a folder.

    Every line of a file is an object with `id` and `text`, and `title` where there is one. In a
    folder every file ending in .md, .rst or .txt is a document; its path below the folder is its
    id. Raises `ConfigError` that names the line or the file that cannot be used.
    """
    path = Path(path)
    if path.is_dir():
        return SearchCorpus(list(_read_folder(path)), source=f"the folder {path}")
    if not path.is_file():
        raise ConfigError(f"there is no corpus {path}; name a JSONL file or a folder of texts")
    return SearchCorpus(list(_read_documents(path)), source=f"the file {path}")


def read_jsonl(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield where each object of a JSONL file stands, and the object; empty lines are none."""
    # Not `splitlines`: JSON leaves U+2028 and others that it ends lines at as they are.
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        where = f"line {number} of {path}"
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{where} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise ConfigError(f"{where} is not a JSON object; write one object per line")
        yield where, cast("dict[str, Any]", record)


def _read_documents(path: Path) -> Iterator[CorpusDocument]:
    for where, record in read_jsonl(path):
        fields = {name: record.get(name, "") for name in ("id", "text", "title")}
        fields["id"] = str(fields["id"])
        wrong = [name for name, value in fields.items() if not isinstance(value, str)]
        if wrong:
            raise ConfigError(f"{where}: {wrong[0]} is {fields[wrong[0]]!r}; it must be text")
        yield CorpusDocument(**fields)


def _read_folder(folder: Path) -> Iterator[CorpusDocument]:
    for path in sorted(folder.rglob("*")):
        is_text = path.is_file() and path.suffix in TEXT_SUFFIXES
        if is_text and (text := _read_text(path)).strip():
            yield CorpusDocument(id=path.relative_to(folder).as_posix(), text=text)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error

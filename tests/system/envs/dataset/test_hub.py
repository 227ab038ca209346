"""Data sets that are no file are read by `datasets`, here from a folder as the hub has them.

Mutants seen caught: a split that is not asked for.
"""

import json
from pathlib import Path

import pytest

from tests.support.foreign_packages import read_with_datasets

pytestmark = [pytest.mark.datasets, pytest.mark.pyarrow]


def test_a_folder_with_splits_is_read_by_its_package(tmp_path: Path) -> None:
    folder = tmp_path / "sums"
    folder.mkdir()
    for name, numbers in (("train", range(5, 9)), ("test", range(3))):
        rows = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in numbers]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)
    settings = [{"split": "test"}, {"split": "train[:2]"}, {}, {"split": "dev"}, {"subset": "x"}]
    test, part, several, no_split, no_subset, answers = read_with_datasets(folder, settings)
    place = f"row 1 of {folder}, split test"
    assert test == [3, place, {"question": "0 + 0?", "answer": "0"}]
    assert part[0] == 2
    assert "has the splits train, test; set split: NAME, or split: {train" in several
    assert "cannot be loaded" in no_split
    assert "check its name, `subset` and `split`" in no_subset
    assert answers == {"train": ["10", "12", "14", "16"], "heldout": ["0", "2", "4"]}

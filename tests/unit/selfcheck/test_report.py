"""Reports of a self-check: JSON, and what must not be in it.

Mutants seen caught: a path keeps its folders; the first secret only; a short word is taken for a
secret; a figure that is no number breaks the JSON; a result leaves its name among those to come.
"""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.runtime.imports import import_callable
from agentrl.selfcheck.catalogue import CHECKS, choose_checks
from agentrl.selfcheck.report import (
    MOST_TEXT,
    CheckResult,
    SelfCheckReport,
    find_private_words,
    plain_figure,
    read_message,
    redact_figure,
    redact_text,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ann/.venv/lib/torch/nn.py: no kernel", ".../nn.py: no kernel"),
        ("cannot read '/data/models/x', or /etc/y", "cannot read '.../x', or .../y"),
        ("~/work/run.py line 3", ".../run.py line 3"),
        (r"C:\Users\ann\x.py broke", ".../x.py broke"),
        ("https://ann:pass@hub.example/x failed", "https://***@hub.example/x failed"),
        ("token hf_AbCdEfGhIjKl is bad, sk-abcdefgh1234 too", "token *** is bad, *** too"),
        ("ann on box7: annual 3/4 of 10 s", "*** on ***: annual 3/4 of 10 s"),
        ("/a/lib:/home/ann/lib64 error:/srv/x", ".../lib:.../lib64 error:.../x"),
        ("C:/Users/ann/x.py", "C:.../x.py"),
        ("http://host:8000/v1/models/x", "http://host:8000/v1/models/x"),
        ("nothing here", "nothing here"),
        ("", ""),
    ],
)
def test_a_text_keeps_no_folder_no_secret_and_no_name(text: str, expected: str) -> None:
    assert redact_text(text, ("box7", "ann")) == expected


@given(
    folders=st.lists(st.from_regex(r"[A-Za-z][\w-]{3,9}", fullmatch=True), min_size=2, max_size=5),
    around=st.sampled_from(["{}", 'File "{}", line 3', "({})", "a={} b", "[{}]"]),
)
def test_no_folder_of_any_path_is_left(folders: list[str], around: str) -> None:
    found = redact_text(around.format("/" + "/".join([*folders, "last.py"])))
    assert "last.py" in found
    assert not [name for name in folders if f"{name}/" in found]


def test_values_of_secret_variables_are_private_words() -> None:
    environment = {
        "WANDB_API_KEY": "0123456789",
        "MY_PASSWORD": "open sesame",
        "TOKENIZERS_PARALLELISM": "false",
        "HOME": "/home/somebody",
        "AWS_SECRET": "0123456789abc",
    }
    words = find_private_words(environment, ("ann", "", "x"))
    assert words == ("0123456789abc", "open sesame", "0123456789", "ann")
    assert redact_text("key 0123456789abc, 0123456789", words) == "key ***, ***"


def test_a_long_text_is_cut() -> None:
    found = redact_text("x" * 10 * MOST_TEXT)
    assert len(found) == MOST_TEXT
    assert found.endswith("x ...")


@pytest.mark.parametrize("value", [1, 2.5, True, None])
def test_a_figure_that_is_no_text_stays(value: Any) -> None:
    assert redact_figure(value, ("1",)) is value


def test_a_report_is_json_whatever_was_measured() -> None:
    result = CheckResult(
        name="layouts",
        status="failed",
        reason="no number",
        seconds=1.23456,
        cpu_seconds=2.34567,
        output="Traceback",
        figures={"a": math.nan, "b": -math.inf, "c": 2.0, "d": None, "e": "text"},
    )
    report = SelfCheckReport(device="cpu", agentrl="1", no_gpu="none", waiting=("layouts", "head"))
    plain = report.add(result).to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == {
        "format": 1,
        "agentrl": "1",
        "device": "cpu",
        "no_gpu": "none",
        "import_seconds": 0.0,
        "complete": False,
        "waiting": ["head"],
        "checks": [
            {
                "name": "layouts",
                "status": "failed",
                "reason": "no number",
                "seconds": 1.23,
                "cpu_seconds": 2.35,
                "output": "Traceback",
                "figures": {"a": "nan", "b": "-inf", "c": 2.0, "d": None, "e": "text"},
            }
        ],
    }
    whole = report.add(result).add(CheckResult(name="head", status="passed"))
    assert whole.to_json()["complete"] is True
    assert [each.name for each in whole.failed] == ["layouts"]
    assert [whole.count(status) for status in ("passed", "failed", "skipped")] == [1, 1, 0]


def test_finite_figures_are_as_they_were() -> None:
    assert [plain_figure(x) for x in (0.5, 3, "nan", False)] == [0.5, 3, "nan", False]


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[1]", b'{"figure": "a", "val', b"\xff\xfe", b"[" * 100_000, b"3"]
)
def test_a_line_that_was_cut_off_says_nothing(line: bytes) -> None:
    assert read_message(line) == {}


def test_a_message_is_read() -> None:
    assert read_message(b'{"figure": "a", "value": 2}') == {"figure": "a", "value": 2}


def test_checks_are_chosen_by_name_in_their_order() -> None:
    assert choose_checks() == CHECKS
    assert [check.name for check in choose_checks(("head", "device"))] == ["device", "head"]
    with pytest.raises(ConfigError, match=r"no check 'x'.*one of device, gap, weights-memory"):
        choose_checks(("device", "x"))


def test_every_check_has_a_name_of_its_own_and_a_function() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert import_callable(check.function).__doc__
        assert check.limit_s > 0

"""Results of a self-check as values, and as JSON that names neither its user nor its machine."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

FORMAT = 1
"""Format version of the JSON."""
CheckStatus = Literal["passed", "failed", "skipped"]
FigureValue = float | int | str | bool | None
MOST_TEXT = 2_000
"""Characters of a reason or of a figure that are kept."""
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
"""Names of environment variables whose values are nobody's business."""
_SECRET_WORD = re.compile(r"\b(?:hf_|sk-|ghp_|glpat-|xox[abp]-)[\w-]{8,}")
_ADDRESS = re.compile(r"(?<=://)[^/\s@]+@")
_PATH = re.compile(
    r"(?<![\w./>])~?(?:/[^/\s:'\",;()\[\]{}]+)+/(?=[^/\s])|[A-Za-z]:\\(?:[^\\\s]+\\)+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Verdict of one check."""

    name: str
    status: CheckStatus
    reason: str = ""
    """Reason of a failure or of a skip; empty for a check that passed."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Seconds of processors, of its process and the children that it has waited for."""
    output: str = ""
    """End of what the process of a failed check has written."""
    figures: Mapping[str, FigureValue] = field(default_factory=dict[str, FigureValue])


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCheckReport:
    """Results of a self-check, which may not be over."""

    device: str
    agentrl: str
    no_gpu: str = ""
    """Reason why `auto` has found no GPU; empty where it has, or was not asked."""
    import_seconds: float = 0.0
    """Seconds in which what the checks need was imported, before the first of them."""
    results: tuple[CheckResult, ...] = ()
    waiting: tuple[str, ...] = ()
    """Names of the checks that have not ended: of a report that was cut short, those it lacks."""

    def add(self, result: CheckResult) -> "SelfCheckReport":
        """Return the report with one more result."""
        return replace(
            self,
            results=(*self.results, result),
            waiting=tuple(name for name in self.waiting if name != result.name),
        )

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """Return the results that failed."""
        return tuple(result for result in self.results if result.status == "failed")

    def count(self, status: CheckStatus) -> int:
        """Return the number of results with a status."""
        return sum(result.status == status for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return {
            "format": FORMAT,
            "agentrl": self.agentrl,
            "device": self.device,
            "no_gpu": self.no_gpu,
            "import_seconds": round(self.import_seconds, 2),
            "complete": not self.waiting,
            "waiting": list(self.waiting),
            "checks": [
                {
                    "name": result.name,
                    "status": result.status,
                    "reason": result.reason,
                    "seconds": round(result.seconds, 2),
                    "cpu_seconds": round(result.cpu_seconds, 2),
                    "output": result.output,
                    "figures": {k: plain_figure(v) for k, v in result.figures.items()},
                }
                for result in self.results
            ],
        }


def plain_figure(value: FigureValue) -> FigureValue:
    """Return a figure as JSON can have it: a float that is not finite becomes its name."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_message(line: bytes) -> Mapping[str, Any]:
    """Return a message of a check's process; empty for a line that was cut off by its end."""
    try:
        message: Any = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def find_private_words(environment: Mapping[str, str], names: Iterable[str]) -> tuple[str, ...]:
    """Return the words that a report must not have, the longest first: `names` of user and host,
    and values of the environment variables whose names speak of a secret."""
    words = {name for name in names if len(name) > 2}
    words |= {v for k, v in environment.items() if SECRET_NAME.search(k) and len(v) > 5}
    return tuple(sorted(words, key=lambda word: (-len(word), word)))


def redact_text(text: str, private_words: Sequence[str] = ()) -> str:
    """Return a text without folders of paths, secrets and `private_words`, cut to `MOST_TEXT`.

    Of a path its last part is left: `/home/ann/.venv/lib/torch/nn.py` becomes `.../nn.py`.
    """
    for word in private_words:
        text = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", "***", text)
    text = _SECRET_WORD.sub("***", _ADDRESS.sub("***@", text))
    text = _PATH.sub(".../", text)
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 4] + " ..."


def redact_tail(text: str, private_words: Sequence[str] = ()) -> str:
    """Return the end of a text, redacted line by line, at most `MOST_TEXT` long."""
    lines = [redact_text(line, private_words) for line in text.splitlines()]
    return "\n".join(lines)[-MOST_TEXT:]


def redact_figure(value: FigureValue, private_words: Sequence[str] = ()) -> FigureValue:
    """Return a figure as `redact_text` does a text."""
    return redact_text(value, private_words) if isinstance(value, str) else value

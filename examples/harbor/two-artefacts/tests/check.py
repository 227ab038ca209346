"""Prints the rewards: one for each artefact, and `reward` for both."""

import json
from pathlib import Path

TOTALS = ["region,revenue", "east,32", "north,44", "south,55"]


def read(path):
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def parse(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


totals = read("/app/totals.csv").split() == TOTALS
summary = parse(read("/app/summary.json")) == {"regions": 3, "units": 19}
print(
    json.dumps({"totals": totals + 0, "summary": summary + 0, "reward": (totals and summary) + 0})
)

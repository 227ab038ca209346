"""What sandbox sessions cost: time, processor, memory, beside tools that start a process per call.

| group | rows |
| --- | --- |
| `latency` | start, open (cold, made ahead), cell, command, fork, close: one session at a time |
| `cells` | cells per second in 1, 8, 32 and 64 sessions that are open already; processor per cell |
| `forks` | a fork by how much the interpreter holds, and the first cell in the copy |
| `floors` | cells, forks and sessions, relative to the least a machine takes for the like |
| `memory` | 1,000 live sessions, 100 forks; how many fit in 8 GiB |
| `backends` | pools, sessions, forks and cells in namespaces of ours, relative to bubblewrap's |
| `containers` | a container per session; the same rows for our own docker back-end |

`--only GROUP ...` chooses. A cell is `1 + 1`; the peers run `print(1 + 1)`. A process per call
isolates nothing and keeps no names; the peer with `-I -S` is the fastest there can be, the one
without has `site`, all installed packages and the whole environment, as GEM's and SkyRL-Gym's
Python tools have it. Nobody's admission holds anything back: limits on pressure are out of the way.
"""

from collections.abc import Callable, Mapping

from benchmarks.harness import Benchmark, parser
from benchmarks.sessions import backends, containers, floors, forks, latency, memory, rates

GROUPS: Mapping[str, Callable[[Benchmark], None]] = {
    "latency": latency.measure,
    "cells": rates.measure,
    "forks": forks.measure,
    "floors": floors.measure,
    "memory": memory.measure,
    "backends": backends.measure,
    "containers": containers.measure,
}


def main() -> None:
    """Measure, print and write."""
    arguments = parser(__doc__)
    arguments.add_argument("--only", nargs="+", choices=GROUPS, default=[*GROUPS], metavar="GROUP")
    chosen = arguments.parse_args()
    bench = Benchmark.from_arguments("sandbox", chosen)
    for group in chosen.only:
        bench.console.print(f"measuring {group}", highlight=False)
        GROUPS[group](bench)
    bench.finish()


if __name__ == "__main__":
    main()

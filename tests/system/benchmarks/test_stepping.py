"""A contender's peak memory is its own.

Mutants seen caught: `ru_maxrss`, which begins at the peak of the process that started it.
"""

import subprocess
import sys

import numpy as np

PROGRAM = "from benchmarks.beside_trl.stepping import read_peak_bytes; print(read_peak_bytes())"


def test_the_peak_of_a_program_is_not_that_of_who_started_it() -> None:
    held = np.ones(2**26)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert 2**22 < int(done.stdout) < held.nbytes / 2

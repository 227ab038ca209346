"""Memory of a device over a part of a check, and what `agentrl plan` says of it."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from agentrl.config.learn import LearnSection
from agentrl.learn.layouts import LAYOUTS
from agentrl.learn.sequence_layout import TokenSequence
from agentrl.plan.model_shape import shape_at
from agentrl.plan.run_plan import USABLE
from agentrl.plan.training import largest_pass, trace_training

OWN = Path("/proc/self")


def predict_peak_bytes(
    folder: Path, section: LearnSection, sequences: Sequence[TokenSequence]
) -> int:
    """Return the most bytes that training on these sequences takes, as `agentrl plan` counts."""
    layout = LAYOUTS[section.layout](section.micro_batch_tokens)
    cost = trace_training(shape_at(str(folder)).make, section, largest_pass(layout, sequences))
    return cost.peak_bytes


def choose_size(needs_bytes: Mapping[int, int], free_bytes: float) -> int | None:
    """Return the largest of some sizes, given with their needs, that there is room for; None where
    there is room for none. As in a plan, `USABLE` of the memory may be taken."""
    fitting = [size for size, needs in needs_bytes.items() if needs <= USABLE * free_bytes]
    return max(fitting, default=None)


class MemoryMeter:
    """Most memory of a device that tensors take from a moment on, beyond what is taken then.

    On a GPU it is that of torch's tensors; on a CPU, of the process, with what freed tensors leave
    behind in its allocator.
    """

    def __init__(self, device: str, own: Path = OWN) -> None:
        self._is_gpu = device != "cpu"
        self._own = own
        self._first_bytes = self._read_now()

    def restart(self) -> None:
        """Forget the most so far; what was taken at first stays."""
        if self._is_gpu:
            torch.cuda.reset_peak_memory_stats()
            return
        try:
            (self._own / "clear_refs").write_text("5")
        except OSError:  # some containers; the most then includes what came before
            return

    def read_peak_bytes(self) -> int | None:
        """Return the most since the last restart; None where the system does not say it."""
        now = torch.cuda.max_memory_allocated() if self._is_gpu else self._read_status("VmHWM")
        return None if now is None or self._first_bytes is None else now - self._first_bytes

    def _read_now(self) -> int | None:
        return torch.cuda.memory_allocated() if self._is_gpu else self._read_status("VmRSS")

    def _read_status(self, name: str) -> int | None:
        try:
            text = (self._own / "status").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None
        match = re.search(rf"{name}:\s+(\d+) kB", text)
        return match and int(match[1]) * 1024

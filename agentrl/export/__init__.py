"""A run's trajectories, for others to read: JSON lines, a Hugging Face dataset, ATIF.

See docs/export.md. `export` writes; `agentrl.export.row.read_jsonl` reads JSON lines back.
"""

from agentrl.export.export import ExportSummary, export

__all__ = ["ExportSummary", "export"]

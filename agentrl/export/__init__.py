"""Trajectories of a run for others: JSON lines, a Hugging Face dataset, ATIF (docs/export.md)."""

from agentrl.export.export import ExportSummary, export

__all__ = ["ExportSummary", "export"]

"""Forecast of a run from its config alone: memory, speed and schedule; no weights, no device."""

"""Lifecycle events of rollouts and groups."""

"""Branching of trajectories: pure rules, their log, and the driver that grows one task's tree."""

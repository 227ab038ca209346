"""Reuse of a task's last trajectories as drafts under newer weights, instead of sampling anew."""

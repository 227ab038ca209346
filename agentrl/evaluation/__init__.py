"""Evaluation of a policy on held-out tasks, with an interval around every estimate."""

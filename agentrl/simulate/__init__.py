"""Rollouts in virtual time: the real scheduler and episodes on a simulated engine and environment.

Nothing here waits: an event loop jumps its clock from one timer to the next, so hours of a cluster
take seconds, and the same input gives the same result.
"""

"""Spending more on a task at evaluation time: votes, verifiers, tournaments of notes, plans."""

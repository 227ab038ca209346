"""The ranks of a trainer that follow, as actors which Ray places.

`host.py` is what the actor does, and knows nothing of Ray; `ranks.py` the way to them from the
leading rank, which stays in the run's own process.
"""

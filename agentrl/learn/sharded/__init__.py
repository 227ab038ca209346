"""One trainer on several devices: weights, moments and averages in shards (FSDP2), passes split.

`balance.py` says who computes what, `mesh.py` is the process group seen from one rank, `shard.py`
what a sharded model is made of, `state.py` what of it goes into a checkpoint. `lead.py` is the
trainer that the run holds, `follow.py` what the other ranks do; `processes.py`, `torchrun.py` and
`actors.py` are three ways to have them.
"""

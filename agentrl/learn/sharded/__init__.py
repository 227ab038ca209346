"""One trainer on several devices: weights, moments and averages in shards (FSDP2), passes split.

`balance.py` divides the passes, `mesh.py` is the process group seen from one rank, `shard.py` and
`gather.py` cut a model up and put it together, `shards.py` is the checkpoint. `rank_zero.py` is the
trainer that the run holds, `rank_link.py` its commands to the other ranks, `packed_object.py` the
arrays that these bring along, `rank_spec.py` a rank as plain values; `processes.py`, `torchrun.py`
and `agentrl.cluster.trainer` start them.
"""

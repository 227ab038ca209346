"""Cgroups, host side: bounds on whole trees of processes, where this machine permits them.

    cgroups = CgroupRoot.find()                          # None where they are not permitted
    pool = cgroups.make("pool-1", pool_bounds(...))   # everything a supervisor ever starts
    group = pool.make("session-1", session_bounds(limits))
    group.add(host_pid(pidfd))                        # whatever it starts from now on stays inside
    group.oom_kills()                                 # why an interpreter died by SIGKILL
    group.remove()

`agentrl.runtime.cgroup_place` finds where, `values` derives what is written, `group` does it,
`room` reads what is left.
"""

from agentrl_sandbox.cgroup.group import CgroupRoot, ProcessCgroup, explain_no_cgroups, host_pid
from agentrl_sandbox.cgroup.room import available_bytes, processes_max
from agentrl_sandbox.cgroup.values import CgroupLimits, pool_bounds, session_bounds

__all__ = [
    "CgroupLimits",
    "CgroupRoot",
    "ProcessCgroup",
    "available_bytes",
    "explain_no_cgroups",
    "host_pid",
    "pool_bounds",
    "processes_max",
    "session_bounds",
]

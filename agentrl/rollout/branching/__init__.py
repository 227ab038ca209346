"""Where a trajectory splits: pure rules, their log, and the edge that grows one task's tree."""

"""The acting half: environments and the policy engine in turn. Never imports torch."""

"""Every agentrl environment as a synchronous `gymnasium.Env`."""
def show_to_gymnasium(id: str) -> None:
    """Put a registered environment into Gymnasium's registry."""

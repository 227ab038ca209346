"""Ways to lay out sequences for a forward pass; the contract is `learn/tokens.py`."""

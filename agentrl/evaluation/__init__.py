"""How good a policy is: held-out evaluation, and figures that carry their uncertainty."""

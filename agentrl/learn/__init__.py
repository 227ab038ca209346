"""The learning half: trees of trajectories become new weights. The only half that imports torch."""

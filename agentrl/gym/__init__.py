"""The two bridges: our environments as Gymnasium's, and Gymnasium's text environments as ours."""

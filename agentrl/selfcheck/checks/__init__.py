"""The checks of a self-check, by what they try; all of them import torch."""

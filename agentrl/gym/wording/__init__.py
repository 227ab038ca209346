"""Gymnasium environments in words: observations as texts and images, words as actions.

`agentrl_envs.adapters.gymnasium` imports this package in the interpreters of other virtual
environments too, so it needs Python 3.10, gymnasium and numpy, and nothing else of agentrl.
"""

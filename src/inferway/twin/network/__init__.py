"""The event twin of a network: requests, forwarding, offers and moving models, event by event.

`events` runs a deployment, `engine` is its clock, `place` one task at one node, `exchange` what
nodes tell each other, `mover` what a node loads and unloads, `ledger` what a run adds up.
"""

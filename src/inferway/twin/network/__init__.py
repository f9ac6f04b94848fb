"""The event twin of a network: requests, forwarding, offers and moving models, event by event.

`events` runs a deployment, `engine` is its clock, `terrain` its nodes, `pools` their fleets,
`exchange` what nodes tell each other, `mover` what a node loads and unloads, `ledger` what a run
adds up, `result` what comes of it.
"""

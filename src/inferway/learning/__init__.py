"""Training schedulers on the twin's engine: sites under slotted control, PPO, the policies' export.

Importing this package imports neither PyTorch nor Gymnasium; both come with the extra ``learn``.
"""

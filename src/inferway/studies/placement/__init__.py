"""Placement of models: [SiSalem23] and [SiSalem21], and what is ours beyond them."""

"""Papers 000 and 001, where models live, and what is ours beyond them."""

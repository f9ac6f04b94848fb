"""A node of the network: its neighbors, its slots, and what it keeps."""

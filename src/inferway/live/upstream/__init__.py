"""The ways from a node to its neighbors: connections, hop headers, and servers that forward."""

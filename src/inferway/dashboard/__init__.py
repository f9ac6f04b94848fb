"""A page that shows whether promises are kept: read from servers and nodes that run."""

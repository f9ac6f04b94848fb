"""Keys of those who may use a server, TLS, and the authority that vouches for nodes."""

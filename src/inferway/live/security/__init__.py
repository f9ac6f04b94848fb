"""Who may use a server: keys and TLS; how nodes prove who they are, and who vouches for them."""

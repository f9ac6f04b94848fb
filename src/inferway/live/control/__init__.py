"""What nodes say to each other beside requests: who may, over which session, and in what form."""

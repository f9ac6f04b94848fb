"""Messages between nodes beside requests: their senders, session and form."""

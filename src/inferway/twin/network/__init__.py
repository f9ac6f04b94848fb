"""The event twin of a network: requests, forwarding, offers and moving models, event by event."""

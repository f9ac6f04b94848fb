"""The checks, by what they ask of a server. Each file ends with its table."""

"""Paper 002: dispatch under an accuracy target (shared papers, 002_50fc0f7194b16398)."""

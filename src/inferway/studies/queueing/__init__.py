"""Dispatch under an accuracy target: [Anonymous]."""

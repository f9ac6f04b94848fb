"""What variants are worth, by labeled data and this machine: accuracy, time, memory, confidence."""

from inferway.profiling.data import DataError, LabeledData, read
from inferway.profiling.score import Score, ScoreError, score_of

__all__ = ["DataError", "LabeledData", "Score", "ScoreError", "read", "score_of"]

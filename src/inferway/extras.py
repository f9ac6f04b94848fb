"""Extras on top of the base, and how to install each."""

from __future__ import annotations

from typing import Final

# PyTorch's builds for processors, which pip prefers to those that bring gigabytes of CUDA.
_WITHOUT_CUDA: Final = " --extra-index-url https://download.pytorch.org/whl/cpu"


def installing(extra: str) -> str:
    """Say how an extra is installed; of one with PyTorch, how without CUDA."""
    command = f"pip install 'inferway[{extra}]'"
    return f"{command}{_WITHOUT_CUDA} (without CUDA)" if extra == "learn" else command

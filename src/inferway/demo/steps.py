"""How far a demo is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]


class Steps:
    """Turns the parts' own progress into one fraction of the whole.

    Parameters
    ----------
    progress
        Told what is being done and the part of all that is done, 0..1; None for nobody.
    total_s
        What all parts are expected to take, seconds.
    """

    def __init__(self, progress: Progress | None, total_s: float) -> None:
        self._progress = progress
        self._total_s = total_s
        self._before_s = 0.0
        self._step_s = 0.0
        self._doing = ""

    def begin(self, doing: str, expected_s: float) -> None:
        """Go on to the next part."""
        self._before_s += self._step_s
        self._step_s = expected_s
        self._doing = doing
        self(0, 0, 1)

    def expect(self, left_s: float) -> None:
        """Go by another guess of how long what is left takes, from the end of this part on."""
        self._total_s = self._before_s + self._step_s + left_s

    def tell(self, doing: str, part: float) -> None:
        """Tell what is being done, and which part of it is done, 0..1."""
        if self._progress is not None:
            done_s = self._before_s + self._step_s * part
            left_s = max(self._total_s - done_s, 0.0)
            self._progress(
                f"{doing}, {left_s:.0f} s left", min(done_s / max(self._total_s, 1e-9), 1.0)
            )

    def __call__(self, due: int, ended: int, planned: int) -> None:
        """Tell how far the part is: `ended` of `planned`."""
        count = f" ({ended} of {planned} requests)" if planned > 1 else ""
        self.tell(f"{self._doing}{count}", ended / max(planned, 1))

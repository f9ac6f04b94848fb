"""An echo as a class of a Python variant."""


class Echo:
    """Answers what it is given."""

    inputs = {"x": ("FP32", [-1, 64])}  # noqa: RUF012
    outputs = {"y": ("FP32", [-1, 64])}  # noqa: RUF012

    def predict(self, inputs):
        """Answer."""
        return {"y": inputs["x"]}

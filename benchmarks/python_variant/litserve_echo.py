"""The same echo served by LitServe: ``litserve_echo.py PORT QUEUE``, ``fast`` or ``plain``.

Its methods have no annotations: LitServe takes those of a request for a query's fields.
"""

import sys

import litserve
import numpy as np


class Echo(litserve.LitAPI):
    """Answers what it is given."""

    def setup(self, device):
        """Have nothing to load."""

    def decode_request(self, request):
        """Take the array."""
        return np.asarray(request["x"], np.float32)

    def predict(self, x):
        """Answer."""
        return x

    def encode_response(self, output):
        """Give the array."""
        return {"y": output.tolist()}


if __name__ == "__main__":
    server = litserve.LitServer(
        Echo(), accelerator="cpu", workers_per_device=1, fast_queue=sys.argv[2] == "fast"
    )
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), log_level="error", generate_client_file=False
    )

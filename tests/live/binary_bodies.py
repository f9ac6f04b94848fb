"""For schemathesis: bodies of the binary tensor extension that the task `digits` takes."""

from __future__ import annotations

import json

import schemathesis
from hypothesis import strategies as st

HEAD_BYTES = 512


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """JSON filled up with spaces, and one to three rows of four numbers."""
    rows = draw(st.integers(1, 3))
    raw = draw(st.binary(min_size=16 * rows, max_size=16 * rows))
    tensor = {"name": "image", "datatype": "FP32", "shape": [rows, 4]}
    message = {
        "inputs": [tensor | {"parameters": {"binary_data_size": len(raw)}}],
        "parameters": {"binary_data_output": draw(st.booleans())},
    }
    return json.dumps(message).encode().ljust(HEAD_BYTES) + raw


schemathesis.openapi.media_type("application/octet-stream", bodies())

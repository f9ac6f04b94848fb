"""The Open Inference Protocol v2, spoken once, for servers and for whoever asks them.

A model's inputs and outputs, what a task's server checks and why it refuses a request (`schema`),
the protocol's JSON (`messages`), tensors on the wire (`tensors`), how a client asks (`inference`),
where servers are (`address`), and one HTTP/1.1 client (`http1`).
"""

from inferway.protocol.address import ModelAddress, ServerAddress, parse_model, parse_server
from inferway.protocol.schema import DTYPES, RefusalError, Signature, Tensor, datatype_of

__all__ = [
    "DTYPES",
    "ModelAddress",
    "RefusalError",
    "ServerAddress",
    "Signature",
    "Tensor",
    "datatype_of",
    "parse_model",
    "parse_server",
]

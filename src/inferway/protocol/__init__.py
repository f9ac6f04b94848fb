"""The Open Inference Protocol v2, spoken once, for servers and for whoever asks them.

What a model takes and gives (`signature`), the protocol's JSON (`messages`), tensors on the wire
(`tensors`), what a task's server checks (`schema`), how a client asks (`inference`), why a request
is refused (`refusal`), where servers are (`address`), and one HTTP/1.1 client (`http1`).
"""

from inferway.protocol.address import ModelAddress, ServerAddress, parse_model, parse_server
from inferway.protocol.refusal import RefusalError
from inferway.protocol.signature import DTYPES, Signature, Tensor, datatype_of

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

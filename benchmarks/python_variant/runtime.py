"""The same echo as a custom runtime of MLServer: arrays in, arrays out."""

from __future__ import annotations

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Echo(MLModel):
    """Answers what it is given."""

    async def load(self) -> bool:
        """Have nothing to load."""
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer one request."""
        x = NumpyCodec.decode_input(payload.inputs[0])
        outputs = [NumpyCodec.encode_output("y", x)]
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)

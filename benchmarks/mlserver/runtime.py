"""A custom MLServer runtime for one ONNX model: one thread, arrays in, arrays out.

As lean as MLServer's interface allows. Names and datatypes are checked, because MLServer leaves
that to runtimes; what ONNX Runtime refuses becomes the client's error, as MLServer names it.
"""

from __future__ import annotations

import os

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxModel(MLModel):
    """The model of the file that ``INFERWAY_BENCHMARK_MODEL`` names."""

    async def load(self) -> bool:
        """Load the model."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            os.environ["INFERWAY_BENCHMARK_MODEL"], options, ["CPUExecutionProvider"]
        )
        self._datatypes = {one.name: one.datatype for one in self.inputs}
        self._names = [one.name for one in self.outputs]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer one request."""
        names = [one.name for one in payload.outputs] if payload.outputs else self._names
        try:
            for one in payload.inputs:
                if one.datatype != self._datatypes[one.name]:
                    raise InferenceError(f"input {one.name!r} has datatype {one.datatype}")
            arrays = {one.name: NumpyCodec.decode_input(one) for one in payload.inputs}
            found = self._session.run(names, arrays)
        except InferenceError:
            raise
        except Exception as error:
            raise InferenceError(f"{type(error).__name__}: {error}") from error
        outputs = [
            NumpyCodec.encode_output(name, array) for name, array in zip(names, found, strict=True)
        ]
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)

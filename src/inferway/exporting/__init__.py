"""Models of scikit-learn, XGBoost and PyTorch become ONNX files that are served as they are.

A model is loaded (`source`), asked for its inputs and converted (`scikit_learn`, `boosting`,
`pytorch`), and written only if ONNX Runtime answers as the model itself does (`agreement`).
"""

from inferway.exporting.agreement import Agreement, DisagreementError
from inferway.exporting.conversion import Exported, export
from inferway.exporting.model import ExportError, SourceModel
from inferway.exporting.rows import tensor

__all__ = [
    "Agreement",
    "DisagreementError",
    "ExportError",
    "Exported",
    "SourceModel",
    "export",
    "tensor",
]

"""The digits on Ray Serve: two replicas of a small model, one of a large one, and a promise.

serve run ray_serve:app
"""

import onnxruntime
from ray import serve

import inferway
from inferway.ray import ingress

FILE = {
    "tasks": {
        "digits": {
            "accuracy_target": 0.9,
            "deadline": "2 s",
            "variants": {
                "small": {"model": "zoo://digits/small"},
                "large": {"model": "zoo://digits/large"},
            },
        }
    }
}


@serve.deployment(max_ongoing_requests=1, ray_actor_options={"num_cpus": 0.25})
class Digits:
    """A model's file in ONNX Runtime."""

    def __init__(self, path):
        self.session = onnxruntime.InferenceSession(path)

    def predict(self, inputs):
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, inputs), strict=True))


deployment = inferway.load(FILE)
paths = {
    name: str(variant.model.path) for name, variant in deployment.tasks["digits"].variants.items()
}
app = ingress(
    deployment,
    {
        "small": Digits.options(name="Small", num_replicas=2).bind(paths["small"]),
        "large": Digits.options(name="Large", num_replicas=1).bind(paths["large"]),
    },
    actor={"num_cpus": 0.25},
)

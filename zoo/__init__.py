"""Making of the digits zoo's models: images, networks, training, ONNX files.

Not part of the distribution, which has the models themselves: `inferway zoo build` in a clone of
the repository runs `zoo.build`.
"""

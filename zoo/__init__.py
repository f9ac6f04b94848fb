"""How the models of the digits zoo are made: images, networks, training, ONNX files.

Not part of the distribution, which has the models themselves: `inferway zoo build` in a clone of
the repository runs `zoo.build`.
"""

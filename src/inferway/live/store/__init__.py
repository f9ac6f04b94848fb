"""The model files of a node: fetched from allowed sources, checked, kept on its disk."""

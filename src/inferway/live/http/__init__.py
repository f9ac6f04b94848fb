"""HTTP/1.1 on httptools and uvloop, and the Open Inference Protocol v2 on it."""

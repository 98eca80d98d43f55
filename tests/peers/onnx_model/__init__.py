"""An ONNX model: the script that writes it, and the code that runs it in Triton."""

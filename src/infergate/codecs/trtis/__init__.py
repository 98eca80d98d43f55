"""The legacy TensorRT Inference Server API (v1.0 to v1.15), towards clients and backends."""

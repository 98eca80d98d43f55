"""Bytes ⇄ sockets. Knows no tensors."""

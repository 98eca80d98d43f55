"""The canonical language: numpy and the standard library only."""

"""The operations that every frontend calls."""

"""Who asks, what he may ask, and how often. Made only where the configuration has ``access``."""

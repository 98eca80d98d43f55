"""A clock that tests set."""


class Clock:
    """Returns ``time``, in seconds."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time

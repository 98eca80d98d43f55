"""Side by side against real peers. ``make bench``; the method is in docs/decisions/0005."""

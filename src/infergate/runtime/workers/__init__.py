"""Several processes that serve as one: who starts them, what they tell each other.

*Strategy.* The supervisor binds every address and hands the sockets to the workers, fresh
interpreters that accept from them together; whatever becomes of one, the sockets stay and the
others go on. It has no listener but the admin's. See docs/decisions/0025-workers.md.
"""

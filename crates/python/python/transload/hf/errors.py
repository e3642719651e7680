"""Errors that say what is refused, and why."""


class UnsupportedCache(NotImplementedError):
    """A model keeps a cache that is not known here. Refusing it is better than wrong tokens."""


class NotReused(ValueError):
    """Says why the model computes as if there were no store."""


class NotMovable(ValueError):
    """Says why what a model keeps of tokens cannot be moved to other positions."""

"""Puts modules in the places of packages that are not installed."""

import contextlib
import importlib
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class dtype:
    """A type of elements, as torch prints it."""

    name: str
    itemsize: int

    def __str__(self):
        return f"torch.{self.name}"


@contextlib.contextmanager
def installed(name, modules):
    """Imports the module of that name anew, and gives it; within this context it sees `modules`, by their full names."""
    packages = {name, *(place.split(".")[0] for place in modules)}

    def concerned():
        return [place for place in sys.modules if any(f"{place}.".startswith(f"{package}.") for package in packages)]

    before = {place: sys.modules.pop(place) for place in concerned()}
    sys.modules |= modules
    try:
        yield importlib.import_module(name)
    finally:
        for place in concerned():
            del sys.modules[place]
        sys.modules |= before

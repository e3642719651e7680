"""Puts modules in the places of packages that are not installed, and stands for tensors of torch."""

import contextlib
import importlib
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace


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


@dataclass(frozen=True)
class Storage:
    """What this package asks of the storage of a torch tensor."""

    address: int
    length: int
    device: object = field(default_factory=lambda: SimpleNamespace(type="cpu"))

    def data_ptr(self):
        return self.address

    def nbytes(self):
        return self.length


@dataclass(frozen=True)
class Tensor(Storage):
    """And of a tensor, of elements of two bytes."""

    contiguous: bool = True

    def is_contiguous(self):
        return self.contiguous

    def numel(self):
        return self.length // 2

    def element_size(self):
        return 2

    def untyped_storage(self):
        return Storage(self.address, self.length, self.device)

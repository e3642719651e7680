"""Memory of torch that is registered stays where it is."""

import itertools

import numpy
import pytest
import torch
import transload


@pytest.mark.parametrize("given", [lambda tensor: tensor, lambda tensor: tensor.untyped_storage()])
def test_a_storage_is_not_resized(given):
    tensor = torch.zeros(64)
    memory = transload.Memory([given(tensor)])
    for resize in (lambda: tensor.untyped_storage().resize_(1 << 24), lambda: tensor.resize_(1 << 22)):
        with pytest.raises(RuntimeError, match="not resizable"):
            resize()
    memory.write(0, b"\x00\x00\x80\x3f")
    assert tensor[0] == 1


def test_a_tensor_that_gets_another_storage():
    tensor = torch.zeros(1 << 22)
    first = tensor.untyped_storage().data_ptr()
    memory = transload.Memory([tensor])
    tensor.set_(torch.zeros(8))
    # What was registered is still there.
    assert memory.allocations == [(first, 1 << 24)]
    memory.write(0, bytes(1 << 24))


def _through_a_queue(tensor):
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    queue.put(tensor)


@pytest.mark.smallest
@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
@pytest.mark.parametrize(
    "share",
    [
        lambda tensor: tensor.share_memory_(),
        lambda tensor: tensor.untyped_storage().share_memory_(),
        lambda tensor: tensor[3:].view(torch.int32).share_memory_(),
        _through_a_queue,
    ],
)
@pytest.mark.parametrize(
    "given",
    [
        lambda tensor: tensor,
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: tensor.storage(),
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.numpy()[8:],
    ],
)
@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_what_is_registered_is_not_moved_into_shared_memory(given, share, strategy):
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(strategy)
    try:
        tensor = torch.zeros(1 << 20)
        memory = transload.Memory([given(tensor)])
        address = tensor.data_ptr()
        with pytest.raises(transload.CacheMemoryError, match="call share_memory_.. before"):
            share(tensor)
        assert tensor.data_ptr() == address
        memory.write(0, b"\x00\x00\x80\x3f")
        assert tensor[0] == 1 or tensor[8] == 1
        # It is registered again without a word, and a copy of it is anybody's.
        transload.Memory([tensor])
        tensor.clone().share_memory_()
    finally:
        torch.multiprocessing.set_sharing_strategy(before)


@pytest.mark.smallest
@pytest.mark.parametrize("shared, registered", [*itertools.product(["file_descriptor", "file_system"], repeat=2)])
def test_what_is_shared_already_stays_where_it_is(shared, registered):
    before = torch.multiprocessing.get_sharing_strategy()
    try:
        torch.multiprocessing.set_sharing_strategy(shared)
        tensor = torch.zeros(1 << 20).share_memory_()
        torch.multiprocessing.set_sharing_strategy(registered)
        memory = transload.Memory([tensor])
        address = tensor.data_ptr()
        tensor.share_memory_()
        _through_a_queue(tensor)
        # Another strategy would move it.
        other = {"file_descriptor": "file_system", "file_system": "file_descriptor"}[registered]
        torch.multiprocessing.set_sharing_strategy(other)
        for share in (torch.Tensor.share_memory_, _through_a_queue):
            with pytest.raises(transload.CacheMemoryError, match="keep the sharing strategy"):
                share(tensor)
        assert tensor.data_ptr() == address
        memory.write(0, b"\x00\x00\x80\x3f")
        assert tensor[0] == 1
    finally:
        torch.multiprocessing.set_sharing_strategy(before)


@pytest.mark.smallest
def test_memory_that_torch_did_not_allocate_is_its_owners():
    array = numpy.zeros(1 << 20, numpy.float32)
    buffer = bytearray(1 << 12)
    for tensor in (torch.from_numpy(array), torch.frombuffer(buffer, dtype=torch.uint8), torch.from_dlpack(array)):
        for given in (tensor, tensor.untyped_storage()):
            with pytest.raises(transload.CacheMemoryError, match="allocation 0: its storage is memory that torch did not"):
                transload.Memory([given])
    memory = transload.Memory([array])
    with pytest.raises(ValueError, match="cannot resize"):
        array.resize(1 << 24, refcheck=False)
    memory.write(0, b"\x00\x00\x80\x3f")
    assert array[0] == 1

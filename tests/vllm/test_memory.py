"""Memory of torch that is registered stays where it is."""

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

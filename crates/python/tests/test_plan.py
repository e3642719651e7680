"""Deployments and plans."""

import json
import pickle

import numpy
import pytest
from conftest import document
from test_package import typed_dict

import transload


def test_a_deployment_says_what_it_is():
    side = transload.Deployment(document(tp=2))
    assert (side.tp, side.pp, side.ranks) == (2, 1, 2)
    assert len(side.digest) == 32
    assert side == transload.Deployment(json.dumps(document(tp=2)))
    assert side != transload.Deployment(document(tp=1))
    assert pickle.loads(pickle.dumps(side)) == side and len({side, side}) == 1
    assert json.loads(side.document) == document(tp=2)
    assert transload.Deployment(document(tp=numpy.int64(2))) == side
    [group] = side.groups
    assert (group.name, group.block_size, group.num_blocks) == ("attn", 16, 16)
    assert group.layers == [0, 1, 2, 3]
    assert group.order == "LBSHC"
    assert not group.is_recurrent
    # Blocks, layers, tokens of a block, keys and values of 64 elements, 2 bytes each; one of two heads.
    assert group.allocations(1) == [16 * 4 * 16 * 2 * 64 * 2]
    with pytest.raises(IndexError, match="there is no rank 2"):
        group.allocations(2)
    assert "attn" in repr(side) and "LBSHC" in repr(group)


def lies_at(view):
    """What has to be the same for a view and an array: allocation, offset, shape, strides that mean something."""
    strides = [stride for size, stride in zip(view["shape"], view["strides"]) if size > 1]
    return view["allocation"], view["offset"], view["shape"], strides


def described(array, base, allocation=0):
    """The same of an array [blocks, tokens, heads, elements], as an engine reads it off its tensor."""
    offset = array.ctypes.data - base.ctypes.data
    strides = [stride for size, stride in zip(array.shape, array.strides) if size > 1]
    return allocation, offset, array.shape, strides


# Shapes of an engine's tensors (keys and values last, or outside), and how to get from one to [L, B, S, H, C].
@pytest.mark.parametrize(
    ("order", "shape", "axes"),
    [
        ("NHD", (4, 16, 16, 2, 128), "LBSHC"),
        ("HND", (4, 16, 2, 16, 128), "LBHSC"),
        ("BLHSC", (16, 4, 2, 16, 128), "BLHSC"),
        ("LKBSHD", (4, 2, 16, 16, 2, 64), "LKBSHD"),
        ("LBKHSD", (4, 16, 2, 2, 16, 64), "LBKHSD"),
    ],
)
def test_views_are_the_strides_of_an_engines_tensor(order, shape, axes):
    tensor = numpy.zeros(shape, dtype=numpy.uint16)
    at = tensor.transpose([axes.index(axis) for axis in "LBSHCKD" if axis in axes])
    [group] = transload.Deployment(document(order=order)).groups
    views = group.views()
    assert [(v["layer"], v["component"]) for v in views] == [(layer, part) for layer in range(4) for part in "kv"]
    for view in views:
        number = "kv".index(view["component"])
        layer = at[view["layer"]]
        part = layer[..., 64 * number : 64 * (number + 1)] if "C" in axes else layer[:, :, :, number]
        assert lies_at(view) == described(part, tensor)
        assert view["itemsize"] == tensor.itemsize
        assert (view["kind"], view["spec"], view["units"]) == ("attention", 0, (0, 2))
        assert view.keys() == typed_dict("View")


def test_views_of_ranks_stages_and_allocations():
    sides = document(tp=2, heads=2)
    sides["pp"] = 2
    sides["group"][0]["allocation"] = "per_layer"
    [group] = transload.Deployment(sides).groups
    # Rank 3 is TP rank 1 of stage 1: the second head of the last two layers, an allocation for each.
    assert group.allocations(3) == [16 * 16 * 256] * 2
    keys = [view for view in group.views(3) if view["component"] == "k"]
    assert [(v["layer"], v["allocation"], v["offset"]) for v in keys] == [(2, 0, 0), (3, 1, 0)]
    assert {view["units"] for view in keys} == {(1, 2)}
    assert keys[0]["shape"] == (16, 16, 1, 64)
    with pytest.raises(IndexError, match="there is no rank 4"):
        group.views(4)


def test_views_of_recurrent_state_cover_it_once():
    sides = document()
    del sides["order"]
    heads = {"heads": 4, "state_size": 16}
    conv = {"d_inner": 32, "groups": 2, "conv_kernel": 4, "conv_layout": "SD"}
    sides["group"][0]["spec"] = [
        {"kind": "mamba2_conv", **heads, **conv, "dtype": "bf16"},
        {"kind": "mamba2_ssm", **heads, "head_dim": 8, "dtype": "f32"},
    ]
    [group] = transload.Deployment(sides).groups
    [bytes] = group.allocations()
    touched = numpy.zeros(bytes, dtype=numpy.uint8)
    for view in group.views():
        shape = view["shape"] + (view["itemsize"],)
        strides = view["strides"] + (1,)
        array = numpy.ndarray(shape, numpy.uint8, touched, view["offset"], strides)
        array += 1
    assert (touched == 1).all()


def test_faults_of_a_document_are_all_named():
    wrong = document()
    wrong["tp"] = 0
    wrong["group"][0]["spec"][0]["heads"] = -1
    with pytest.raises(transload.DocumentError) as raised:
        transload.Deployment(wrong)
    assert "tp" in str(raised.value) and "heads" in str(raised.value)
    with pytest.raises(transload.DocumentError, match="not valid JSON"):
        transload.Deployment("{")
    assert issubclass(transload.DocumentError, transload.TransloadError)


def test_chunks_are_those_of_the_layouts():
    src = transload.Deployment(document())
    dst = transload.Deployment(document(tp=2, block_size=64, order="HND"))
    plan = transload.Plan(src, dst, 30)
    assert plan.groups == ["attn"]
    # Each of two ranks takes one of two heads: 30 tokens, 4 layers, keys and values of 64 bf16.
    assert plan.routes == [(0, 0, 30 * 4 * 256), (0, 1, 30 * 4 * 256)]
    bound = plan.bind([[5, 2]], [[6]])
    assert bound.bytes == 30 * 4 * 2 * 256
    assert bound.histogram == {256: bound.chunks}
    [first, second] = bound.routes
    assert (second.src_rank, second.dst_rank, second.group) == (0, 1, "attn")
    chunks = first.chunks()
    assert chunks.dtype.names == ("src", "dst", "length")
    assert len(chunks) == 30 * 4 and chunks["length"].sum() == first.bytes
    assert not chunks.flags.writeable
    # The source's first token is in block 5, the destination's in block 6.
    assert chunks["src"].min() == 2 * 16 * 2 * 256
    assert chunks["dst"].min() == 6 * 64 * 256
    # No byte of the destination is written twice.
    assert len(numpy.unique(chunks["dst"])) == len(chunks)


@pytest.mark.parametrize(
    ("tables", "error", "message"),
    [
        (([[5]], [[6]]), transload.PlanError, "has 1 blocks, 2 are needed"),
        (([[5, -1]], [[6]]), transload.PlanError, "has no block"),
        (([[5, 99]], [[6]]), transload.PlanError, "is block 99, but there are 16 blocks"),
        (([[5, 2], [1]], [[6]]), transload.PlanError, "gives 2 block tables for 1 groups"),
        (([[5, -2]], [[6]]), ValueError, r"tables\[0\]\[1\] is -2"),
        (([["5", 2]], [[6]]), TypeError, "str"),
    ],
)
def test_tables_that_do_not_suit_are_refused(tables, error, message):
    plan = transload.Plan(transload.Deployment(document()), transload.Deployment(document(block_size=64)), 30)
    with pytest.raises(error, match=message):
        plan.bind(*tables)
    # None: block i is entry i. Arrays are as good as lists.
    assert plan.bind([None], [numpy.array([3], dtype=numpy.int32)]).bytes == 30 * 4 * 2 * 256


def test_sides_of_two_models_are_refused():
    with pytest.raises(transload.PlanError, match="heads"):
        transload.Plan(transload.Deployment(document(heads=2)), transload.Deployment(document(heads=4)), 16)

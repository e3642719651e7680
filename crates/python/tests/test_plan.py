"""Deployments and plans."""

import json
import pickle

import numpy
import pytest
from conftest import document

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


def test_faults_of_a_document_are_all_named():
    wrong = document()
    wrong["tp"] = 0
    wrong["group"][0]["spec"][0]["heads"] = -1
    with pytest.raises(transload.DocumentError) as raised:
        transload.Deployment(wrong)
    assert "tp" in str(raised.value) and "heads" in str(raised.value)
    with pytest.raises(transload.DocumentError, match="no JSON"):
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
    ("tables", "message"),
    [
        (([[5]], [[6]]), "has 1 blocks, 2 are needed"),
        (([[5, -1]], [[6]]), "has no block"),
        (([[5, 99]], [[6]]), "is block 99, but there are 16 blocks"),
        (([[5, 2], [1]], [[6]]), "gives 2 block tables for 1 groups"),
    ],
)
def test_tables_that_do_not_suit_are_refused(tables, message):
    side = transload.Deployment(document())
    wide = transload.Deployment(document(block_size=64))
    with pytest.raises(transload.PlanError, match=message):
        transload.Plan(side, wide, 30).bind(*tables)


def test_a_block_number_is_a_number():
    side = transload.Deployment(document())
    plan = transload.Plan(side, side, 16)
    with pytest.raises(ValueError, match=r"tables\[0\]\[0\] is -2"):
        plan.bind([[-2]], [[0]])
    with pytest.raises(TypeError):
        plan.bind([["5"]], [[0]])
    # None: block i is entry i. Arrays are as good as lists.
    assert plan.bind([None], [numpy.array([3], dtype=numpy.int32)]).bytes == 16 * 4 * 2 * 256


def test_sides_of_two_models_are_refused():
    src = transload.Deployment(document(heads=2))
    dst = transload.Deployment(document(heads=4))
    with pytest.raises(transload.PlanError, match="heads"):
        transload.Plan(src, dst, 16)

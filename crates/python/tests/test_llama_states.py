"""States of llama.cpp in a store: what an adapter for llama-cpp-python stands on."""

import struct

import pytest

import transload


def state(tokens: int) -> bytes:
    """A state as llama.cpp writes it: two layers of f16, four bytes for each row, which tells layer and position."""
    words = [0xAF143CD8, 0, 1, tokens]
    for position in range(tokens):
        words += [position, 1, 0]
    words += [0, 2]
    for side_of_layer in range(4):
        words += [1, 4, 0, *(side_of_layer << 16 | position for position in range(tokens))]
    return struct.pack(f"<{len(words)}I", *words)


def test_a_longer_prompt_finds_what_was_saved(tmp_path):
    store = f"file://{tmp_path}/kv"
    states = transload.LlamaStates(store, "m", "w", state(1), engine_version="0.3.36")
    tokens = list(range(300))
    assert states.find(tokens) is None
    assert states.save(tokens, state(300)) == 300 * 16
    assert states.save(tokens, state(300)) == 0
    # Of another process's, or of this one's later.
    again = transload.LlamaStates(store, "m", "w", state(7), engine_version="0.3.40")
    found = again.find(tokens[:290] + [7] * 10)
    assert found.tokens == 290
    restored = again.restore(found)
    assert restored == state(290)
    other = transload.LlamaStates(store, "m", "other", state(1), engine_version="0.3.36")
    assert other.find(tokens) is None
    other = transload.LlamaStates(store, "m", "w", state(1), engine_version="0.4.0")
    assert other.find(tokens) is None


def test_whole_states_are_found_for_exactly_their_tokens(tmp_path):
    states = transload.LlamaStates(f"file://{tmp_path}/kv", "m", "w", None)
    whole = state(300) + b"recurrent layers"
    states.save(list(range(300)), whole)
    assert states.find(list(range(299))) is None
    found = states.find(list(range(400)))
    assert (found.tokens, states.restore(found)) == (300, whole)


def test_what_is_wrong_is_said(tmp_path):
    store = f"file://{tmp_path}/kv"
    states = transload.LlamaStates(store, "m", "w", state(1))
    for tokens, given, said in [
        (3, b"", "the state is cut"),
        (3, state(3)[:-1], "the state is cut"),
        (3, state(3) + b"x", "1 bytes follow the last layer"),
        (4, state(3), "4 tokens were given with a state of 3 cells"),
    ]:
        with pytest.raises(transload.ArchiveError, match=said):
            states.save(list(range(tokens)), given)
    with pytest.raises(transload.ArchiveError, match="not a state of a version"):
        transload.LlamaStates(store, "m", "w", b"nonsense")
    with pytest.raises(OverflowError):
        states.find([-1])

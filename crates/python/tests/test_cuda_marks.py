"""What waits for work of a GPU's stream: marks, and agents whose blocks are used before and after them."""

import threading
import time

import pytest
from conftest import CONTENT, LENGTH, Pair, fill
from fake_cuda import Device, on_gpu

import transload
from transload import CudaError, Mark, Memory

# --- marks -------------------------------------------------------------------------------


def is_reached(mark):
    """Whether its stream comes there, soon enough."""
    deadline = time.monotonic() + 30
    while not mark.done and time.monotonic() < deadline:
        time.sleep(0.001)
    return mark.done


class TorchStream:
    def __init__(self, stream):
        self.cuda_stream, self.device = stream.handle, Device("cuda", stream.index)


@on_gpu()
def test_marks_are_done_when_their_stream_has_come_there(driver):
    stream, array = driver.stream(), driver.allocate(8)
    for given in (
        (stream,),
        (TorchStream(stream),),
        (stream.handle,),
        (stream.handle, "cuda:0"),
        (TorchStream(stream), Device("cuda", 0)),
    ):
        assert is_reached(Mark(*given))
        stream.hold()
        stream.write(array, b"computed")
        mark = Mark(*given)
        assert not mark.done
        stream.release()
        stream.synchronize()
        assert mark.done
    assert is_reached(Mark()) and is_reached(Mark(0, "cuda:0"))
    for given, error, message in [
        ((0, "cpu"), ValueError, "the CPU, which has no streams"),
        ((0, "gpu"), ValueError, "give \"cpu\", or a GPU"),
        ((TorchStream(stream), "cuda:1"), ValueError, "device is cuda:1, and the stream is one of cuda:0"),
        ((0, "cuda:7"), CudaError, "no device 7"),
        (("stream",), TypeError, "the stream is a <class 'str'>"),
        ((-1,), TypeError, "the stream is a"),
    ]:
        with pytest.raises(error, match=message):
            Mark(*given)

    class Newer:
        def __cuda_stream__(self):
            return 1, stream.handle

    with pytest.raises(TypeError, match="of version 1"):
        Mark(Newer())
    stream.destroy()
    with pytest.raises(CudaError, match="does not belong to device 0, or was destroyed: cuStreamIsCapturing gives"):
        Mark(stream)
    # Of a thread that has used no GPU nobody knows whose default stream it means.
    failed = []

    def marks():
        try:
            Mark()
        except CudaError as error:
            failed.append(str(error))

    thread = threading.Thread(target=marks)
    thread.start()
    thread.join()
    assert failed == ["no context is current in this thread: give the stream's device"]


@on_gpu(FAKE_CUDA_DEVICES=2)
def test_a_stream_of_another_gpu_is_refused(driver):
    here, there = driver.stream(0), driver.stream(1)
    # The context of device 1 is current.
    assert is_reached(Mark(there)) and is_reached(Mark(TorchStream(here)))
    with pytest.raises(CudaError, match="does not belong to device 1"):
        Mark(here)
    with pytest.raises(CudaError, match="does not belong to device 0"):
        Mark(there, "cuda:0")


@on_gpu()
def test_a_mark_of_a_lost_gpu_says_so(driver):
    # Allocated first: a driver may let an allocation wait for whatever is behind the stream.
    stream, array = driver.stream(), driver.allocate(8)
    stream.hold()
    stream.write(array, b"computed")
    mark = Mark(stream)
    driver.fail("cuEventQuery", 1, 700)
    for _ in range(2):
        with pytest.raises(CudaError, match="device 0 is lost: cu[A-Za-z_0-9]+ gives CUDA_ERROR_ILLEGAL_ADDRESS"):
            assert mark.done
    with pytest.raises(CudaError):
        Mark(stream)


# --- agents ------------------------------------------------------------------------------


class OnGpu(Pair):
    """A pair of engines with their memory on the GPU or on the host, and a stream."""

    def __init__(self, driver, certs, where=("gpu", "gpu")):
        self.arrays = ([], [])

        def on(side):
            def allocate(lengths):
                arrays = [driver.allocate(length) for length in lengths]
                self.arrays[side].extend(arrays)
                return Memory(arrays)

            return allocate if where[side] == "gpu" else Memory.allocate

        super().__init__(certs, (on(0), on(1)))
        self.stream = driver.stream()

    def __exit__(self, *_):
        self.stream.release()
        super().__exit__()

    def compute_later(self):
        """Has the stream write the prefill engine's cache, once it is released."""
        [cache] = self.arrays[0]
        self.stream.hold()
        self.stream.write(cache, bytes((7 * at + at // 251) % 255 + 1 for at in range(cache.nbytes)))

    def read_later(self):
        """Has the stream read the decode engine's cache, once it is released; whether it has found only zeros then."""
        self.stream.hold()
        reads = [self.stream.read(cache) for cache in self.arrays[1]]
        return lambda: not any(any(read()) for read in reads)

    def release(self):
        self.stream.release()
        self.stream.synchronize()


@pytest.mark.parametrize("where", [("gpu", "gpu"), ("gpu", "host"), ("host", "gpu")])
@on_gpu()
def test_pulls_and_pushes_reach_every_byte(driver, certs, where):
    ways = [("local", "ring"), ("quic", "quic")]
    if list(where) == ["gpu", "gpu"]:
        ways = [("local", "device"), ("device", "device"), ("ring", "ring"), ("quic", "quic")]
    for paths, path in ways:
        with OnGpu(driver, certs, where) as pair:
            fill(pair.prefill.memories[0][0])
            lease, ticket = pair.lease()
            report = pair.pull(ticket, paths=paths).ended.result(30)
            assert {route["path"] for route in report["routes"]} == {path}
            assert lease.ended.result(30) == "completed"
            assert pair.is_right()
        with OnGpu(driver, certs, where) as pair:
            fill(pair.prefill.memories[0][0])
            opened, ticket = pair.open()
            push = pair.push(ticket, prefilled=False, by_layer=True, paths=paths)
            for layer in range(4):
                push.ready(0, layer, LENGTH)
            push.finish_prefill()
            push.ended.result(30)
            assert [lease.ended.result(30) for lease in opened] == ["completed"] * 2
            assert pair.is_right()


def waits(completion):
    """Whether it has not ended, and does not for a while."""
    return not completion.wait(0.3)


@pytest.mark.parametrize("marked", [True, False])
# A copy without a mark must overtake the held stream, so both need hardware queues of their own.
@on_gpu(FAKE_CUDA_QUEUES=0)
def test_blocks_are_read_when_they_are_computed(driver, certs, marked):
    def after(pair):
        return Mark(pair.stream) if marked else None

    def finish(pair, transfer):
        """Whether it moved what was computed."""
        if marked:
            assert waits(transfer.ended)
            pair.release()
        transfer.ended.result(30)
        pair.release()
        return pair.is_right()

    def leased(pair):
        _lease, ticket = pair.lease(after=after(pair))
        return pair.pull(ticket)

    def told(pair):
        lease, ticket = pair.lease(prefilled=False)
        for layer in range(4):
            lease.ready(layer, LENGTH, after=after(pair))
        lease.finish_prefill(after=after(pair))
        return pair.pull(ticket, by_layer=True)

    def pushed(pair):
        _opened, ticket = pair.open()
        return pair.push(ticket, after=after(pair))

    def pushed_and_told(pair):
        _opened, ticket = pair.open()
        push = pair.push(ticket, prefilled=False, by_layer=True)
        for layer in range(4):
            push.ready(0, layer, LENGTH, after=after(pair))
        push.finish_prefill(after=after(pair))
        return push

    for begin in (leased, told, pushed, pushed_and_told):
        with OnGpu(driver, certs) as pair:
            pair.compute_later()
            assert finish(pair, begin(pair)) == marked, begin.__name__


@pytest.mark.parametrize("marked", [True, False])
# A copy without a mark must overtake the held stream, so both need hardware queues of their own.
@on_gpu(FAKE_CUDA_QUEUES=0)
def test_blocks_are_written_when_nobody_reads_them_any_more(driver, certs, marked):
    with OnGpu(driver, certs) as pair:
        fill(pair.prefill.memories[0][0])
        _lease, ticket = pair.lease()
        found_zeros = pair.read_later()
        pull = pair.pull(ticket, after=Mark(pair.stream) if marked else None)
        if marked:
            assert waits(pull.ended)
            # Of a pull there is nothing to tell.
            pull.ready(0, 0, LENGTH)
            pull.finish_prefill()
        else:
            pull.ended.result(30)
        pair.release()
        pull.ended.result(30)
        assert pair.is_right()
        assert found_zeros() == marked
    # The same for blocks that are pushed into. It waits without the interpreter's lock, or nobody would release the stream.
    with OnGpu(driver, certs) as pair:
        fill(pair.prefill.memories[0][0])
        found_zeros = pair.read_later()
        mark = Mark(pair.stream) if marked else None
        opened = []
        thread = threading.Thread(target=lambda: opened.append(pair.open(after=mark)))
        thread.start()
        if marked:
            thread.join(0.3)
            assert not opened
            pair.release()
        thread.join()
        pair.push(opened[0][1]).ended.result(30)
        pair.release()
        assert pair.is_right()
        assert found_zeros() == marked


def kind_of(result, message=""):
    """The kind of failure that a transfer ends with."""
    with pytest.raises(transload.TransferError, match=message) as raised:
        result(30)
    return raised.value.kind


@on_gpu()
def test_what_waits_for_a_mark_can_be_given_up(driver, certs):
    with OnGpu(driver, certs) as pair:
        pair.compute_later()
        mark = Mark(pair.stream)
        lease, ticket = pair.lease()
        # A pull, before it has begun, by hand and by its time.
        pull = pair.pull(ticket, after=mark)
        pull.cancel()
        pull.cancel()
        assert kind_of(pull.ended.result) == "cancelled"
        assert kind_of(pair.pull(ticket, after=mark, timeout=0.2).ended.result, "longer than 200ms") == "timed_out"
        # What is wrong with a request is said at once.
        assert kind_of(lambda _: pair.prefill.agent.pull(ticket, [0], [[5]], CONTENT, LENGTH, after=mark)) == "request"
        # Blocks that are to be opened.
        with pytest.raises(transload.LeaseError, match="not reached within 0.2 s"):
            pair.open(after=mark, ttl=0.2)
        # A lease expires, and is cancelled.
        late, _ = pair.lease(after=mark, ttl=0.2)
        assert late.ended.result(30) == "expired"
        given_up, _ = pair.lease(after=mark)
        given_up.cancel()
        assert given_up.ended.result(30) == "cancelled"
        # What had to wait for its mark is too late, and harms nobody.
        given_up.ready(0, LENGTH, after=mark)
        given_up.finish_prefill(after=mark)
        # Nobody else waits.
        pair.pull(ticket).ended.result(30)
        assert lease.ended.result(30) == "completed"
        # A pull is cancelled after it has begun.
        never, ticket = pair.lease(prefilled=False)
        pull = pair.pull(ticket, after=mark)
        pair.release()
        assert waits(pull.ended)
        pull.cancel()
        assert kind_of(pull.ended.result) == "cancelled"
        assert never.ended.result(30) == "cancelled"


@on_gpu()
def test_a_mark_that_is_never_reached_fails_what_waits(driver, certs):
    with OnGpu(driver, certs) as pair:
        pair.compute_later()
        mark = Mark(pair.stream)
        lease, _ = pair.lease(after=mark)
        told, _ = pair.lease(prefilled=False)
        told.finish_prefill(after=mark)
        _free, ticket = pair.lease()
        pull = pair.pull(ticket, after=mark)
        driver.fail("cuEventQuery", 1, 700)
        assert lease.ended.result(30) == "device lost"
        assert told.ended.result(30) == "device lost"
        assert kind_of(pull.ended.result, "lost") == "device_lost"

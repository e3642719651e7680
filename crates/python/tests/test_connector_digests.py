"""Digests of weight files: read once, kept where nobody else can write, and never of what is changing."""

import os
import threading
import time

import pytest

import transload


@pytest.fixture
def digests(connector, tmp_path):
    from transload._digests import Digests

    return lambda: Digests(tmp_path / "kept")


@pytest.fixture
def reads(connector, monkeypatch):
    """The files that are read."""
    from transload import _digests as digests

    found, read = [], digests.file_digest
    monkeypatch.setattr(digests, "file_digest", lambda path, *, stop: found.append(path) or read(path, stop=stop))
    return found


def never():
    return False


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file that was written some time ago."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(os.urandom(3 << 20))
    settled(monkeypatch)
    return path


def settled(monkeypatch):
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 10)


def test_a_digest_is_of_all_of_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"")
    # BLAKE3 of nothing.
    assert transload.file_digest(path).hex().startswith("af1349b9f5f9a1a6a0404dea36dcc949")
    path.write_bytes(bytes(130 << 20))
    whole, asked = transload.file_digest(path), []
    assert transload.file_digest(str(path), stop=lambda: bool(asked.append(None))) == whole
    assert len(asked) == 3, "after each 64 MiB"
    with path.open("r+b") as out:
        out.seek(100 << 20)
        out.write(b"x")
    assert transload.file_digest(path) != whole
    assert transload.file_digest(path, stop=lambda: True) is None
    with pytest.raises(FileNotFoundError):
        transload.file_digest(tmp_path / "none")
    with pytest.raises(ZeroDivisionError):
        transload.file_digest(path, stop=lambda: 1 / 0)


def test_a_file_is_read_once(digests, reads, file, tmp_path):
    first = digests().of(file, never)
    assert first == transload.file_digest(file) == digests().of(file, never)
    assert reads == [file]
    [kept] = (tmp_path / "kept").iterdir()
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700 and kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("change", ["times", "content", "another file"])
def test_a_file_that_is_another_is_read_again(digests, reads, file, change, monkeypatch):
    digests().of(file, never)
    before = file.stat()
    if change == "times":
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns - 1))
    elif change == "content":
        with file.open("r+b") as out:
            out.write(b"x")
        # As a copy tool leaves it. The time of the change itself cannot be set.
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        other = file.with_name("other")
        other.write_bytes(file.read_bytes())
        other.replace(file)
    assert digests().of(file, never) == transload.file_digest(file)
    assert reads == [file, file]


def test_a_file_that_changes_while_it_is_read(digests, connector, file, monkeypatch, tmp_path):
    from transload import _digests as module

    read = module.file_digest

    def changing(path, *, stop):
        found = read(path, stop=stop)
        path.write_bytes(b"other")
        return found

    monkeypatch.setattr(module, "file_digest", changing)
    with pytest.raises(OSError, match="model.safetensors was changed while it was read"):
        digests().of(file, never)
    assert not (tmp_path / "kept").exists()


def test_a_file_that_may_still_change_is_not_kept(digests, reads, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x")
    for _ in range(2):
        digests().of(path, never)
    assert reads == [path, path]


@pytest.mark.parametrize("mode", [0o750, 0o707, 0o722])
def test_a_folder_that_others_reach_is_not_used(digests, reads, file, tmp_path, mode):
    digests().of(file, never)
    [kept] = (tmp_path / "kept").iterdir()
    kept.write_bytes(bytes(32))
    assert digests().of(file, never) == bytes(32), "what is kept is believed"
    (tmp_path / "kept").chmod(mode)
    assert digests().of(file, never) == transload.file_digest(file)
    assert kept.read_bytes() == bytes(32)


def test_what_is_kept_is_bounded(digests, file, tmp_path, monkeypatch):
    from transload import _digests as module

    monkeypatch.setattr(module, "MOST", 3)
    (tmp_path / "kept").mkdir(mode=0o700)
    for number in range(5):
        (tmp_path / "kept" / str(number)).write_bytes(bytes(32))
        os.utime(tmp_path / "kept" / str(number), (number, number))
    digests().of(file, never)
    assert len(list((tmp_path / "kept").iterdir())) == 3
    assert {"3", "4"} <= {path.name for path in (tmp_path / "kept").iterdir()}


def test_reading_stops(digests, connector, file):
    from transload._digests import Stopped

    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        digests().of(file, stop.is_set)

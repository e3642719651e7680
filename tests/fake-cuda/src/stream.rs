//! Streams: threads that execute the operations of their line in order, each after a random delay.

use std::collections::VecDeque;
use std::thread;
use std::time::Instant;

use crate::board::{Board, Handle, Kind, Line, Mark, NEWS, Operation, Work, board};
use crate::code::*;
use crate::settings::{Random, settings};

/// CU_STREAM_LEGACY, another name for the NULL stream.
const LEGACY: Handle = 1;

/// The greatest priority of a stream. It has no effect here: each stream has its own thread, and may share a queue with
/// any other.
pub(crate) const GREATEST_PRIORITY: i32 = -5;

pub(crate) fn create(board: &mut Board, device: usize, kind: Kind) -> Result<Handle> {
    let handle = board.handle();
    let made = &mut board.contexts[device].streams;
    *made += 1;
    let line = Line {
        device,
        kind,
        shared: made.checked_rem(settings().queues),
        queue: VecDeque::new(),
        submitted: 0,
        done: 0,
        held: false,
        capturing: false,
        open: true,
    };
    board.lines.insert(handle, line);
    let thread = thread::Builder::new().name(format!("stream {handle:x}"));
    let started = thread.spawn(move || run(handle));
    started.map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
    Ok(handle)
}

/// Finds a stream by its handle. NULL is that of the current context.
pub(crate) fn resolve(board: &mut Board, device: usize, stream: Handle) -> Result<Handle> {
    if stream > LEGACY {
        let open = board.lines.get(&stream).filter(|line| line.open).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        // The stream may belong to another context than the current one.
        board.usable(open.device)?;
        return Ok(stream);
    }
    if let Some(line) = board.contexts[device].null {
        return Ok(line);
    }
    let line = create(board, device, Kind::Null)?;
    board.contexts[device].null = Some(line);
    Ok(line)
}

/// Queues an operation that also waits for these marks. Returns the mark of its end.
pub(crate) fn enqueue(board: &mut Board, line: Handle, mut after: Vec<Mark>, work: Work) -> Mark {
    let Line { device, kind, .. } = board.lines[&line];
    // The NULL stream and the blocking ones wait for each other.
    match kind {
        Kind::Null => after.extend(board.marks(device, |_, other| other.kind == Kind::Blocking)),
        Kind::Blocking => after.extend(board.marks(device, |_, other| other.kind == Kind::Null)),
        Kind::NonBlocking => {}
    }
    let state = board.lines.get_mut(&line).expect("the line is open");
    if let Some(queue) = state.shared {
        let queues = &mut board.contexts[device].queues;
        queues.entry(queue).or_default().push_back(line);
    }
    state.queue.push_back(Operation { after, work });
    state.submitted += 1;
    let number = state.submitted;
    NEWS.notify_all();
    Mark { line, number }
}

/// Returns the marks that have to be reached before the stream counts as idle.
pub(crate) fn pending(board: &Board, line: Handle) -> Vec<Mark> {
    let Line { device, kind, .. } = board.lines[&line];
    let null = kind == Kind::Null;
    board.marks(device, |handle, other| handle == line || (null && other.kind == Kind::Blocking))
}

/// Blocks until the marks are reached or the context is lost.
pub(crate) fn wait(device: usize, marks: &[Mark]) -> Result {
    let unfinished =
        |board: &mut Board| board.contexts[device].lost.is_none() && !marks.iter().all(|mark| board.reached(mark));
    let board = NEWS.wait_while(board(), unfinished).unwrap();
    board.contexts[device].lost.map_or(Ok(()), Err)
}

/// Blocks until all streams of a context are idle. In a lost context that is soon.
pub(crate) fn wait_for_all(device: usize) -> Result {
    let marks = board().marks(device, |_, _| true);
    let unfinished = |board: &mut Board| !marks.iter().all(|mark| board.reached(mark));
    let board = NEWS.wait_while(board(), unfinished).unwrap();
    board.contexts[device].lost.map_or(Ok(()), Err)
}

pub(crate) fn record(board: &mut Board, line: Handle, event: Handle) {
    let work = move |at: Mark| {
        let mut board = crate::board::board();
        // It may have been destroyed, or recorded again.
        if let Some(event) = board.events.get_mut(&event).filter(|event| event.mark == Some(at)) {
            event.at = Some(Instant::now());
        }
        Ok(())
    };
    let number = board.lines[&line].submitted + 1;
    let at = Mark { line, number };
    enqueue(board, line, Vec::new(), Box::new(move |_| work(at)));
    if let Some(event) = board.events.get_mut(&event) {
        event.mark = Some(at);
        event.at = None;
    }
}

fn run(line: Handle) {
    let mut random = Random::new(line as u64);
    loop {
        let idle = |board: &mut Board| board.lines[&line].queue.is_empty() && board.lines[&line].open;
        let mut board = NEWS.wait_while(board(), idle).unwrap();
        if board.lines[&line].queue.is_empty() {
            board.lines.remove(&line);
            return;
        }
        drop(board);
        thread::sleep(random.delay());
        board = NEWS.wait_while(crate::board::board(), |board| !board.may_start(line)).unwrap();
        let device = board.lines[&line].device;
        let operation = board.take(line);
        let lost = board.contexts[device].lost.is_some();
        // The operation behind it may begin now.
        NEWS.notify_all();
        drop(board);
        let outcome = if lost { Ok(()) } else { (operation.work)(&mut random) };
        board = crate::board::board();
        if let Err(code) = outcome {
            board.lose(device, code);
        }
        board.lines.get_mut(&line).expect("its thread removes it").done += 1;
        NEWS.notify_all();
    }
}

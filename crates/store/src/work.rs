//! Parallel work on many small items.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Builder;

/// Runs `work` on every item and returns the results in the order of the items. `begin` makes a state for each thread.
/// The first error ends all threads. If the system cannot start that many threads, fewer do the work.
pub fn on_threads<I: Sync, S, T: Send, E: Send>(
    threads: usize,
    items: &[I],
    begin: impl Fn() -> Result<S, E> + Sync,
    work: impl Fn(&mut S, &I) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    let worker = || {
        let run = || -> Result<(), E> {
            let mut state = begin()?;
            while !failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(index) else {
                    break;
                };
                let result = work(&mut state, item)?;
                lock(&results).push((index, result));
            }
            Ok(())
        };
        if let Err(error) = run() {
            failed.store(true, Ordering::Relaxed);
            lock(&failure).get_or_insert(error);
        }
    };
    std::thread::scope(|scope| {
        // This thread works too, so the work is done even if no other thread starts.
        for _ in 1..threads.min(items.len()) {
            let _ = Builder::new().spawn_scoped(scope, worker);
        }
        worker();
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(|broken| broken.into_inner()) {
        return Err(error);
    }
    let mut results = results.into_inner().unwrap_or_else(|broken| broken.into_inner());
    results.sort_unstable_by_key(|(index, _)| *index);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Locks a mutex, also after a panic. Each lock guards a single change, so no value is ever half changed.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|broken| broken.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u32> = (0..1000).collect();
        for threads in [1, 2, 7] {
            let doubled = on_threads(threads, &items, || Ok::<_, ()>(()), |(), n| Ok(2 * n));
            assert_eq!(doubled, Ok((0..1000).map(|n| 2 * n).collect()));
        }
        let nothing: [u32; 0] = [];
        assert_eq!(on_threads(4, &nothing, || Ok::<_, ()>(()), |(), n| Ok(*n)), Ok(vec![]));
    }

    #[test]
    fn an_error_ends_all() {
        let items: Vec<u32> = (0..1000).collect();
        let work = |(): &mut (), n: &u32| if *n == 500 { Err("at 500") } else { Ok(()) };
        assert_eq!(on_threads(3, &items, || Ok(()), work), Err("at 500"));
        assert_eq!(on_threads(3, &items, || Err::<(), _>("no memory"), work), Err("no memory"));
    }
}

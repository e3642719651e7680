//! Pieces of an object that lies in several parts.

use super::record::PIECE;

/// Cuts parts that make up an object, one behind the other, into its pieces: the parts of each. `split` cuts one part.
pub(super) fn cut<T: AsRef<[u8]>>(
    parts: impl IntoIterator<Item = T>,
    split: impl Fn(T, usize) -> (T, T),
) -> Vec<Vec<T>> {
    let mut pieces: Vec<Vec<T>> = Vec::new();
    let mut room = 0;
    for mut part in parts {
        while !part.as_ref().is_empty() {
            if room == 0 {
                pieces.push(Vec::new());
                room = PIECE;
            }
            let take = part.as_ref().len().min(room);
            let (now, later) = split(part, take);
            room -= take;
            pieces.last_mut().expect("one was begun").push(now);
            part = later;
        }
    }
    pieces
}

/// How many bytes parts make up.
pub(super) fn total<T: AsRef<[u8]>>(parts: &[T]) -> u64 {
    // One memory may be given many times.
    let parts = parts.iter().map(|part| part.as_ref().len() as u64);
    parts.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_full_but_the_last() {
        let bytes = vec![7; 2 * PIECE];
        for (lengths, expected) in [
            (&[][..], &[][..]),
            (&[0, 0], &[]),
            (&[5, 0, 6], &[&[5, 6][..]]),
            (&[PIECE], &[&[PIECE]]),
            (&[PIECE - 1, 3], &[&[PIECE - 1, 1], &[2]]),
            (&[1, 2 * PIECE], &[&[1, PIECE - 1], &[PIECE], &[1]]),
        ] {
            let parts: Vec<&[u8]> = lengths.iter().map(|len| &bytes[..*len]).collect();
            let pieces = cut(parts.iter().copied(), <[u8]>::split_at);
            let pieces: Vec<Vec<usize>> = pieces
                .iter()
                .map(|piece| piece.iter().map(|part| part.len()).collect())
                .collect();
            assert_eq!(pieces, expected);
            assert_eq!(total(&parts), lengths.iter().sum::<usize>() as u64);
        }
    }
}

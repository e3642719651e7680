//! Suggestions for misspelt names.

pub(super) fn closest<'n>(name: &str, known: &[&'n str]) -> Option<&'n str> {
    let close = nearest(name, known).next();
    close.filter(|known| edit_distance(name, known) <= known.len().div_ceil(2))
}

/// Returns all known names, the most similar first.
pub(crate) fn nearest<'n>(name: &str, known: &[&'n str]) -> impl Iterator<Item = &'n str> + use<'n> {
    let mut known = known.to_vec();
    known.sort_by_cached_key(|known| edit_distance(name, known));
    known.into_iter()
}

/// Returns the Levenshtein distance. Names longer than any field count as infinitely far.
fn edit_distance(a: &str, b: &str) -> usize {
    if a.len() > 64 {
        return usize::MAX;
    }
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

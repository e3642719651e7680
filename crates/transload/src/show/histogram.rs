//! A histogram of chunk lengths, with bars in proportion to the bytes.

use super::number;

const BAR: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bar {
    pub(crate) length: u64,
    pub(crate) chunks: u64,
}

/// Formats one line for each length, ascending. Bars compare bytes, since many tiny chunks may carry little.
pub(crate) fn histogram(bars: &[Bar]) -> String {
    let share = |bar: &Bar| bar.length as f64 * bar.chunks as f64;
    let total: f64 = bars.iter().map(share).sum();
    let rows: Vec<[String; 2]> =
        bars.iter().map(|b| [number::exact_bytes(b.length), number::grouped(b.chunks)]).collect();
    let width = |column: usize| rows.iter().map(|r| r[column].len()).max().unwrap_or(0);
    let (lengths, counts) = (width(0), width(1));

    let mut text = String::new();
    for (bar, [length, chunks]) in bars.iter().zip(&rows) {
        let part = if total > 0.0 { share(bar) / total } else { 0.0 };
        // Every bar is at least one column long.
        let columns = ((part * BAR as f64).round() as usize).clamp(1, BAR);
        text.push_str(&format!(
            " {length:>lengths$} x {chunks:>counts$}  {:>5.1} % of the bytes  {}\n",
            part * 100.0,
            "█".repeat(columns)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_shares_of_the_bytes() {
        let bars = [Bar { length: 512, chunks: 2 }, Bar { length: 3072, chunks: 1 }];
        let thirty = "█".repeat(30);
        assert_eq!(
            histogram(&bars),
            format!(
                " 512 B x 2   25.0 % of the bytes  ██████████\n \
                 3 KiB x 1   75.0 % of the bytes  {thirty}\n"
            )
        );
    }

    #[test]
    fn no_chunks_no_bars() {
        assert_eq!(histogram(&[]), "");
    }
}

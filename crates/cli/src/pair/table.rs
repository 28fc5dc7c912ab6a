//! Aligned tables, and numbers with units.

use std::time::Duration;

/// Rows of cells; the first row is the heading. Columns of which every cell below the heading begins with a
/// digit or is empty stand right.
pub(crate) struct Table(Vec<Vec<String>>);

impl Table {
    /// A table with this heading.
    pub(crate) fn new<'a>(heading: impl IntoIterator<Item = &'a str>) -> Self {
        Self(vec![heading.into_iter().map(str::to_owned).collect()])
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.0.push(cells);
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let cells = |column: usize| self.0.iter().map(move |row| row.get(column).map_or("", String::as_str));
        let right = |column: usize| {
            let mut below = cells(column).skip(1);
            below.all(|cell| cell.is_empty() || cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit()))
        };
        let shape: Vec<(usize, bool)> = (0..columns)
            .map(|column| (cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0), right(column)))
            .collect();
        for row in &self.0 {
            let mut line = String::new();
            for (cell, (width, right)) in row.iter().zip(&shape) {
                let pad = " ".repeat(width - cell.chars().count());
                line += "  ";
                line += &if *right { pad + cell } else { cell.clone() + &pad };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// "6.21 µs", "1.2 ms".
pub(crate) fn time(duration: Duration) -> String {
    let nanoseconds = duration.as_nanos() as f64;
    match nanoseconds {
        n if n < 999.5 => format!("{n:.0} ns"),
        n if n < 99_950.0 => format!("{:.2} µs", n / 1e3),
        n if n < 999_500.0 => format!("{:.0} µs", n / 1e3),
        n if n < 999_500_000.0 => format!("{:.1} ms", n / 1e6),
        n => format!("{:.1} s", n / 1e9),
    }
}

/// "2.31 GB/s".
pub(crate) fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", bytes(bytes_per_second))
}

/// "1.2 MB", in powers of 1000.
pub(crate) fn bytes(count: f64) -> String {
    match count {
        n if n < 1e3 => format!("{n:.0} B"),
        n if n < 1e6 => format!("{:.1} kB", n / 1e3),
        n if n < 1e9 => format!("{:.0} MB", n / 1e6),
        n => format!("{:.2} GB", n / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(["what", "time"]);
        table.row(vec!["a".into(), time(Duration::from_nanos(6210))]);
        table.row(vec!["longer".into(), "-".into()]);
        assert_eq!(table.to_string(), "  what       time\n  a       6.21 µs\n  longer        -\n");
    }

    #[test]
    fn units() {
        assert_eq!(rate(2.314e9), "2.31 GB/s");
        assert_eq!(bytes(999.0), "999 B");
        assert_eq!(time(Duration::from_millis(12)), "12.0 ms");
    }
}

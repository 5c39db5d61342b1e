//! The table: what was measured, what was promised, and whether the promise was kept. It judges
//! figures and prints them; how they came about is left to the measures.

use std::fmt;

use crate::latency::median;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    PerSecond,
    Seconds,
    MegabytesPerSecond,
    Bytes,
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Self::PerSecond => format!("{value:.0} /s"),
            Self::Seconds if value < 0.001 => format!("{:.0} µs", value * 1e6),
            Self::Seconds if value < 1.0 => format!("{:.2} ms", value * 1e3),
            Self::Seconds => format!("{value:.2} s"),
            Self::MegabytesPerSecond => format!("{value:.0} MB/s"),
            Self::Bytes if value < 1e3 => format!("{value:.0} B"),
            Self::Bytes if value < 1e6 => format!("{:.1} KiB", value / 1024.0),
            Self::Bytes => format!("{:.1} MB", value / 1e6),
        }
    }
}

/// What one measure found over its rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Found {
    pub(crate) floor: Option<f64>,
    pub(crate) lockd: f64,
    /// Lockd's figure by the one that it is compared with.
    pub(crate) ratio: Option<f64>,
}

impl Found {
    /// The medians of some rounds. The ratio is the median of each round's own, so that a machine
    /// that is slower in one round does not spoil the comparison.
    pub(crate) fn paired(floor: &[f64], lockd: &[f64]) -> Option<Self> {
        let ratio = ratio_of(lockd, floor);
        Some(Self { floor: median(floor), lockd: median(lockd)?, ratio })
    }

    pub(crate) fn alone(lockd: &[f64]) -> Option<Self> {
        Some(Self { floor: None, lockd: median(lockd)?, ratio: None })
    }

    /// Compared with another figure of lockd itself.
    pub(crate) fn beside(lockd: &[f64], other: &[f64]) -> Option<Self> {
        Some(Self { floor: None, lockd: median(lockd)?, ratio: ratio_of(lockd, other) })
    }
}

/// The median of the rounds' ratios.
pub(crate) fn ratio_of(values: &[f64], bases: &[f64]) -> Option<f64> {
    let ratios: Vec<_> = values.iter().zip(bases).map(|(value, base)| value / base).collect();
    median(&ratios)
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Target {
    None,
    RatioAtLeast(f64),
    RatioAtMost(f64),
    AtLeast(f64),
    Under(f64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// There is no target.
    Shown,
}

impl Target {
    fn judge(self, found: Found) -> Verdict {
        let ratio = found.ratio.unwrap_or(f64::NAN);
        let is_met = match self {
            Self::None => return Verdict::Shown,
            Self::RatioAtLeast(bound) => ratio >= bound,
            Self::RatioAtMost(bound) => ratio <= bound,
            Self::AtLeast(bound) => found.lockd >= bound,
            Self::Under(bound) => found.lockd < bound,
        };
        if is_met { Verdict::Met } else { Verdict::Missed }
    }

    fn show(self, unit: Unit) -> String {
        match self {
            Self::None => "-".into(),
            Self::RatioAtLeast(bound) => format!("ratio >= {bound:.2}"),
            Self::RatioAtMost(bound) => format!("ratio <= {bound:.2}"),
            Self::AtLeast(bound) => format!(">= {}", unit.show(bound)),
            Self::Under(bound) => format!("< {}", unit.show(bound)),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Row {
    cells: [String; 6],
    verdict: Verdict,
}

impl Row {
    pub(crate) fn new(
        measure: impl Into<String>,
        unit: Unit,
        found: Found,
        target: Target,
    ) -> Self {
        let verdict = target.judge(found);
        let shown = match verdict {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::Shown => "-",
        };
        let cells = [
            measure.into(),
            found.floor.map_or_else(|| "-".into(), |value| unit.show(value)),
            unit.show(found.lockd),
            found.ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
            target.show(unit),
            shown.into(),
        ];
        Self { cells, verdict }
    }

    /// A measure that could not be made; it counts as missed.
    pub(crate) fn failed(measure: impl Into<String>) -> Self {
        let cells =
            [measure.into(), "-".into(), "-".into(), "-".into(), "-".into(), "FAILED".into()];
        Self { cells, verdict: Verdict::Missed }
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    /// What lockd is compared with.
    base: &'static str,
    rows: Vec<Row>,
}

impl Table {
    pub(crate) fn beside(base: &'static str) -> Self {
        Self { base, rows: Vec::new() }
    }

    pub(crate) fn extend(&mut self, rows: impl IntoIterator<Item = Row>) {
        self.rows.extend(rows);
    }

    pub(crate) fn missed(&self) -> usize {
        self.rows.iter().filter(|row| row.verdict == Verdict::Missed).count()
    }

    pub(crate) fn judged(&self) -> usize {
        self.rows.iter().filter(|row| row.verdict != Verdict::Shown).count()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings = ["measure", self.base, "lockd", "ratio", "target", "verdict"];
        let mut widths = headings.map(|heading| heading.chars().count());
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(&row.cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        line(out, &headings.map(String::from), &widths)?;
        let [first, figures @ ..] = widths;
        write!(out, "|-{:-<first$}-|", "")?;
        for (number, width) in figures.iter().enumerate() {
            // Figures to the right, words to the left.
            let end = if number < 3 { ':' } else { '-' };
            write!(out, "-{:-<width$}{end}|", "")?;
        }
        writeln!(out)?;
        self.rows.iter().try_for_each(|row| line(out, &row.cells, &widths))
    }
}

fn line(out: &mut fmt::Formatter<'_>, cells: &[String; 6], widths: &[usize; 6]) -> fmt::Result {
    for (number, (cell, width)) in cells.iter().zip(widths).enumerate() {
        if (1..4).contains(&number) {
            write!(out, "| {cell:>width$} ")?;
        } else {
            write!(out, "| {cell:<width$} ")?;
        }
    }
    writeln!(out, "|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_the_median_of_the_rounds_own() {
        // A round in which the whole machine was ten times slower changes nothing.
        let found = Found::paired(&[100.0, 10.0, 100.0], &[60.0, 6.0, 80.0]).unwrap();
        assert_eq!(found.floor, Some(100.0));
        assert!((found.lockd - 60.0).abs() < 1e-9);
        assert!((found.ratio.unwrap() - 0.6).abs() < 1e-9);
        assert_eq!(Found::paired(&[], &[]), None);
    }

    #[test]
    fn targets_are_judged_at_their_bounds() {
        let found = Found { floor: Some(100.0), lockd: 60.0, ratio: Some(0.6) };
        for (target, verdict) in [
            (Target::None, Verdict::Shown),
            (Target::RatioAtLeast(0.6), Verdict::Met),
            (Target::RatioAtLeast(0.61), Verdict::Missed),
            (Target::RatioAtMost(0.6), Verdict::Met),
            (Target::RatioAtMost(0.59), Verdict::Missed),
            (Target::AtLeast(60.0), Verdict::Met),
            (Target::AtLeast(60.1), Verdict::Missed),
            (Target::Under(60.1), Verdict::Met),
            (Target::Under(60.0), Verdict::Missed),
        ] {
            assert_eq!(target.judge(found), verdict, "{target:?}");
        }
    }

    #[test]
    fn a_missing_ratio_never_meets_a_target() {
        let found = Found { floor: None, lockd: 1.0, ratio: None };
        assert_eq!(Target::RatioAtLeast(0.0).judge(found), Verdict::Missed);
        assert_eq!(Target::RatioAtMost(9.0).judge(found), Verdict::Missed);
        let divided_by_nothing = Found::paired(&[0.0], &[0.0]).unwrap();
        assert_eq!(Target::RatioAtLeast(0.6).judge(divided_by_nothing), Verdict::Missed);
    }

    #[test]
    fn values_are_shown_in_the_unit_that_fits() {
        for (unit, value, text) in [
            (Unit::PerSecond, 12_345.6, "12346 /s"),
            (Unit::Seconds, 0.000_25, "250 µs"),
            (Unit::Seconds, 0.0125, "12.50 ms"),
            (Unit::Seconds, 2.5, "2.50 s"),
            (Unit::MegabytesPerSecond, 350.4, "350 MB/s"),
            (Unit::Bytes, 17_408.0, "17.0 KiB"),
            (Unit::Bytes, 300e6, "300.0 MB"),
        ] {
            assert_eq!(unit.show(value), text);
        }
    }

    #[test]
    fn the_table_is_markdown_with_straight_columns() {
        let mut table = Table::beside("floor");
        let found = Found { floor: Some(20_000.0), lockd: 15_000.0, ratio: Some(0.75) };
        table.extend([
            Row::new("cycle", Unit::PerSecond, found, Target::RatioAtLeast(0.6)),
            Row::new("latency", Unit::Seconds, Found::alone(&[0.0002]).unwrap(), Target::None),
            Row::failed("read"),
        ]);
        let expected = "\
| measure |    floor |    lockd | ratio | target        | verdict |
|---------|---------:|---------:|------:|---------------|---------|
| cycle   | 20000 /s | 15000 /s |  0.75 | ratio >= 0.60 | met     |
| latency |        - |   200 µs |     - | -             | -       |
| read    |        - |        - |     - | -             | FAILED  |
";
        assert_eq!(table.to_string(), expected);
        assert_eq!((table.missed(), table.judged()), (1, 2));
    }
}

//! Tables for people: columns under headings, on a terminal only. Programs get lines.

use comfy_table::{ContentArrangement, Table, presets};

/// Rows under headings; the headings only where they are wanted.
#[must_use]
pub fn table(headings: Option<&[&str]>, rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if let Some(headings) = headings {
        table.set_header(headings);
    }
    for row in rows {
        table.add_row(row.iter().map(|cell| visible(cell)).collect::<Vec<_>>());
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// A text that cannot move the cursor or change colours: others have chosen names and owners.
fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::table;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[test]
    fn columns_are_aligned_under_their_headings() {
        let rows = vec![row(&["a", "1"]), row(&["longer", "22"])];
        let text = table(Some(&["KEY", "TOKEN"]), rows.clone());
        assert_eq!(text, "KEY     TOKEN\na       1\nlonger  22");
        assert_eq!(table(None, rows), "a       1\nlonger  22");
    }

    #[test]
    fn a_name_cannot_draw_on_the_terminal() {
        let text = table(None, vec![row(&["\u{1b}[31mred\nnext", "x"])]);
        assert!(!text.contains('\u{1b}') && !text.contains('\n'), "{text:?}");
    }
}

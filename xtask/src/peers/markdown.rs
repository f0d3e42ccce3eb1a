//! Tables in Markdown, padded so that a terminal shows them as well.

/// A number with three digits, or all of a larger number's, which are set apart in thousands.
pub fn figure(number: f64) -> String {
    let decimals = match number.abs() {
        0.0..9.995 => 2,
        9.995..99.95 => 1,
        _ => 0,
    };
    let text = format!("{number:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

/// A table with a row for each of `rows`, which are as long as the heading.
pub fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = (0..heading.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([heading[column].chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells
            .zip(&widths)
            .map(|(cell, width)| format!("{cell}{}", " ".repeat(width - cell.chars().count())))
            .collect();
        format!("| {} |\n", padded.join(" | "))
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let mut text = line(&mut heading.iter().copied());
    text += &line(&mut rule.iter().map(String::as_str));
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_or_all_before_the_point() {
        let figures = [0.014, 9.99, 9.999, 47.0, 123.4, 62_576.0, 1_000_000.4].map(figure);
        assert_eq!(figures, ["0.01", "9.99", "10.0", "47.0", "123", "62,576", "1,000,000"]);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".to_owned(), "12 µs".to_owned()]];
        assert_eq!(
            table(&["engine", "n"], &rows),
            "| engine | n     |\n| ------ | ----- |\n| a      | 12 µs |\n"
        );
    }
}

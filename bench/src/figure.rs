//! Draws a report: one bar a series at its median, a line from its least to its greatest value; a panel
//! with a scale of its own for each thing that was measured on several sides.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::report::{Report, Series};

const STOCK: RGBColor = RGBColor(120, 130, 140);
const OURS: RGBColor = RGBColor(20, 110, 160);
const ROW: u32 = 26;

/// Draws `report` into an SVG file. Series that differ only in the last part of their names share a panel.
///
/// # Errors
/// When the file cannot be written.
pub fn draw(report: &Report, path: &Path) -> Result<()> {
    let mut panels: Vec<&str> = Vec::new();
    for series in &report.series {
        if !panels.contains(&thing(series)) {
            panels.push(thing(series));
        }
    }
    let rows = report.series.len() + 2 * panels.len();
    let height = 40 + ROW * u32::try_from(rows)?;
    let area = SVGBackend::new(path, (900, height)).into_drawing_area();
    let failed = |error: &dyn std::fmt::Display| anyhow!("{}: {error}", path.display());
    area.fill(&WHITE).map_err(|error| failed(&error))?;
    let title = format!("{} ({})", report.bench, report.server);
    let style = ("sans-serif", 16).into_font();
    area.draw(&Text::new(title, (12, 10), style))
        .map_err(|error| failed(&error))?;
    let mut top = 40i32;
    for name in panels {
        let group: Vec<&Series> = report
            .series
            .iter()
            .filter(|series| thing(series) == name)
            .collect();
        let unit = group.first().map_or("", |series| series.unit.as_str());
        top = panel(&area, &group, unit, top).map_err(|error| failed(&error))?;
    }
    area.present().map_err(|error| failed(&error))?;
    Ok(())
}

/// What a series measures: its name without the side.
fn thing(series: &Series) -> &str {
    series
        .name
        .rsplit_once('/')
        .map_or(series.name.as_str(), |(thing, _)| thing)
}

/// A value with about four digits.
fn digits(value: f64) -> String {
    match value {
        large if large >= 1000.0 => format!("{large:.0}"),
        middle if middle >= 10.0 => format!("{middle:.1}"),
        small => format!("{small:.3}"),
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn panel(area: &Area<'_>, group: &[&Series], unit: &str, mut top: i32) -> Result<i32> {
    const LEFT: i32 = 330;
    const WIDTH: f64 = 440.0;
    let failed = |error: &dyn std::fmt::Display| anyhow!("{error}");
    let most = group
        .iter()
        .flat_map(|series| series.values.iter().copied())
        .fold(f64::MIN_POSITIVE, f64::max);
    #[expect(clippy::cast_possible_truncation, reason = "pixels, bounded by WIDTH")]
    let x = |value: f64| LEFT + (value / most * WIDTH) as i32;
    let small = ("sans-serif", 13).into_font();
    area.draw(&Text::new(unit.to_owned(), (LEFT, top), small.clone()))
        .map_err(|error| failed(&error))?;
    let row = i32::try_from(ROW)?;
    top += row;
    for series in group {
        let colour = if series.name.contains("stock") {
            STOCK
        } else {
            OURS
        };
        let (low, high) = series
            .values
            .iter()
            .fold((f64::MAX, 0.0f64), |(low, high), value| {
                (low.min(*value), high.max(*value))
            });
        let bar = Rectangle::new(
            [(LEFT, top), (x(series.median()), top + row - 8)],
            colour.filled(),
        );
        area.draw(&bar).map_err(|error| failed(&error))?;
        if series.values.len() > 1 {
            let middle = top + (row - 8) / 2;
            let whisker = PathElement::new(vec![(x(low), middle), (x(high), middle)], BLACK);
            area.draw(&whisker).map_err(|error| failed(&error))?;
        }
        area.draw(&Text::new(
            series.name.clone(),
            (12, top + 2),
            small.clone(),
        ))
        .map_err(|error| failed(&error))?;
        let label = digits(series.median());
        area.draw(&Text::new(
            label,
            (x(high.max(series.median())) + 6, top + 2),
            small.clone(),
        ))
        .map_err(|error| failed(&error))?;
        top += row;
    }
    Ok(top + row)
}

//! The curves of several runs in one picture.

use std::path::Path;

use anyhow::{Result, ensure};
use indexmap::{IndexMap, IndexSet};
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::curves::{
    Area, COLUMNS, Curves, PANEL, TEXT, chart, epochs_with_room, title, values_with_room,
};
use crate::{files::whole_file, split::Split};

/// Height of a line of the legend, in pixels.
const LINE: u32 = 22;

/// The colors of the first runs; further ones have hues between them.
const COLORS: [RGBColor; 8] = [
    RGBColor(37, 99, 235),
    RGBColor(234, 88, 12),
    RGBColor(22, 163, 74),
    RGBColor(147, 51, 234),
    RGBColor(219, 39, 119),
    RGBColor(13, 148, 136),
    RGBColor(161, 98, 7),
    RGBColor(71, 85, 105),
];

/// The metrics of a run by name.
pub(crate) type Metrics = IndexMap<String, Curves>;

/// Draws the metrics of named runs over epochs as the picture `svg`: a legend, and a panel for each metric of
/// the training and of the validation.
///
/// # Errors
/// No run has a metric with a value, or the picture cannot be written.
pub(crate) fn draw(runs: &[(&str, &Metrics)], svg: &Path) -> Result<()> {
    whole_file::write(svg, picture(runs)?)
}

/// The text of the SVG file.
fn picture(runs: &[(&str, &Metrics)]) -> Result<String> {
    let names: IndexSet<&String> = runs
        .iter()
        .flat_map(|(_, metrics)| metrics.keys())
        .collect();
    let splits = [Split::Train, Split::Validation];
    let panels = names
        .into_iter()
        .flat_map(|name| splits.map(|split| (name, split)));
    let panels: Vec<_> = panels
        .filter(|(name, split)| {
            runs.iter()
                .any(|(_, metrics)| !lines(metrics, name, *split).is_empty())
        })
        .collect();
    ensure!(
        !panels.is_empty(),
        "the runs have no metric to draw: none has finished an epoch"
    );
    let rows = panels.len().div_ceil(COLUMNS);
    let legend_height = LINE * (runs.len() as u32 + 1);
    let size = (
        PANEL.0 * COLUMNS as u32,
        legend_height + PANEL.1 * rows as u32,
    );
    let mut text = String::new();
    {
        let whole = SVGBackend::with_string(&mut text, size).into_drawing_area();
        whole.fill(&WHITE)?;
        let (top, below) = whole.split_vertically(legend_height);
        legend(&top, runs)?;
        for (area, (name, split)) in below.split_evenly((rows, COLUMNS)).iter().zip(panels) {
            panel(area, runs, name, split)?;
        }
        whole.present()?;
    }
    Ok(text)
}

fn lines(metrics: &Metrics, name: &str, split: Split) -> Vec<Vec<(f64, f64)>> {
    metrics
        .get(name)
        .map(|curves| curves.segments(split))
        .unwrap_or_default()
}

fn color(run: usize) -> RGBAColor {
    // The golden ratio spreads any number of hues.
    let hue = || HSLColor((run as f64 * 0.618_034).fract(), 0.6, 0.4).to_rgba();
    COLORS.get(run).map_or_else(hue, Color::to_rgba)
}

/// A line per run, with its color.
fn legend(area: &Area, runs: &[(&str, &Metrics)]) -> Result<()> {
    let style = ("sans-serif", 14).into_font().color(&TEXT);
    let style = style.pos(Pos::new(HPos::Left, VPos::Center));
    for (run, (name, _)) in runs.iter().enumerate() {
        let height = (LINE * (run as u32 + 1)) as i32;
        area.draw(&Circle::new((64, height + 1), 5, color(run).filled()))?;
        area.draw(&Text::new((*name).to_owned(), (76, height), style.clone()))?;
    }
    Ok(())
}

/// Draws a metric of a split of all runs.
fn panel(area: &Area, runs: &[(&str, &Metrics)], name: &str, split: Split) -> Result<()> {
    title(area, &format!("{name}, {}", split.name()), 58)?;
    let lines: Vec<_> = runs
        .iter()
        .map(|(_, metrics)| lines(metrics, name, split))
        .collect();
    let points = || lines.iter().flatten().flatten();
    let epochs = epochs_with_room(points().map(|point| point.0));
    let values = values_with_room(points().map(|point| point.1));
    let mut chart = chart(area, epochs, values)?;
    for (run, lines) in lines.iter().enumerate() {
        for line in lines {
            chart.draw_series(LineSeries::new(
                line.iter().copied(),
                color(run).stroke_width(2),
            ))?;
            // A line of one point is not visible.
            let alone = line.iter().filter(|_| line.len() == 1);
            chart.draw_series(alone.map(|point| Circle::new(*point, 3, color(run).filled())))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::curves::parse;

    fn metrics(losses: &[f64]) -> Metrics {
        let lines = (1..).zip(losses).map(|(epoch, loss)| {
            format!("{{\"split\":\"train\",\"epoch\":{epoch},\"loss\":{loss}}}\n\
                     {{\"split\":\"validation\",\"epoch\":{epoch},\"loss\":{loss},\"top\":{loss}}}\n")
        });
        parse(&lines.collect::<String>()).unwrap()
    }

    #[test]
    fn each_run_has_a_curve_in_each_panel() {
        let [long, short] = [metrics(&[3.0, 2.0, 1.0]), metrics(&[4.0])];
        let svg = picture(&[("runs/<a>", &long), ("b", &short)]).unwrap();
        let count = |part: &str| svg.matches(part).count();
        assert_eq!(
            [
                "\nloss, train\n",
                "\nloss, validation\n",
                "\ntop, validation\n"
            ]
            .map(count),
            [1; 3]
        );
        assert_eq!(count("\nruns/&lt;a&gt;\n"), 1, "{svg}");
        // A dot in the legend and a line per panel; a dot per panel instead of a line of one point.
        let [first, second] = ["fill=\"#2563EB\"", "fill=\"#EA580C\""].map(count);
        assert_eq!([first, second], [1, 4], "{svg}");
        assert_eq!(count("stroke=\"#2563EB\""), 3, "a line per panel");
    }

    #[test]
    fn runs_without_values_are_refused_and_any_number_has_colors() {
        let none = Metrics::new();
        assert!(
            picture(&[("a", &none)])
                .unwrap_err()
                .to_string()
                .contains("none has finished an epoch")
        );
        let colors: std::collections::BTreeSet<_> =
            (0..64).map(|run| format!("{:?}", color(run))).collect();
        assert_eq!(colors.len(), 64);
    }
}

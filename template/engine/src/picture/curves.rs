//! The metrics of a run as curves over epochs.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, ensure};
use indexmap::IndexMap;
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use serde_json::{Map, Value};

use crate::{files::whole_file, split::Split};

/// Size in pixels of the panel of one metric.
pub(super) const PANEL: (u32, u32) = (520, 340);

/// Panels per row.
pub(super) const COLUMNS: usize = 2;

/// Maximum number of epochs for which each value has a dot.
const DOTTED: usize = 40;

/// Fields of a line that are not metrics, in addition to those that end in `seconds`.
const NOT_METRICS: [&str; 11] = [
    "split",
    "epoch",
    "step",
    "examples",
    "weights",
    "examples_per_second",
    "tokens_per_second",
    "flops_per_second",
    "flops_complete",
    "mfu",
    "data_wait",
];

pub(super) const TEXT: RGBColor = RGBColor(51, 65, 85);
pub(super) const GRID: RGBColor = RGBColor(226, 232, 240);

/// The splits in drawing order, with their colors.
const SPLITS: [(&str, RGBColor); 3] = [
    ("train", RGBColor(37, 99, 235)),
    ("validation", RGBColor(234, 88, 12)),
    ("test", RGBColor(22, 163, 74)),
];

/// Draws the metrics of `log` (`metrics.jsonl`) as the picture `svg`, with one panel per metric.
///
/// Training and validation are lines over epochs; the test is a dot, with its value in the legend. The later
/// line of a repeated epoch counts, as after a resume. A missing or non-finite value (JSON's `null`) leaves
/// a gap.
///
/// # Errors
/// The log cannot be read, a line is not a JSON object, there is no metric, or the picture cannot be
/// written.
pub fn draw(log: &Path, svg: &Path) -> Result<()> {
    let text = fs::read_to_string(log).with_context(|| format!("cannot read {}", log.display()))?;
    let metrics = parse(&text).with_context(|| format!("cannot draw {}", log.display()))?;
    whole_file::write(svg, picture(&metrics)?)
}

/// The values of a metric by split and epoch.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Curves([BTreeMap<u32, f64>; SPLITS.len()]);

/// The curves of each metric, in the order of the log.
///
/// # Errors
/// A line is not a JSON object, or there is no metric.
pub(crate) fn parse(text: &str) -> Result<IndexMap<String, Curves>> {
    let mut metrics = parse_all(text)?;
    metrics.retain(|_, curves| curves.values().any(f64::is_finite));
    ensure!(!metrics.is_empty(), "it holds no metric with a value");
    Ok(metrics)
}

/// As [`parse`], with metrics of which no value is finite.
///
/// # Errors
/// A line is not a JSON object.
pub(crate) fn parse_all(text: &str) -> Result<IndexMap<String, Curves>> {
    let mut metrics = IndexMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let parsed = serde_json::from_str::<Map<String, Value>>(line);
        // A killed run may leave a partial last line.
        if parsed.is_err() && number == text.lines().count() && !text.ends_with('\n') {
            break;
        }
        add(
            &mut metrics,
            &parsed.with_context(|| format!("line {number} is no JSON object"))?,
        );
    }
    Ok(metrics)
}

/// Adds the values of a line, unless it lacks an epoch or a known split.
fn add(metrics: &mut IndexMap<String, Curves>, line: &Map<String, Value>) {
    let split = SPLITS
        .iter()
        .position(|(name, _)| line.get("split").is_some_and(|split| split == name));
    let epoch = line
        .get("epoch")
        .and_then(Value::as_u64)
        .and_then(|epoch| u32::try_from(epoch).ok());
    let (Some(split), Some(epoch)) = (split, epoch) else {
        return;
    };
    for (name, value) in line {
        let measures = !NOT_METRICS.contains(&name.as_str()) && !name.ends_with("seconds");
        if measures && (value.is_number() || value.is_null()) {
            let curves = metrics.entry(name.clone()).or_default();
            curves.0[split].insert(epoch, value.as_f64().unwrap_or(f64::NAN));
        }
    }
}

impl Curves {
    fn values(&self) -> impl Iterator<Item = f64> {
        self.0.iter().flat_map(BTreeMap::values).copied()
    }

    /// The range of epochs, with margins.
    fn epochs(&self) -> (f64, f64) {
        let epochs = || {
            self.0
                .iter()
                .flat_map(BTreeMap::keys)
                .copied()
                .map(f64::from)
        };
        epochs_with_room(epochs())
    }

    /// The range of values, with margins.
    fn range(&self) -> (f64, f64) {
        values_with_room(self.values().filter(|value| value.is_finite()))
    }

    /// The values of a split by epoch; not finite where the log has none.
    pub(crate) fn of(&self, split: Split) -> &BTreeMap<u32, f64> {
        &self.0[place(split)]
    }

    /// The segments of the curve of a split between gaps, with points of epoch and value.
    pub(super) fn segments(&self, split: Split) -> Vec<Vec<(f64, f64)>> {
        self.lines(place(split))
    }

    /// The segments of a split's curve between gaps.
    fn lines(&self, split: usize) -> Vec<Vec<(f64, f64)>> {
        let (mut lines, mut line) = (Vec::new(), Vec::new());
        let mut previous = None;
        for (epoch, value) in &self.0[split] {
            let follows = previous.is_none_or(|previous| previous + 1 == *epoch);
            if !follows || !value.is_finite() {
                lines.push(std::mem::take(&mut line));
            }
            if value.is_finite() {
                line.push((f64::from(*epoch), *value));
            }
            previous = Some(*epoch);
        }
        lines.push(line);
        lines.retain(|line| !line.is_empty());
        lines
    }
}

/// The place of a split in [`SPLITS`].
fn place(split: Split) -> usize {
    match split {
        Split::Train => 0,
        Split::Validation => 1,
        Split::Test => 2,
    }
}

/// The range of epochs, with margins.
pub(super) fn epochs_with_room(epochs: impl Iterator<Item = f64>) -> (f64, f64) {
    let (first, last) = bounds(epochs);
    let room = if first == last {
        0.5
    } else {
        (last - first) * 0.03
    };
    (first - room, last + room)
}

/// The range of finite values, with margins.
pub(super) fn values_with_room(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = bounds(values);
    let room = if low == high {
        (low.abs() * 0.1).max(0.01)
    } else {
        (high - low) * 0.06
    };
    (low - room, high + room)
}

/// Minimum and maximum of finite `values`.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(super) type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

/// The text of the SVG file.
fn picture(metrics: &IndexMap<String, Curves>) -> Result<String> {
    let columns = metrics.len().min(COLUMNS);
    let rows = metrics.len().div_ceil(columns);
    let size = (PANEL.0 * columns as u32, PANEL.1 * rows as u32);
    let mut text = String::new();
    {
        let whole = SVGBackend::with_string(&mut text, size).into_drawing_area();
        whole.fill(&WHITE)?;
        for (area, (name, curves)) in whole.split_evenly((rows, columns)).iter().zip(metrics) {
            panel(area, name, curves)?;
        }
        whole.present()?;
    }
    Ok(text)
}

/// Draws a metric: a title, a legend, axes and curves.
fn panel(area: &Area, name: &str, curves: &Curves) -> Result<()> {
    title(area, name, 58)?;
    legend(area, curves)?;
    let mut chart = chart(area, curves.epochs(), curves.range())?;
    for split in 0..SPLITS.len() {
        curve(&mut chart, curves, split)?;
    }
    Ok(())
}

/// Draws the names of the splits that have values, right-aligned in the title line, with the test value.
fn legend(area: &Area, curves: &Curves) -> Result<()> {
    let style = ("sans-serif", 14).into_font().color(&TEXT);
    let style = style.pos(Pos::new(HPos::Left, VPos::Center));
    let mut right = PANEL.0 as i32 - 16;
    for (split, (name, color)) in SPLITS.iter().enumerate().rev() {
        let Some(last) = curves.0[split].values().last() else {
            continue;
        };
        let label = match *name {
            "test" => format!("{name} {last:.4}"),
            name => name.to_owned(),
        };
        // About 7 pixels per letter, depending on the viewer's font.
        let left = right - 7 * label.len() as i32;
        area.draw(&Text::new(label, (left, 24), style.clone()))?;
        area.draw(&Circle::new((left - 11, 25), 5, color.filled()))?;
        right = left - 30;
    }
    Ok(())
}

/// Draws a title that begins at the column `left`.
pub(super) fn title(area: &Area, text: &str, left: i32) -> Result<()> {
    let style = ("sans-serif", 19)
        .into_font()
        .style(FontStyle::Bold)
        .color(&TEXT);
    Ok(area.draw(&Text::new(text.to_owned(), (left, 14), style))?)
}

/// The chart of a panel below its title, with its axes.
pub(super) fn chart<'a, 'b>(
    area: &'a Area<'b>,
    epochs: (f64, f64),
    values: (f64, f64),
) -> Result<Chart<'a, 'b>> {
    let mut chart = ChartBuilder::on(area)
        .margin_top(46)
        .margin_right(22)
        .margin_bottom(10)
        .margin_left(6)
        .x_label_area_size(40)
        .y_label_area_size(52)
        .build_cartesian_2d(epochs.0..epochs.1, values.0..values.1)?;
    axes(&mut chart)?;
    Ok(chart)
}

fn axes(chart: &mut Chart) -> Result<()> {
    let labels = ("sans-serif", 13).into_font().color(&TEXT);
    // An axis of few epochs also has fractional ticks.
    let whole = |epoch: &f64| {
        let is_whole = (epoch - epoch.round()).abs() < 1e-6;
        if is_whole {
            format!("{epoch:.0}")
        } else {
            String::new()
        }
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(GRID)
        .x_labels(10)
        .y_labels(6)
        .x_label_formatter(&whole)
        .x_desc("epoch")
        .label_style(labels.clone())
        .axis_desc_style(labels)
        .draw()?;
    Ok(())
}

/// Draws a split: lines for training and validation, a larger dot for the test.
fn curve(chart: &mut Chart, curves: &Curves, split: usize) -> Result<()> {
    let (name, color) = SPLITS[split];
    let lines = curves.lines(split);
    if name == "test" {
        return points(chart, &lines.concat(), color);
    }
    for line in &lines {
        let dotted = line.len() == 1 || curves.0[split].len() <= DOTTED;
        chart.draw_series(LineSeries::new(line.iter().copied(), color.stroke_width(2)))?;
        if dotted {
            let dots = line
                .iter()
                .map(|point| Circle::new(*point, 3, color.filled()));
            chart.draw_series(dots)?;
        }
    }
    Ok(())
}

/// Draws points with a white ring, to stand out from a line.
fn points(chart: &mut Chart, points: &[(f64, f64)], color: RGBColor) -> Result<()> {
    for (radius, color) in [(7, WHITE), (5, color)] {
        let dots = points
            .iter()
            .map(|point| Circle::new(*point, radius, color.filled()));
        chart.draw_series(dots)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"{"split":"train","epoch":1,"step":10,"examples":99,"loss":2.0,"accuracy":0.5,"seconds":1.5}
{"split":"validation","epoch":1,"step":10,"examples":9,"loss":2.5,"accuracy":0.25,"seconds":0.5}
{"split":"train","epoch":2,"step":20,"examples":99,"loss":1.0,"accuracy":0.75,"data_seconds":1.5}
{"split":"test","epoch":2,"step":20,"examples":9,"loss":1.25,"accuracy":0.5,"note":"best"}
"#;

    fn map<const N: usize>(values: [(u32, f64); N]) -> BTreeMap<u32, f64> {
        values.into()
    }

    fn drawn(log: &str) -> Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("a.jsonl"), folder.path().join("a.svg"));
        fs::write(&from, log).unwrap();
        draw(&from, &to)?;
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        Ok(fs::read_to_string(to).unwrap())
    }

    #[test]
    fn a_log_has_curves_for_each_metric() {
        let metrics = parse(LOG).unwrap();
        assert_eq!(metrics.keys().collect::<Vec<_>>(), ["loss", "accuracy"]);
        let expected = [map([(1, 2.0), (2, 1.0)]), map([(1, 2.5)]), map([(2, 1.25)])];
        assert_eq!(metrics["loss"], Curves(expected));
    }

    #[test]
    fn an_epoch_that_was_done_again_counts_once() {
        let again = format!("{LOG}{{\"split\":\"train\",\"epoch\":2,\"loss\":0.5}}\n");
        assert_eq!(
            parse(&again).unwrap()["loss"].0[0],
            map([(1, 2.0), (2, 0.5)])
        );
    }

    #[test]
    fn what_is_missing_or_not_finite_leaves_a_gap() {
        let line = |epoch: u32, loss: &str| {
            format!("{{\"split\":\"train\",\"epoch\":{epoch},\"loss\":{loss},\"empty\":null}}\n")
        };
        let lines = [
            line(1, "1"),
            line(2, "null"),
            line(3, "3"),
            line(4, "4"),
            line(6, "6"),
        ];
        let metrics = parse(&lines.concat()).unwrap();
        assert_eq!(metrics.keys().collect::<Vec<_>>(), ["loss"]);
        let expected = [
            vec![(1.0, 1.0)],
            vec![(3.0, 3.0), (4.0, 4.0)],
            vec![(6.0, 6.0)],
        ];
        assert_eq!(metrics["loss"].lines(0), expected);
        assert_eq!(metrics["loss"].epochs(), (0.85, 6.15));
    }

    #[test]
    fn a_picture_has_a_panel_a_metric_with_its_curves() {
        let svg = drawn(LOG).unwrap();
        assert!(
            svg.starts_with("<svg width=\"1040\" height=\"340\""),
            "{svg}"
        );
        let count = |part: &str| svg.matches(part).count();
        assert_eq!([count("\nloss\n"), count("\naccuracy\n")], [1, 1], "{svg}");
        assert_eq!(
            [
                count("\ntrain\n"),
                count("\nvalidation\n"),
                count("\ntest ")
            ],
            [2; 3]
        );
        assert_eq!(count("\ntest 1.2500\n"), 1);
        // Two values of train, one of validation, the legend's dot, in each panel.
        assert_eq!(
            [count("fill=\"#2563EB\""), count("fill=\"#EA580C\"")],
            [6, 4]
        );
    }

    #[test]
    fn one_epoch_and_equal_values_are_drawn() {
        let svg = drawn("{\"split\":\"train\",\"epoch\":1,\"loss\":0}\n").unwrap();
        assert!(svg.contains("loss") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn half_a_line_at_the_end_is_left_out_and_elsewhere_an_error() {
        assert_eq!(
            parse(&format!("{LOG}{{\"spl")).unwrap(),
            parse(LOG).unwrap()
        );
        for (log, line) in [
            (format!("{{\"spl\n{LOG}"), 1),
            (format!("{LOG}{{\"spl\n"), 5),
        ] {
            let error = format!("{:#}", drawn(&log).unwrap_err());
            let expected = format!("a.jsonl: line {line} is no JSON object");
            assert!(error.contains(&expected), "{error}");
        }
    }

    #[test]
    fn a_log_without_values_is_an_error() {
        for log in [
            "",
            "{\"split\":\"train\",\"epoch\":1,\"loss\":null}\n",
            "{\"loss\":1}\n",
        ] {
            let error = drawn(log).unwrap_err();
            assert!(
                format!("{error:#}").contains("it holds no metric"),
                "{error:#}"
            );
        }
    }
}

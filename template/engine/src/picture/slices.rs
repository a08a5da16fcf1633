//! The runs of a sweep in one picture: a panel per option that varies, with its values across and the metric
//! upwards.
//!
//! Lines join runs that differ in the option of the panel alone, so that a grid shows how options interact.
//! Source: `optuna.visualization.plot_slice`.

use std::path::Path;

use anyhow::Result;
use indexmap::IndexMap;
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::curves::{Area, COLUMNS, GRID, PANEL, TEXT, values_with_room};
use crate::files::whole_file;

/// Height of a line of text above the panels, in pixels.
const LINE: i32 = 22;

/// Approximate width of a letter, in pixels.
const LETTER: f64 = 7.0;

/// Maximum number of values that are marked on an axis each.
const MOST_MARKED: usize = 8;

/// Maximum number of runs with their numbers beside them.
const MOST_NUMBERED: usize = 16;

/// Least space between the middles of labels of an axis, in pixels.
const ROOM: i32 = 44;

/// Values this many times as far from the best as the median are drawn at the border.
const FAR: f64 = 4.0;

const BEST: RGBColor = RGBColor(234, 88, 12);
const JOIN: RGBColor = RGBColor(148, 163, 184);
/// The colors of the second and of the last run by rank.
const RANKS: [RGBColor; 2] = [RGBColor(30, 64, 175), RGBColor(191, 219, 254)];

/// An option that varies.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub name: String,
    pub scale: Scale,
}

/// The scale of the values of an option.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scale {
    Linear,
    /// Of numbers above 0.
    Logarithmic,
    /// Of text.
    Categories(Vec<String>),
}

/// A run.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// Its number.
    pub run: usize,
    /// The place of its value on each axis.
    pub at: Vec<f64>,
    /// Its metric, finite.
    pub value: f64,
}

impl Axis {
    /// The place of a value on the axis.
    pub fn place(&self, text: &str) -> f64 {
        let number = || text.parse().unwrap_or(0.0);
        match &self.scale {
            Scale::Linear => number(),
            Scale::Logarithmic => f64::log10(number()),
            Scale::Categories(names) => {
                names.iter().position(|name| name == text).unwrap_or(0) as f64
            }
        }
    }

    /// The range of places, with margins.
    fn range(&self, points: &[Point], axis: usize) -> (f64, f64) {
        let places = points.iter().map(|point| point.at[axis]);
        let (low, high) = match &self.scale {
            Scale::Categories(names) => (0.0, names.len() as f64 - 1.0),
            _ => places.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), place| {
                (low.min(place), high.max(place))
            }),
        };
        let room = match high > low {
            true => (high - low) * 0.08,
            false => 0.5,
        };
        (low - room, high + room)
    }

    /// Places with labels, from the least.
    fn ticks(&self, points: &[Point], axis: usize) -> Vec<(f64, String)> {
        let (low, high) = self.range(points, axis);
        let mut places: Vec<f64> = points.iter().map(|point| point.at[axis]).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let is_log = self.scale == Scale::Logarithmic;
        if let Scale::Categories(names) = &self.scale {
            return (0..).map(f64::from).zip(names.iter().cloned()).collect();
        }
        if places.len() > MOST_MARKED {
            places = match is_log {
                true => decades(low, high),
                false => steps(low, high),
            };
        }
        let label = |place: f64| match is_log {
            true => label(10_f64.powf(place)),
            false => label(place),
        };
        places
            .into_iter()
            .map(|place| (place, label(place)))
            .collect()
    }
}

/// Multiples of 1, 2 or 5 powers of ten between two numbers.
fn steps(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = step
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    let first = (low / step).ceil();
    let ticks = (0..20).map(|index| (first + f64::from(index)) * step);
    ticks.take_while(|tick| *tick <= high).collect()
}

/// Logarithms of powers of ten between two logarithms, and of 2 and 5 times them over less than three decades.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let factors: &[f64] = match high - low < 3.0 {
        true => &[1.0, 2.0, 5.0],
        false => &[1.0],
    };
    let decades = low.floor() as i32..=high.ceil() as i32;
    let ticks = decades.flat_map(|decade| {
        factors
            .iter()
            .map(move |factor| f64::from(decade) + factor.log10())
    });
    ticks.filter(|tick| (low..=high).contains(tick)).collect()
}

/// A number with at most four digits.
fn label(number: f64) -> String {
    let rounded: f64 = format!("{number:.3e}").parse().unwrap_or(number);
    match rounded == 0.0 || (1e-3..1e5).contains(&rounded.abs()) {
        true => format!("{rounded}"),
        false => format!("{rounded:e}"),
    }
}

/// Draws the runs as the picture `svg`: `points` by rank, the best first, at least one; `legend` describes it.
///
/// # Errors
/// The picture cannot be written.
pub(crate) fn draw(
    axes: &[Axis],
    points: &[Point],
    title: &str,
    legend: &str,
    svg: &Path,
) -> Result<()> {
    whole_file::write(svg, picture(axes, points, title, legend)?)
}

/// The text of the SVG file.
fn picture(axes: &[Axis], points: &[Point], title: &str, legend: &str) -> Result<String> {
    let columns = axes.len().clamp(1, COLUMNS);
    let rows = axes.len().div_ceil(columns);
    let width = PANEL.0 * columns as u32;
    let limit = limit(points);
    let notes = notes(axes, points, limit);
    let legend = wrapped(legend, width);
    let head = LINE * (legend.len() + notes.len()) as i32 + 48;
    let mut text = String::new();
    {
        let size = (width, head as u32 + PANEL.1 * rows as u32);
        let whole = SVGBackend::with_string(&mut text, size).into_drawing_area();
        whole.fill(&WHITE)?;
        let (top, below) = whole.split_vertically(head);
        header(&top, title, &legend, &notes)?;
        for (axis, area) in (0..axes.len()).zip(below.split_evenly((rows, columns))) {
            panel(&area, axes, axis, points, limit)?;
        }
        whole.present()?;
    }
    Ok(text)
}

/// The value beyond which runs are drawn at the border, so that the others can be told apart; `None` if all fit.
fn limit(points: &[Point]) -> Option<f64> {
    let (best, worst) = (points.first()?.value, points.last()?.value);
    let median = points[points.len() / 2].value;
    let limit = best + (median - best) * FAR;
    let is_far = median != best && (worst - best).abs() > (limit - best).abs();
    is_far.then_some(limit)
}

/// The value at which a run is drawn, and whether that is its own.
fn shown(value: f64, best: f64, limit: Option<f64>) -> (f64, bool) {
    match limit {
        Some(limit) if (value - best).abs() > (limit - best).abs() => (limit, false),
        _ => (value, true),
    }
}

fn notes(axes: &[Axis], points: &[Point], limit: Option<f64>) -> Vec<String> {
    let best = points[0].value;
    let far = points
        .iter()
        .filter(|point| !shown(point.value, best, limit).1);
    let far = match far.count() {
        0 => None,
        1 => Some("a ring at the border: a run beyond the axis".to_owned()),
        far => Some(format!("rings at the border: {far} runs beyond the axis")),
    };
    let is_joined = axes.len() > 1 && (0..axes.len()).any(|axis| !joined(points, axis).is_empty());
    let joined = is_joined.then(|| "lines join runs that differ in one option alone".to_owned());
    joined.into_iter().chain(far).collect()
}

/// Lines of at most the width of the picture, broken at commas.
fn wrapped(text: &str, width: u32) -> Vec<String> {
    let most = (f64::from(width - 100) / LETTER) as usize;
    let mut lines: Vec<String> = Vec::new();
    for part in text.split_inclusive(", ") {
        match lines.last_mut() {
            Some(line) if line.chars().count() + part.chars().count() <= most => *line += part,
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

fn header(area: &Area, title: &str, legend: &[String], notes: &[String]) -> Result<()> {
    let bold = ("sans-serif", 19)
        .into_font()
        .style(FontStyle::Bold)
        .color(&TEXT);
    area.draw(&Text::new(title.to_owned(), (58, 14), bold))?;
    let style = ("sans-serif", 14).into_font().color(&TEXT);
    let style = style.pos(Pos::new(HPos::Left, VPos::Center));
    let lines = legend.iter().chain(notes);
    for (line, text) in (0..).zip(lines) {
        let middle = 52 + LINE * line;
        area.draw(&Text::new(
            text.trim_end().to_owned(),
            (76, middle),
            style.clone(),
        ))?;
        if line == 0 {
            area.draw(&Circle::new((64, middle + 1), 5, BEST.filled()))?;
        }
    }
    Ok(())
}

/// Groups of at least two points that differ on one axis alone, along that axis.
fn joined(points: &[Point], axis: usize) -> Vec<Vec<&Point>> {
    let mut groups: IndexMap<Vec<u64>, Vec<&Point>> = IndexMap::new();
    for point in points {
        let others = point
            .at
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != axis);
        let others = others.map(|(_, place)| place.to_bits()).collect();
        groups.entry(others).or_default().push(point);
    }
    let mut groups: Vec<_> = groups
        .into_values()
        .filter(|group| group.len() > 1)
        .collect();
    for group in &mut groups {
        group.sort_by(|left, right| left.at[axis].total_cmp(&right.at[axis]));
    }
    groups
}

/// The color of a run by its rank from 1, of `last`.
fn color(rank: usize, last: usize) -> RGBColor {
    let share = (rank as f64 - 1.0) / (last as f64 - 1.0).max(1.0);
    let mixed =
        |from: u8, to: u8| (f64::from(from) + (f64::from(to) - f64::from(from)) * share) as u8;
    let [from, to] = RANKS;
    RGBColor(
        mixed(from.0, to.0),
        mixed(from.1, to.1),
        mixed(from.2, to.2),
    )
}

/// Draws the runs over the values of an option.
fn panel(
    area: &Area,
    axes: &[Axis],
    axis: usize,
    points: &[Point],
    limit: Option<f64>,
) -> Result<()> {
    let best = points[0].value;
    let at = |point: &Point| (point.at[axis], shown(point.value, best, limit).0);
    let across = axes[axis].range(points, axis);
    let up = values_with_room(points.iter().map(|point| at(point).1));
    let mut chart = ChartBuilder::on(area)
        .margin_top(8)
        .margin_right(22)
        .margin_bottom(10)
        .margin_left(6)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(across.0..across.1, up.0..up.1)?;
    let labels = ("sans-serif", 13).into_font().color(&TEXT);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(GRID)
        .y_labels(6)
        .y_label_formatter(&|value| label(*value))
        .label_style(labels.clone())
        .draw()?;
    let below = labels.pos(Pos::new(HPos::Center, VPos::Top));
    let numbers = ("sans-serif", 11).into_font().color(&TEXT);
    let numbers = numbers.pos(Pos::new(HPos::Left, VPos::Center));
    let low = chart.plotting_area().map_coordinate(&(across.0, up.0));
    let mut previous = None;
    for (place, text) in axes[axis].ticks(points, axis) {
        let (x, y) = chart.plotting_area().map_coordinate(&(place, up.0));
        if previous.is_some_and(|previous| x - previous < ROOM) {
            continue;
        }
        previous = Some(x);
        chart.draw_series(LineSeries::new([(place, up.0), (place, up.1)], GRID))?;
        write(area, (x, y + 6), &text, &below)?;
    }
    let (right, _) = chart.plotting_area().map_coordinate(&(across.1, up.0));
    write(
        area,
        (i32::midpoint(low.0, right), low.1 + 26),
        &axes[axis].name,
        &below,
    )?;
    for group in joined(points, axis) {
        let line = group.into_iter().map(at);
        chart.draw_series(LineSeries::new(line, JOIN.stroke_width(1)))?;
    }
    // The best is above all others.
    for (rank, point) in points.iter().enumerate().rev() {
        let color = if rank == 0 {
            BEST
        } else {
            color(rank, points.len() - 1)
        };
        let radius = if rank == 0 { 6 } else { 4 };
        let style = match shown(point.value, best, limit).1 {
            true => color.filled(),
            false => color.stroke_width(2),
        };
        chart.draw_series([Circle::new(at(point), radius + 2, WHITE.filled())])?;
        chart.draw_series([Circle::new(at(point), radius, style)])?;
    }
    if points.len() <= MOST_NUMBERED {
        let mut written: Vec<(i32, i32)> = Vec::new();
        for point in points {
            let (x, y) = chart.plotting_area().map_coordinate(&at(point));
            let is_over = |(left, top): &(i32, i32)| (x - left).abs() < 16 && (y - top).abs() < 11;
            // Of numbers over each other, that of the better run.
            if !written.iter().any(is_over) {
                write(area, (x + 8, y - 7), &point.run.to_string(), &numbers)?;
                written.push((x, y));
            }
        }
    }
    Ok(())
}

/// Writes text at a place in pixels of the whole picture.
fn write(area: &Area, (x, y): (i32, i32), text: &str, style: &TextStyle) -> Result<()> {
    let (across, up) = area.get_pixel_range();
    let place = (x - across.start, y - up.start);
    Ok(area.draw(&Text::new(text.to_owned(), place, style.clone()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(name: &str, scale: Scale) -> Axis {
        Axis {
            name: name.to_owned(),
            scale,
        }
    }

    fn points(values: &[(&[f64], f64)]) -> Vec<Point> {
        let point = |(run, (at, value)): (usize, &(&[f64], f64))| Point {
            run,
            at: at.to_vec(),
            value: *value,
        };
        (1..).zip(values).map(point).collect()
    }

    #[test]
    fn one_option_has_a_line_through_all_runs() {
        let points = points(&[(&[-2.0], 0.9), (&[-1.0], 0.5), (&[-3.0], 0.4)]);
        let axes = [axis("learning_rate", Scale::Logarithmic)];
        let svg = picture(
            &axes,
            &points,
            "validation.accuracy of 3 runs",
            "run 1: 0.9",
        )
        .unwrap();
        let count = |part: &str| svg.matches(part).count();
        let labels = [
            "\n0.001\n",
            "\n0.01\n",
            "\n0.1\n",
            "\nlearning_rate\n",
            "\nrun 1: 0.9\n",
        ];
        assert_eq!(labels.map(count), [1; 5], "{svg}");
        assert_eq!(count("stroke=\"#94A3B8\""), 1, "a line: {svg}");
        assert_eq!(
            count("fill=\"#EA580C\""),
            2,
            "the best, and in the legend: {svg}"
        );
        assert!(svg.starts_with("<svg width=\"520\""), "{svg}");
    }

    #[test]
    fn runs_that_differ_in_one_option_alone_are_joined() {
        let grid = points(&[
            (&[0.0, 1.0], 1.0),
            (&[1.0, 1.0], 2.0),
            (&[0.0, 2.0], 3.0),
            (&[1.0, 2.0], 4.0),
        ]);
        let order = |axis| -> Vec<Vec<usize>> {
            let groups = joined(&grid, axis).into_iter();
            groups
                .map(|group| group.iter().map(|point| point.run).collect())
                .collect()
        };
        assert_eq!(order(0), [[1, 2], [3, 4]]);
        assert_eq!(order(1), [[1, 3], [2, 4]]);
        let categories = Scale::Categories(vec!["constant".to_owned(), "cosine".to_owned()]);
        let axes = [axis("schedule", categories), axis("epochs", Scale::Linear)];
        assert_eq!(axes[0].place("cosine"), 1.0);
        let svg = picture(&axes, &grid, "loss", "run 1").unwrap();
        for part in ["\ncosine\n", "\nepochs\n", "lines join runs"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
    }

    #[test]
    fn a_run_far_from_the_others_is_at_the_border() {
        let values: [(&[f64], f64); 5] = [
            (&[1.0], 0.1),
            (&[2.0], 0.2),
            (&[3.0], 0.3),
            (&[4.0], 0.4),
            (&[5.0], 1e9),
        ];
        let points = points(&values);
        let limit = limit(&points);
        assert_eq!(shown(1e9, 0.1, limit), (limit.unwrap(), false));
        assert_eq!(shown(0.4, 0.1, limit), (0.4, true));
        assert!((limit.unwrap() - 0.9).abs() < 1e-9);
        let svg = picture(&[axis("seed", Scale::Linear)], &points, "loss", "").unwrap();
        assert!(svg.contains("a ring at the border"), "{svg}");
    }

    #[test]
    fn axes_of_many_values_have_round_labels() {
        let many: Vec<Point> = (0..20)
            .map(|run| Point {
                run,
                at: vec![-4.0 + 0.15 * run as f64],
                value: 1.0,
            })
            .collect();
        let texts = |scale: Scale| -> Vec<String> {
            let ticks = axis("x", scale).ticks(&many, 0);
            ticks.into_iter().map(|(_, text)| text).collect()
        };
        assert_eq!(texts(Scale::Linear), ["-4", "-3", "-2", "-1"]);
        assert_eq!(texts(Scale::Logarithmic), ["1e-4", "0.001", "0.01", "0.1"]);
    }
}

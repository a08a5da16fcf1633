//! The loss over the learning rate, for the command `find-lr`.

use std::path::Path;

use anyhow::Result;
use plotters::{
    coord::combinators::LogCoord,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::curves::{Area, TEXT, title, values_with_room};
use crate::files::whole_file;

/// An update of a search for a learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    /// The learning rate of the update.
    pub rate: f64,
    /// The loss before it.
    pub loss: f64,
    /// The smoothed loss; as the loss itself where that is not finite.
    pub smoothed: f64,
}

/// Size in pixels.
const SIZE: (u32, u32) = (760, 420);

const GRID: RGBColor = RGBColor(226, 232, 240);
const LOSS: RGBColor = RGBColor(148, 163, 184);
const SMOOTHED: RGBColor = RGBColor(37, 99, 235);
const SUGGESTED: RGBColor = RGBColor(234, 88, 12);

type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<LogCoord<f64>, plotters::coord::types::RangedCoordf64>,
>;

/// Draws losses and smoothed losses over a logarithmic axis of learning rates, and marks the place `suggested`, as the
/// picture `svg`. At least one smoothed loss is finite.
///
/// # Errors
/// The picture cannot be written.
pub(crate) fn draw(points: &[Point], suggested: Option<usize>, svg: &Path) -> Result<()> {
    whole_file::write(svg, picture(points, suggested)?)
}

/// A learning rate with two digits, such as `2.5e-3` or `0.1`.
pub(crate) fn short(rate: f64) -> String {
    let text = format!("{rate:.1e}");
    match text.parse::<f64>() {
        Ok(rounded) if (0.01..1000.0).contains(&rounded) => rounded.to_string(),
        _ => text.replace(".0e", "e"),
    }
}

/// The text of the SVG file.
fn picture(points: &[Point], suggested: Option<usize>) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        legend(&area, suggested.map(|place| points[place].rate))?;
        let rates = rates_with_room(points);
        let range = range(points);
        let mut chart = ChartBuilder::on(&area)
            .margin_top(46)
            .margin_right(22)
            .margin_bottom(10)
            .margin_left(6)
            .x_label_area_size(40)
            .y_label_area_size(58)
            .build_cartesian_2d((rates.0..rates.1).log_scale(), range.0..range.1)?;
        axes(&mut chart)?;
        let loss = |point: &Point| point.loss.clamp(range.0, range.1);
        let smoothed = |point: &Point| point.smoothed.clamp(range.0, range.1);
        line(&mut chart, points, loss, LOSS.stroke_width(1))?;
        line(&mut chart, points, smoothed, SMOOTHED.stroke_width(3))?;
        if let Some(place) = suggested {
            mark(&mut chart, points[place], range)?;
        }
        area.present()?;
    }
    Ok(text)
}

/// The first and the last learning rate, also if they are one.
fn rates_with_room(points: &[Point]) -> (f64, f64) {
    let (first, last) = (points[0].rate, points[points.len() - 1].rate);
    match first < last {
        true => (first, last),
        false => (first / 2.0, first * 2.0),
    }
}

/// The range of losses: of the smoothed ones, but of a divergence only the beginning, as it would flatten the rest.
fn range(points: &[Point]) -> (f64, f64) {
    let finite = || {
        points
            .iter()
            .map(|point| point.smoothed)
            .filter(|loss| loss.is_finite())
    };
    let lowest = finite().fold(f64::INFINITY, f64::min);
    let first = finite().next().unwrap_or(lowest);
    let most = first + (first - lowest) * 0.5;
    let (low, high) = values_with_room(finite().map(|loss| loss.min(most.max(first))));
    // Single losses are further away.
    let room = (high - low) * 0.1;
    (low - room, high + room)
}

/// Draws the finite segments of a curve; values beyond the axis of losses are at its ends.
fn line(
    chart: &mut Chart,
    points: &[Point],
    value: impl Fn(&Point) -> f64,
    style: ShapeStyle,
) -> Result<()> {
    for segment in points.split(|point| !point.loss.is_finite()) {
        let places = segment.iter().map(|point| (point.rate, value(point)));
        if segment.len() == 1 {
            let dots = places.map(|place| Circle::new(place, 2, style.color.filled()));
            chart.draw_series(dots)?;
        } else {
            chart.draw_series(LineSeries::new(places, style))?;
        }
    }
    Ok(())
}

/// Marks the suggestion: a vertical line, and a dot with a white ring on the curve.
fn mark(chart: &mut Chart, point: Point, range: (f64, f64)) -> Result<()> {
    let ends = [(point.rate, range.0), (point.rate, range.1)];
    chart.draw_series(LineSeries::new(ends, SUGGESTED.stroke_width(1)))?;
    for (radius, color) in [(7, WHITE), (5, SUGGESTED)] {
        let place = (point.rate, point.smoothed);
        chart.draw_series([Circle::new(place, radius, color.filled())])?;
    }
    Ok(())
}

/// Draws the title and what the colors mean.
fn legend(area: &Area, suggested: Option<f64>) -> Result<()> {
    title(area, "loss over the learning rate", 64)?;
    let style = ("sans-serif", 14).into_font().color(&TEXT);
    let style = style.pos(Pos::new(HPos::Left, VPos::Center));
    let suggestion = suggested.map(|rate| (format!("suggestion {}", short(rate)), SUGGESTED));
    let labels = [("loss".to_owned(), LOSS), ("smoothed".to_owned(), SMOOTHED)];
    let mut right = SIZE.0 as i32 - 16;
    for (label, color) in labels.into_iter().chain(suggestion).rev() {
        // About 7 pixels per letter, depending on the viewer's font.
        let left = right - 7 * label.len() as i32;
        area.draw(&Text::new(label, (left, 24), style.clone()))?;
        area.draw(&Circle::new((left - 11, 25), 5, color.filled()))?;
        right = left - 30;
    }
    Ok(())
}

fn axes(chart: &mut Chart) -> Result<()> {
    let labels = ("sans-serif", 13).into_font().color(&TEXT);
    chart
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(GRID)
        .x_labels(10)
        .y_labels(6)
        .x_label_formatter(&|rate| short(*rate))
        .x_desc("learning rate")
        .label_style(labels.clone())
        .axis_desc_style(labels)
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(losses: &[f64]) -> Vec<Point> {
        let point = |(place, loss): (usize, &f64)| Point {
            rate: 10_f64.powi(place as i32 - 5),
            loss: *loss,
            smoothed: *loss,
        };
        losses.iter().enumerate().map(point).collect()
    }

    /// The places of the circles of a color.
    fn circles(svg: &str, color: &str) -> Vec<(i32, i32)> {
        let all = svg
            .lines()
            .filter(|line| line.contains("<circle") && line.contains(color));
        let number = |line: &str, name: &str| {
            let start = line.find(name).unwrap() + name.len();
            let rest = &line[start..];
            rest[..rest.find('"').unwrap()].parse().unwrap()
        };
        all.map(|line| (number(line, "cx=\""), number(line, "cy=\"")))
            .collect()
    }

    #[test]
    fn equal_factors_are_equally_far_apart_and_the_suggestion_is_marked() {
        let losses = [3.0, 3.0, 2.0, 1.0, 1.5];
        let places: Vec<_> = [1, 2, 3]
            .map(|place| {
                let svg = picture(&points(&losses), Some(place)).unwrap();
                let marked = circles(&svg, "#EA580C");
                assert_eq!(marked.len(), 2, "one in the legend: {svg}");
                marked[1]
            })
            .to_vec();
        let steps = [places[1].0 - places[0].0, places[2].0 - places[1].0];
        assert!(
            steps[0] > 50 && (steps[0] - steps[1]).abs() <= 1,
            "{places:?}"
        );
        assert!(
            places[0].1 < places[1].1 && places[1].1 < places[2].1,
            "{places:?}"
        );
        let svg = picture(&points(&losses), Some(2)).unwrap();
        for label in ["\nsuggestion 1e-3\n", "\n1e-4\n", "\nlearning rate\n"] {
            assert!(svg.contains(label), "no {label:?} in {svg}");
        }
    }

    #[test]
    fn a_divergence_leaves_the_rest_visible() {
        let svg = picture(&points(&[3.0, 2.0, 1.0, 1e9, f64::INFINITY]), Some(1)).unwrap();
        let marked = circles(&svg, "#EA580C")[1];
        assert!((100..320).contains(&marked.1), "{marked:?}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let one = picture(&points(&[3.0]), None).unwrap();
        assert!(!one.contains("suggestion") && !one.contains("NaN"), "{one}");
    }

    #[test]
    fn rates_are_short() {
        let texts = [1e-7, 2.53e-3, 0.95, 10.0].map(short);
        assert_eq!(texts, ["1e-7", "2.5e-3", "0.95", "10"]);
    }
}

//! The progress bar of a split: one line that fits the terminal.

use std::{
    fmt::Write,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use console::Term;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::{
    fields::{fit, thousands},
    terminal,
};

/// Columns of the picture of the progress.
const PICTURE: usize = 16;

/// Fields, by falling importance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Split,
    Steps,
    Loss,
    TimeLeft,
    Picture,
    Rate,
    Speed,
    Memory,
}

/// A progress bar on the standard error, if that is a terminal.
pub struct Bar {
    bar: ProgressBar,
    /// Losses, and rates and memory of training.
    message: Arc<Mutex<Vec<(Rank, String)>>>,
}

/// Progress of a pass over a split.
#[derive(Clone, Copy)]
struct Place<'a> {
    prefix: &'a str,
    steps: u64,
    of: u64,
    steps_per_second: f64,
    left: Duration,
}

impl Bar {
    /// Shows a bar of a pass of `steps` steps, if `is_shown`.
    pub fn show(is_shown: bool, prefix: &str, steps: usize) -> Self {
        // Indicatif draws only on a terminal.
        let target = match is_shown {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
        let message: Arc<Mutex<Vec<(Rank, String)>>> = Arc::default();
        let (prefix, fields) = (prefix.to_owned(), Arc::clone(&message));
        let line = move |state: &ProgressState, out: &mut dyn Write| {
            let place = Place {
                prefix: &prefix,
                steps: state.pos(),
                of: state.len().unwrap_or_default(),
                steps_per_second: state.per_sec(),
                left: state.eta(),
            };
            let (_, width) = Term::stderr().size();
            let message = fields.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = out.write_str(&place.line(&message, usize::from(width)));
        };
        if let Ok(style) = ProgressStyle::with_template("{line}") {
            bar.set_style(style.with_key("line", line));
        }
        terminal::show_bar(Some(bar.clone()));
        Bar { bar, message }
    }

    /// Advances by one step.
    pub fn advance(&self) {
        self.bar.inc(1);
    }

    /// Whether nobody sees the bar.
    pub fn is_hidden(&self) -> bool {
        self.bar.is_hidden()
    }

    /// Sets the losses, and the rates and the memory of training, each in the order of importance.
    pub fn set_message(
        &self,
        losses: impl Iterator<Item = String>,
        rates: &[String],
        memory: &[String],
    ) {
        let fields = message(losses, rates, memory);
        *self.message.lock().unwrap_or_else(PoisonError::into_inner) = fields;
    }

    /// Removes the bar from the terminal.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
        terminal::show_bar(None);
    }
}

fn message(
    losses: impl Iterator<Item = String>,
    rates: &[String],
    memory: &[String],
) -> Vec<(Rank, String)> {
    let losses = losses.map(|loss| (Rank::Loss, loss));
    let rates = rates.iter().map(|rate| (Rank::Rate, rate.clone()));
    let memory = memory.iter().map(|memory| (Rank::Memory, memory.clone()));
    losses.chain(rates).chain(memory).collect()
}

impl Place<'_> {
    /// The bar and `message` in at most `width` columns.
    fn line(self, message: &[(Rank, String)], width: usize) -> String {
        let Place { steps, of, .. } = self;
        let done = PICTURE * steps.min(of) as usize / of.max(1) as usize;
        let picture = "█".repeat(done) + &"░".repeat(PICTURE - done);
        let speed = match self.steps_per_second {
            10.0.. => thousands(self.steps_per_second.round() as usize),
            slow => format!("{slow:.2}"),
        };
        let fields = [
            (Rank::Split, self.prefix.to_owned()),
            (Rank::Picture, picture),
            (Rank::Steps, format!("{steps}/{of}")),
            (Rank::Speed, format!("{speed} steps/s")),
            (
                Rank::TimeLeft,
                format!("{:#} left", HumanDuration(self.left)),
            ),
        ];
        fit(&[&fields[..], message].concat(), width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_keeps_what_matters_where_the_terminal_is_narrow() {
        let place = Place {
            prefix: "train  3/20",
            steps: 120,
            of: 450,
            steps_per_second: 31.4,
            left: Duration::from_secs(11),
        };
        let rates = [
            "26,112 tokens/s",
            "52.3 GFLOP/s (35% of peak)",
            "12% waiting for data",
        ];
        let memory = ["1,092 MiB", "60,412 MiB on the GPU"];
        let message = message(
            std::iter::once("loss 0.1234".to_owned()),
            &rates.map(str::to_owned),
            &memory.map(str::to_owned),
        );
        for (width, expected) in [
            (40, "train  3/20  120/450  loss 0.1234"),
            (
                60,
                "train  3/20  120/450  11s left  loss 0.1234  26,112 tokens/s",
            ),
            (
                80,
                "train  3/20  ████░░░░░░░░░░░░  120/450  11s left  loss 0.1234  26,112 tokens/s",
            ),
            (
                120,
                "train  3/20  ████░░░░░░░░░░░░  120/450  31 steps/s  11s left  loss 0.1234  \
                 26,112 tokens/s  52.3 GFLOP/s (35% of peak)",
            ),
        ] {
            let line = place.line(&message, width);
            assert_eq!(line, expected, "{width}");
            assert!(line.chars().count() <= width, "{width}");
        }
        let ends = |width: usize, end| {
            let line = place.line(&message, width);
            assert!(
                line.ends_with(end) && line.chars().count() <= width,
                "{line}"
            );
        };
        ends(150, "  12% waiting for data");
        ends(160, "  12% waiting for data  1,092 MiB");
        ends(
            200,
            "  12% waiting for data  1,092 MiB  60,412 MiB on the GPU",
        );
    }
}

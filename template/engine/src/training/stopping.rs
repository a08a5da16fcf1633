//! Ends of a training before its last epoch: early stopping (`--patience`) and a time limit (`--max-time`).
//!
//! Sources: `keras.callbacks.EarlyStopping` for patience and minimum change; `lightning.pytorch.callbacks.Timer`
//! for a time limit over resumed runs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indexmap::IndexMap;

use crate::{
    checkpoint::{Best, EarlyStopping, StoppingState},
    options::Options,
};

/// Decides whether a training ends before its last epoch.
pub struct Stopping {
    best: Best,
    patience: Option<usize>,
    min_delta: f64,
    max_time: Option<Duration>,
    /// As of the start of this run, but for `early`, which follows the validations.
    state: StoppingState,
    started: Instant,
}

impl Stopping {
    /// For a training that begins, or resumes from a checkpoint with `state`.
    pub fn new(options: &Options, best: Best, state: Option<StoppingState>) -> Self {
        let state = state.unwrap_or_default();
        Stopping {
            best,
            patience: options.patience,
            min_delta: options.min_delta.unwrap_or_default(),
            max_time: options.max_time,
            state: StoppingState {
                seconds: state.seconds.or(options.max_time.map(|_| 0.0)),
                early: state
                    .early
                    .or(options.patience.map(|_| EarlyStopping::default())),
            },
            started: Instant::now(),
        }
    }

    /// The state for a checkpoint; `None` if these options were never given.
    pub fn state(&self) -> Option<StoppingState> {
        let state = StoppingState {
            seconds: self.seconds(),
            ..self.state
        };
        (state != StoppingState::default()).then_some(state)
    }

    fn seconds(&self) -> Option<f64> {
        let before = self.state.seconds?;
        Some(before + self.started.elapsed().as_secs_f64())
    }

    /// Notes the metrics of a validation, merged over all replicas.
    ///
    /// # Errors
    /// With `--patience`, the validation lacks the metric of [`Best`].
    pub fn note_validation(&mut self, validation: &IndexMap<String, f64>) -> Result<()> {
        let Some(early) = &mut self.state.early else {
            return Ok(());
        };
        let value = validation.get(self.best.metric).copied();
        if self.patience.is_some() {
            value.with_context(|| no_metric(self.best.metric, validation))?;
        }
        // As for the best checkpoint, a validation that is not finite is never better.
        let value = value.filter(|_| validation.values().all(|value| value.is_finite()));
        let is_better = |value: &f64| {
            let best = early.best();
            best.is_none_or(|best| self.best.is_better_by(self.min_delta, *value, best))
        };
        *early = match value.filter(is_better) {
            Some(value) => EarlyStopping {
                best: Some(value.to_bits()),
                wait: 0,
            },
            None => EarlyStopping {
                wait: early.wait + 1,
                ..*early
            },
        };
        Ok(())
    }

    /// The reason to end the training after the last validation; `None` if it goes on. The same in all
    /// processes.
    pub fn out_of_patience(&self) -> Option<String> {
        let (patience, early) = (self.patience?, self.state.early?);
        let best = match early.best() {
            Some(best) => format!("the best is {best:.4}"),
            None => "none was finite".to_owned(),
        };
        let validations = match early.wait {
            1 => "1 validation".to_owned(),
            wait => format!("{wait} validations in a row"),
        };
        let by = match self.min_delta > 0.0 {
            true => format!(" by more than {}", self.min_delta),
            false => String::new(),
        };
        let metric = self.best.metric;
        let reason = format!("{validations} without a better `{metric}`{by}: {best}");
        (early.wait >= patience).then_some(reason)
    }

    /// The reason to end the training now; `None` if there is time left. Clocks of processes differ, so the
    /// chief decides for all.
    pub fn out_of_time(&self) -> Option<String> {
        self.out_of_time_after(self.seconds()?)
    }

    /// The reason why a resumed training does not begin; `None` if it does. The same in all processes.
    pub fn ended_before(&self) -> Option<String> {
        let out_of_time = || self.out_of_time_after(self.state.seconds?);
        self.out_of_patience().or_else(out_of_time)
    }

    fn out_of_time_after(&self, seconds: f64) -> Option<String> {
        let limit = self.max_time?.as_secs_f64();
        let is_over = seconds >= limit;
        is_over
            .then(|| format!("--max-time of {limit} s is over; --resume with a longer one goes on"))
    }
}

fn no_metric(metric: &str, validation: &IndexMap<String, f64>) -> String {
    let names: Vec<&str> = validation.keys().map(String::as_str).collect();
    format!(
        "--patience: TODO(metric.best) names the metric `{metric}`, and the validation has only {}",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{checkpoint::Goal, test_task::options};

    const ACCURACY: Best = Best {
        metric: "accuracy",
        goal: Goal::Highest,
    };
    const LOSS: Best = Best {
        metric: "loss",
        goal: Goal::Lowest,
    };

    fn after(values: &[f64], best: Best, words: &[&str], state: Option<StoppingState>) -> Stopping {
        let mut stopping = Stopping::new(&options(words), best, state);
        for value in values {
            let validation = IndexMap::from([(best.metric.to_owned(), *value)]);
            stopping.note_validation(&validation).unwrap();
        }
        stopping
    }

    /// As a checkpoint stores it.
    fn through_json(stopping: &Stopping) -> Option<StoppingState> {
        let text = serde_json::to_string(&stopping.state()).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn training_ends_after_as_many_validations_without_a_better_one() {
        let patient = ["--patience", "2"];
        let reason = |values: &[f64]| after(values, ACCURACY, &patient, None).out_of_patience();
        assert_eq!(reason(&[0.5, 0.4]), None);
        assert_eq!(
            reason(&[0.5, 0.4, 0.6, 0.6]),
            None,
            "an equal one counts once"
        );
        assert_eq!(
            reason(&[0.5, 0.4, 0.5]).unwrap(),
            "2 validations in a row without a better `accuracy`: the best is 0.5000"
        );
        let reason = reason(&[f64::NAN, f64::INFINITY]).unwrap();
        assert!(reason.ends_with("none was finite"), "{reason}");
        let sinking = after(&[0.5, 0.4, 0.3], LOSS, &patient, None);
        assert_eq!(sinking.out_of_patience(), None);
        let without = after(&[0.5; 9], ACCURACY, &[], None);
        assert_eq!((without.out_of_patience(), without.state()), (None, None));
    }

    #[test]
    fn an_accuracy_beside_a_loss_that_is_not_finite_is_not_better() {
        let mut stopping = Stopping::new(&options(&["--patience", "1"]), ACCURACY, None);
        let values = [("loss", f64::NAN), ("accuracy", 0.9)];
        let validation = values.map(|(name, value)| (name.to_owned(), value));
        stopping.note_validation(&validation.into()).unwrap();
        assert!(stopping.out_of_patience().is_some());
    }

    #[test]
    fn a_change_below_the_least_one_is_none() {
        let words = ["--patience", "2", "--min-delta", "0.1"];
        let reason =
            |values: &[f64], best: Best| after(values, best, &words, None).out_of_patience();
        assert!(
            reason(&[0.5, 0.55, 0.59], ACCURACY).is_some(),
            "compared with the best"
        );
        assert_eq!(reason(&[0.5, 0.55, 0.65], ACCURACY), None);
        assert!(reason(&[0.5, 0.45, 0.41], LOSS).is_some());
        assert_eq!(reason(&[0.5, 0.45, 0.35], LOSS), None);
    }

    #[test]
    fn a_resumed_training_goes_on_counting() {
        // A number that JSON rounds: an equal value must not become a better one.
        let (best, patient) = (1.234_567_890_123_456_7e-30, ["--patience", "3"]);
        let first = after(&[best, 0.0], ACCURACY, &patient, None);
        let second = after(&[best], ACCURACY, &patient, through_json(&first));
        assert_eq!(second.out_of_patience(), None);
        let third = after(&[best], ACCURACY, &patient, through_json(&second));
        assert!(third.out_of_patience().is_some());
        let resumed = |words: &[&str]| after(&[], ACCURACY, words, through_json(&third));
        assert!(resumed(&patient).ended_before().is_some());
        assert_eq!(resumed(&["--patience", "4"]).ended_before(), None);
        assert_eq!(
            resumed(&[]).state(),
            third.state(),
            "kept by a run without the option"
        );
    }

    #[test]
    fn the_time_of_all_runs_counts() {
        let of = |seconds: f64, words: &[&str]| {
            let state = StoppingState {
                seconds: Some(seconds),
                early: None,
            };
            Stopping::new(&options(words), ACCURACY, Some(state))
        };
        let limited = |seconds| of(seconds, &["--max-time", "90s"]);
        assert_eq!(limited(80.0).out_of_time(), None);
        assert_eq!(limited(80.0).ended_before(), None);
        let reason = limited(90.0).out_of_time().unwrap();
        assert!(reason.starts_with("--max-time of 90 s is over"), "{reason}");
        assert_eq!(limited(90.0).ended_before(), Some(reason));
        assert_eq!(of(90.0, &["--max-time", "2m"]).ended_before(), None);
        let unlimited = of(90.0, &[]);
        assert_eq!(unlimited.out_of_time(), None);
        let seconds = |stopping: &Stopping| stopping.state().unwrap().seconds.unwrap();
        let before = seconds(&unlimited);
        std::thread::sleep(Duration::from_millis(20));
        assert!(before >= 90.0 && seconds(&unlimited) >= before + 0.02);
    }

    #[test]
    fn a_metric_that_is_missing_is_named() {
        let mut stopping = Stopping::new(&options(&["--patience", "2"]), ACCURACY, None);
        let validation = IndexMap::from([("loss".to_owned(), 0.5)]);
        let error = stopping.note_validation(&validation).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("`accuracy`") && error.ends_with("has only loss"),
            "{error}"
        );
    }
}

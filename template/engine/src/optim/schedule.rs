//! Learning-rate schedules for trainings of known length, by name.

use std::f64::consts::FRAC_PI_2;

use anyhow::{Result, ensure};
use burn::optim::{
    LearningRate,
    lr_scheduler::{LrScheduler, LrSchedulerRecord, module_lr_scheduler::ModuleLrScheduler},
};
use clap::ValueEnum;

/// The course of the learning rate after the warm-up.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Schedule {
    /// Constant.
    #[default]
    Constant,
    /// Decays to 0 along half a cosine.
    Cosine,
    /// Decays linearly to 0.
    Linear,
}

impl Schedule {
    /// The schedule of a training of `updates` updates: during the first `warm_up`, the rate rises linearly
    /// to `learning_rate`; then it is constant, or decays to 0 along half a cosine (cosine) or linearly
    /// (linear).
    ///
    /// With `w` for the warm-up and `n` for the updates, the rate of an update is `learning_rate` times:
    ///
    /// | update, counted from 1 | constant | cosine | linear |
    /// |---|---|---|---|
    /// | 1, with a warm-up | `1 / w` | `1 / w` | `1 / w` |
    /// | `k` of the warm-up | `k / w` | `k / w` | `k / w` |
    /// | `w` | 1 | 1 | 1 |
    /// | `w + 1`, or 1 without a warm-up | 1 | 1 | 1 |
    /// | `k` after the warm-up | 1 | `(1 + cos(π (k - 1 - w) / (n - w))) / 2` | `(n + 1 - k) / (n - w)` |
    /// | `n` | 1 | `(1 - cos(π / (n - w))) / 2`, above 0 | `1 / (n - w)` |
    /// | after `n` | 1 | 0 | 0 |
    ///
    /// The warm-up is at most half of the updates, rounded down: a short trial with the settings of a long
    /// training is not an error, nor are 0 updates. A constant schedule without warm-up is the number
    /// `learning_rate` itself.
    ///
    /// A checkpoint has the number of updates so far. After a resume with other settings, such as more
    /// updates, training continues at that update of the new schedule. A plain number has no such count:
    /// after its checkpoints, another schedule starts at update 1.
    ///
    /// Source: `get_constant_schedule_with_warmup`, `get_cosine_schedule_with_warmup` and
    /// `get_linear_schedule_with_warmup` of Hugging Face Transformers (`transformers/optimization.py`).
    /// Unlike these, the warm-up starts at `1 / w` instead of 0, and the cosine does not rise again after the
    /// last update.
    ///
    /// # Errors
    /// `learning_rate` is negative, infinite or not a number.
    pub fn create(
        self,
        learning_rate: LearningRate,
        warm_up: usize,
        updates: usize,
    ) -> Result<ModuleLrScheduler> {
        ensure!(
            learning_rate.is_finite() && learning_rate >= 0.0,
            "a schedule cannot have the learning rate {learning_rate}: give a finite number that is not negative"
        );
        if self == Schedule::Constant && warm_up == 0 {
            return Ok(learning_rate.into());
        }
        Ok(ModuleLrScheduler::new(TrainingSchedule {
            course: self,
            learning_rate,
            warm_up: warm_up.min(updates / 2),
            updates,
            done: 0,
        }))
    }
}

/// The schedule of a training: the learning rate as a function of the update number.
///
/// A sequence of Burn's schedulers would be wrong after a resume with more updates, since
/// `LinearLrScheduler` saves the number of remaining steps, and would refuse rates above 1.
#[derive(Clone, Debug)]
struct TrainingSchedule {
    course: Schedule,
    learning_rate: LearningRate,
    /// Warm-up updates, at most half of all.
    warm_up: usize,
    updates: usize,
    /// Updates so far.
    done: usize,
}

/// Record key of the number of updates so far.
const DONE: &str = "updates";

impl TrainingSchedule {
    /// The rate of an update, from 1, as a factor of the learning rate.
    fn factor(&self, update: usize) -> f64 {
        if update <= self.warm_up {
            return update as f64 / self.warm_up as f64;
        }
        match self.course {
            Schedule::Constant => 1.0,
            // (1 + cos(π (1 - left))) / 2, without rounding to 0 near the end.
            Schedule::Cosine => (FRAC_PI_2 * self.left(update)).sin().powi(2),
            Schedule::Linear => self.left(update),
        }
    }

    /// The remaining share of updates after the warm-up: 1 at the first one, 0 after the last.
    fn left(&self, update: usize) -> f64 {
        if update > self.updates {
            return 0.0;
        }
        // Never 0 / 0, since `warm_up < update <= updates`.
        (self.updates - update + 1) as f64 / (self.updates - self.warm_up) as f64
    }
}

impl LrScheduler for TrainingSchedule {
    fn step(&mut self) -> LearningRate {
        self.done = self.done.saturating_add(1);
        self.learning_rate * self.factor(self.done)
    }

    fn to_record(&self) -> LrSchedulerRecord {
        LrSchedulerRecord::new().with_scalar(DONE, self.done)
    }

    fn load_record(&mut self, record: LrSchedulerRecord) {
        self.done = record.scalar(DONE).unwrap_or(self.done);
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;

    use super::*;

    const RATE: f64 = 0.3;
    const SCHEDULES: [Schedule; 3] = [Schedule::Constant, Schedule::Cosine, Schedule::Linear];
    /// Warm-ups and updates.
    const LENGTHS: [(usize, usize); 11] = [
        (0, 0),
        (0, 1),
        (1, 1),
        (0, 2),
        (1, 2),
        (10, 3),
        (2, 4),
        (0, 10),
        (5, 100),
        (50, 100),
        (usize::MAX, 0),
    ];

    fn create(schedule: Schedule, warm_up: usize, updates: usize) -> ModuleLrScheduler {
        schedule.create(RATE, warm_up, updates).unwrap()
    }

    fn rates(schedule: &mut ModuleLrScheduler, updates: usize) -> Vec<f64> {
        (0..updates).map(|_| schedule.step().base()).collect()
    }

    /// Resumes `schedule` from the record of another, serialized as in a checkpoint.
    fn resume(schedule: ModuleLrScheduler, from: &ModuleLrScheduler) -> ModuleLrScheduler {
        let bytes = from.to_record().into_bytes().unwrap();
        schedule.load_record(LrSchedulerRecord::from_bytes(bytes).unwrap())
    }

    /// The schedules of Transformers, whose steps count from 0, with the warm-up shifted by one step and an
    /// end.
    fn closed_form(schedule: Schedule, step: usize, warm_up: usize, updates: usize) -> f64 {
        let (step, warm_up, updates) = (step as f64, warm_up as f64, updates as f64);
        if step < warm_up {
            return RATE * (step + 1.0) / warm_up;
        }
        let progress = ((step - warm_up) / (updates - warm_up).max(1.0)).min(1.0);
        match schedule {
            Schedule::Constant => RATE,
            _ if step >= updates => 0.0,
            Schedule::Cosine => RATE * (0.5 * (1.0 + (PI * progress).cos())).max(0.0),
            Schedule::Linear => RATE * (1.0 - progress),
        }
    }

    fn assert_close(rates: &[f64], expected: &[f64], what: &str) {
        assert_eq!(rates.len(), expected.len(), "{what}");
        for (rate, expected) in rates.iter().zip(expected) {
            assert!((rate - expected).abs() < 1e-12, "{what}: {rates:?}");
        }
    }

    #[test]
    fn every_rate_is_that_of_the_closed_form() {
        for schedule in SCHEDULES {
            for (warm_up, updates) in LENGTHS {
                let length = updates + 5;
                let expected: Vec<f64> = (0..length)
                    .map(|step| closed_form(schedule, step, warm_up.min(updates / 2), updates))
                    .collect();
                let rates = rates(&mut create(schedule, warm_up, updates), length);
                let what = format!("{schedule:?}, {warm_up} of {updates}");
                assert_close(&rates, &expected, &what);
            }
        }
    }

    #[test]
    fn the_warm_up_rises_from_its_first_update_to_the_learning_rate() {
        for schedule in SCHEDULES {
            let rates = rates(&mut create(schedule, 3, 100), 4);
            assert_close(&rates, &[0.1, 0.2, 0.3, 0.3], &format!("{schedule:?}"));
        }
    }

    #[test]
    fn the_decays_pass_half_of_the_rate_half_way_and_end_after_the_last_update() {
        for (schedule, last) in [
            (Schedule::Cosine, RATE * (1.0 - (PI / 8.0).cos()) / 2.0),
            (Schedule::Linear, RATE / 8.0),
        ] {
            let rates = rates(&mut create(schedule, 2, 10), 13);
            let places = [rates[2], rates[6], rates[9]];
            let what = format!("{schedule:?}");
            assert_close(&places, &[RATE, RATE / 2.0, last], &what);
            assert_eq!(rates[10..], [0.0; 3], "{what}");
        }
    }

    #[test]
    fn the_last_rate_of_a_very_long_training_is_above_0() {
        let updates = 10_000_000_000;
        let before_last = LrSchedulerRecord::new().with_scalar(DONE, updates - 1);
        let record = LrSchedulerRecord::new().with_record("0", before_last);
        for schedule in [Schedule::Cosine, Schedule::Linear] {
            let mut schedule = create(schedule, 5, updates).load_record(record.clone());
            assert!(schedule.step().base() > 0.0);
            assert_eq!(schedule.step().base(), 0.0);
        }
    }

    #[test]
    fn a_long_warm_up_lasts_for_half_of_the_updates() {
        let rates = rates(&mut create(Schedule::Linear, 500, 7), 8);
        let expected = [0.1, 0.2, 0.3, 0.3, 0.225, 0.15, 0.075, 0.0];
        assert_close(&rates, &expected, "500 of 7");
    }

    #[test]
    fn a_constant_rate_without_warm_up_is_the_number_itself() {
        let mut schedule = create(Schedule::Constant, 0, 3);
        assert_eq!(rates(&mut schedule, 5), [RATE; 5]);
        assert!(schedule.to_record().is_empty());
    }

    #[test]
    fn a_resume_goes_on_with_the_same_rates() {
        for schedule in SCHEDULES {
            let expected = rates(&mut create(schedule, 4, 14), 20);
            for done in [0, 2, 4, 9, 14, 16] {
                let mut first = create(schedule, 4, 14);
                rates(&mut first, done);
                let mut resumed = resume(create(schedule, 4, 14), &first);
                assert_eq!(rates(&mut resumed, 20 - done), expected[done..]);
            }
        }
    }

    #[test]
    fn a_resume_with_more_updates_goes_on_at_its_place_of_the_longer_schedule() {
        for schedule in SCHEDULES {
            let expected = rates(&mut create(schedule, 10, 28), 28);
            for done in [2, 5, 9, 14] {
                // The warm-up is at most 7 of 14, and longer in the second training.
                let mut first = create(schedule, 10, 14);
                rates(&mut first, done);
                let mut resumed = resume(create(schedule, 10, 28), &first);
                assert_eq!(rates(&mut resumed, 28 - done), expected[done..]);
            }
        }
    }

    #[test]
    fn the_count_of_a_record_cannot_overflow() {
        let most = LrSchedulerRecord::new().with_scalar(DONE, usize::MAX);
        let record = LrSchedulerRecord::new().with_record("0", most);
        let mut schedule = create(Schedule::Cosine, 2, 10).load_record(record);
        assert_eq!(rates(&mut schedule, 2), [0.0; 2]);
    }

    #[test]
    fn rates_above_1_are_allowed() {
        let mut schedule = Schedule::Cosine.create(4.0, 2, 10).unwrap();
        assert_close(&rates(&mut schedule, 3), &[2.0, 4.0, 4.0], "cosine");
    }

    #[test]
    fn a_rate_that_is_no_rate_is_an_error_that_names_it() {
        for schedule in SCHEDULES {
            for rate in [f64::NAN, f64::INFINITY, -0.1] {
                let error = schedule.create(rate, 0, 10).err().unwrap().to_string();
                assert!(error.contains(&rate.to_string()), "{error}");
            }
        }
    }

    #[test]
    fn the_schedules_have_names_on_the_command_line() {
        for (name, schedule) in ["constant", "cosine", "linear"].iter().zip(SCHEDULES) {
            assert_eq!(Schedule::from_str(name, false), Ok(schedule));
        }
        assert_eq!(Schedule::default(), Schedule::Constant);
    }
}

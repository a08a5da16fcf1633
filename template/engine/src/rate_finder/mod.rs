//! The command `find-lr`: a training with a growing learning rate, and the loss over it.
//!
//! Source: L. Smith, Cyclical Learning Rates for Training Neural Networks, WACV 2017 (the learning rate range test);
//! the finders of fastai and Lightning, which also let the rate grow exponentially.

mod curve;
mod sweep;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use self::{
    curve::{Curve, Smoother, is_diverged},
    sweep::Sweep,
};
use crate::{
    console::terminal,
    data::Datasets,
    files::whole_file,
    globals::{self, Split},
    loss::Losses,
    optim::NotFinite,
    options::{FindLr, Options},
    picture::rates::{self, Point},
    task::{Task, TrainState},
    training::{Inputs, end_first_step, freeze_named},
    weights::initialise,
};

/// The fewest updates that make a curve.
const FEWEST: usize = 10;

/// Trains from the initial weights with a learning rate that grows by the same factor each update, and with `step` as
/// in a training, until the loss diverges. Writes the loss over the learning rate as a picture and as values, and
/// suggests a rate. Nothing else is written.
///
/// # Errors
/// An option does not fit, a step failed, or a file cannot be written.
pub fn find_learning_rate<T: Task>(
    find: &FindLr,
    options: &Options,
    datasets: &Datasets<T::Example>,
    step: fn(Inputs<T::Example>) -> Result<Losses>,
) -> Result<()> {
    let strategy = globals::strategy()?;
    ensure_fit(find, options, strategy.is_asynchronous())?;
    freeze_named::<T>(&options.freeze)?;
    let initial = initialise::<T>(options)?;
    let sweep = Sweep::new(find.min, find.max, find.steps);
    let with_sweep = sweep.clone();
    strategy.run_on_all(move |_| {
        globals::with_trainable::<T, _>(|trainable| {
            for (_, optimizer) in trainable.optimizers_mut() {
                optimizer.set_schedule(with_sweep.clone());
            }
        })
    })?;
    globals::reset_metrics::<T>(Split::Train)?;
    let speaks = strategy.is_chief();
    if speaks {
        let lines = initial.into_iter().flat_map(|(_, lines)| lines);
        lines.for_each(terminal::print);
        terminal::print(format_args!(
            "learning rates from {} to {} in {} updates",
            rates::short(find.min),
            rates::short(find.max),
            find.steps
        ));
    }
    let (losses, has_diverged) = losses::<T>(find, &sweep, datasets, step)?;
    if speaks {
        report(&Curve::new(losses, find.smoothing), has_diverged, find)?;
    }
    strategy.workers().leave()
}

/// Refuses options that `find-lr` would ignore.
fn ensure_fit(find: &FindLr, options: &Options, is_asynchronous: bool) -> Result<()> {
    ensure!(
        find.min < find.max,
        "--min {} is not below --max {}",
        find.min,
        find.max
    );
    ensure!(
        find.steps >= FEWEST,
        "--steps {} are too few for a curve: give at least {FEWEST}",
        find.steps
    );
    ensure!(
        find.svg
            .extension()
            .is_some_and(|extension| extension == "svg"),
        "--svg {} must end in .svg",
        find.svg.display()
    );
    let folder = find.svg.parent().unwrap_or(Path::new(""));
    ensure!(
        folder.as_os_str().is_empty() || folder.is_dir(),
        "--svg {}: there is no folder {}",
        find.svg.display(),
        folder.display()
    );
    ensure!(
        !options.resume,
        "`find-lr` starts from the initial weights: leave out --resume; --init-from starts from those of a checkpoint"
    );
    ensure!(
        !is_asynchronous,
        "`find-lr` needs the loss of each update before the next one, which `parameter-server` does not give: use \
         another --strategy"
    );
    Ok(())
}

/// The learning rate and the loss before each update, and whether the training diverged.
fn losses<T: Task>(
    find: &FindLr,
    sweep: &Sweep,
    datasets: &Datasets<T::Example>,
    step: fn(Inputs<T::Example>) -> Result<Losses>,
) -> Result<(Vec<(f64, f64)>, bool)> {
    let workers = globals::strategy()?;
    let workers = workers.workers();
    let mut smoother = Smoother::new(find.smoothing);
    let (mut losses, mut of_update, mut lowest) = (Vec::new(), Vec::new(), f64::INFINITY);
    for inputs in (1..).flat_map(|epoch| datasets.train.epoch(epoch)) {
        let update = losses.len() + 1;
        workers.note_step(update);
        let completes_update = inputs.info().completes_update;
        match step(inputs) {
            Ok(of_batch) => {
                end_first_step(&of_batch)?;
                of_update.push(of_batch);
            }
            Err(error) if error.downcast_ref::<NotFinite>().is_some() => {
                losses.push((sweep.rate(update), f64::INFINITY));
                return Ok((losses, true));
            }
            Err(error) => {
                return Err(error.context(format!("`find-lr` stopped at update {update}")));
            }
        }
        if !completes_update {
            continue;
        }
        let sum = Losses::sum(std::mem::take(&mut of_update));
        let loss = sum.iter().next().map(|(_, loss)| loss);
        let loss = loss.context("the training step gives no loss")?;
        losses.push((sweep.rate(update), loss));
        let smoothed = smoother.next(loss);
        lowest = lowest.min(smoothed);
        // The first losses are too few to tell.
        let is_far = update >= FEWEST && is_diverged(smoothed, lowest);
        if is_far || !loss.is_finite() {
            return Ok((losses, true));
        }
        if update == find.steps {
            break;
        }
    }
    Ok((losses, false))
}

/// Writes the files, and prints the suggestion.
fn report(curve: &Curve, has_diverged: bool, find: &FindLr) -> Result<()> {
    let csv = find.svg.with_extension("csv");
    write_csv(curve, &csv)?;
    let Some(lowest) = curve.lowest() else {
        bail!(
            "the first loss is not finite, at a learning rate of {}: look at the batch, the layers and the loss, as \
             with --detect-anomalies; or give a lower --min",
            rates::short(find.min)
        );
    };
    let steepest = curve.steepest();
    rates::draw(curve.points(), steepest, &find.svg)?;
    let of = |place: usize| rates::short(curve.points()[place].rate);
    if has_diverged {
        let last = curve.points().len() - 1;
        terminal::print(format_args!(
            "the loss diverged at a learning rate of {}, in update {}",
            of(last),
            last + 1
        ));
    }
    terminal::print(format_args!(
        "the smoothed loss is lowest, {:.4}, at {}",
        curve.points()[lowest].smoothed,
        of(lowest)
    ));
    terminal::print(match steepest {
        Some(place) => format!(
            "suggestion: a learning rate of {}, where the smoothed loss falls most steeply over its logarithm",
            of(place)
        ),
        None => "no suggestion: the smoothed loss falls nowhere; try other --min and --max, more --steps or another \
                 --seed"
            .to_owned(),
    });
    terminal::print(format_args!("{} and {}", find.svg.display(), csv.display()));
    Ok(())
}

fn write_csv(curve: &Curve, path: &Path) -> Result<()> {
    let mut rows = csv::Writer::from_writer(Vec::new());
    rows.write_record(["update", "learning_rate", "loss", "smoothed_loss"])?;
    for (update, point) in (1..).zip(curve.points()) {
        let Point {
            rate,
            loss,
            smoothed,
        } = point;
        rows.write_record([
            format!("{update}"),
            format!("{rate:e}"),
            format!("{loss}"),
            format!("{smoothed}"),
        ])?;
    }
    whole_file::write(path, rows.into_inner()?)
}

#[cfg(test)]
mod tests;

//! The command `sweep`: trains on a grid of options or with random ones, ranks the runs, and draws them.
//!
//! Each run is a process of this program with `--resume` and an output folder of its own. A sweep started again
//! keeps finished runs, resumes the one that was stopped, tries failed ones again, and ends with the table of a
//! sweep that was never stopped.
//!
//! Source: random search as in Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization" (2012), with
//! draws of each option that depend on the seed, the option and the number of the draw alone.

mod children;
mod file;
mod metric;
mod plan;
mod random;
mod space;
mod table;
#[cfg(test)]
mod tests;

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::ArgMatches;

use crate::{
    checkpoint::interrupt,
    configuration,
    console::terminal,
    files::{OutputLock, whole_file},
    options::Sweep,
    picture::slices::{self, Axis, Point, Scale},
    run_record,
    task::Task,
};
use children::{Children, LOG, Outcome, Trainer, folder_of};
use file::Definition;
use plan::{Plan, Planned};
use space::{Values, Varied};
use table::{Row, Status};

/// File name of the table.
const TABLE: &str = "sweep.csv";

/// File name of the picture.
const PICTURE: &str = "sweep.svg";

/// The subcommand that trains without a test: a sweep chooses by the validation.
const TRAIN: &str = "train";

/// Maximum number of failed runs in a message.
const MOST_SHOWN: usize = 8;

/// A number axis is logarithmic if its largest value is this many times the least.
const LOG_FROM: f64 = 20.0;

/// Trains the runs of a sweep that have not finished, and writes its table and picture.
///
/// # Errors
/// The file is refused, the folder holds another sweep, a run failed, or a file cannot be written.
pub fn sweep<T: Task>(options: &Sweep) -> Result<()> {
    let (command, given) = run_record::program().context("the command line was not parsed")?;
    // The number of values of each option is known once the command is built.
    let mut command = command.clone();
    command.build();
    let refuse = |errors: Vec<String>| -> ! {
        errors
            .iter()
            .for_each(|error| terminal::warn(format_args!("error: {error}")));
        std::process::exit(2)
    };
    let mut definition =
        file::read(&options.file, &command, T::BEST).unwrap_or_else(|errors| refuse(errors));
    if let Some(folder) = folder_given(given) {
        definition.output = folder;
    }
    let plan = Plan::new(&definition, &command, given).unwrap_or_else(|errors| refuse(errors));
    if options.dry_run {
        for run in &plan.runs {
            terminal::print(format_args!("run {}: {}", run.number, plan.describe(run)));
        }
        return Ok(());
    }
    let subcommand = command.find_subcommand(TRAIN).map(|_| TRAIN);
    let program = env::current_exe().context("cannot find the path of this program")?;
    let end = perform(
        &definition,
        &plan,
        program,
        subcommand,
        &Children::listening(),
    )?;
    end.into_iter().for_each(interrupt::note_stopped);
    Ok(())
}

/// `--output-dir`, if given.
fn folder_given(given: &ArgMatches) -> Option<PathBuf> {
    let id = "output_dir";
    let is_given = configuration::is_given(given, id);
    let folder = given.try_get_one::<PathBuf>(id).ok().flatten();
    folder.filter(|_| is_given).cloned()
}

/// Trains the runs that have not finished, each with a process of `program`. Returns the signal that stopped the
/// sweep, if any.
fn perform(
    definition: &Definition,
    plan: &Plan,
    program: PathBuf,
    subcommand: Option<&'static str>,
    children: &Arc<Children>,
) -> Result<Option<i32>> {
    let (folder, metric) = (&*definition.output, &definition.metric);
    let lock = OutputLock::acquire(folder)?;
    plan.record(folder)?;
    let mut missing = Vec::new();
    for run in &plan.runs {
        if Outcome::of(&folder_of(folder, run.number))? != Some(Outcome::Finished) {
            missing.push(run);
        }
    }
    let all = plan.runs.len();
    terminal::print(format_args!(
        "{all} runs in {}, {} of them finished before",
        folder.display(),
        all - missing.len()
    ));
    let trainer = Trainer::new(program, folder, metric, subcommand, Arc::clone(children))?;
    let begins = |run: &Planned| {
        let log = folder_of(folder, run.number).join(LOG);
        terminal::print(format_args!(
            "run {}/{all} begins: {} (output in {})",
            run.number,
            plan.describe(run),
            log.display()
        ));
    };
    let ended = |run: &Planned, outcome: &Outcome, time: Duration| {
        tell(definition, plan, run, outcome, time);
        save_table(definition, plan).map(drop)
    };
    let trained = trainer.train(&missing, definition.parallel, begins, ended);
    let rows = save_table(definition, plan)?;
    draw(definition, plan, &rows)?;
    trained?;
    drop(lock);
    terminal::print(table::ranking(&plan.keys, metric, &rows));
    if let Some(signal) = children.signal()
        && rows.iter().any(|row| row.status == Status::Waiting)
    {
        let finished = rows.iter().filter(|row| row.status == Status::Finished);
        terminal::print(format_args!(
            "stopped: {} of {all} runs are finished; the same command goes on",
            finished.count()
        ));
        return Ok(Some(signal));
    }
    tell_the_best(definition, plan, &rows);
    ensure_none_failed(folder, plan, &rows)?;
    Ok(None)
}

/// Says how a run ended.
fn tell(definition: &Definition, plan: &Plan, run: &Planned, outcome: &Outcome, time: Duration) {
    let folder = folder_of(&definition.output, run.number);
    let reached = definition.metric.reached(&folder).ok().flatten();
    let end = match (outcome, reached.and_then(|reached| reached.best)) {
        (Outcome::Failed(reason), _) => format!("failed: {reason}"),
        (Outcome::Finished, Some((epoch, best))) => {
            let name = definition.metric.full_name();
            format!("{name} {} in epoch {epoch}", table::number(best))
        }
        (Outcome::Finished, None) => format!("no finite {}", definition.metric.full_name()),
    };
    terminal::print(format_args!(
        "run {}/{} ends: {end}, {:.1} s",
        run.number,
        plan.runs.len(),
        time.as_secs_f64()
    ));
}

/// Writes `sweep.csv`. Runs at a time end at any time, so one writes after the other.
fn save_table(definition: &Definition, plan: &Plan) -> Result<Vec<Row>> {
    static WRITES: Mutex<()> = Mutex::new(());
    let _writes = WRITES.lock().unwrap_or_else(PoisonError::into_inner);
    let rows = table::rows(plan, &definition.metric, &definition.output);
    let csv = table::csv(&plan.keys, &definition.metric, &rows)?;
    whole_file::write(&definition.output.join(TABLE), csv)?;
    Ok(rows)
}

/// Draws the finished runs, if there are any with a value; otherwise removes an earlier picture.
fn draw(definition: &Definition, plan: &Plan, rows: &[Row]) -> Result<()> {
    let path = definition.output.join(PICTURE);
    let ranked = table::ranked(&definition.metric, rows);
    let finished: Vec<&Row> = ranked
        .into_iter()
        .filter(|row| row.best().is_some())
        .collect();
    if finished.is_empty() {
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        };
    }
    let axes: Vec<Axis> = (definition.varied.iter().enumerate())
        .map(|(option, varied)| axis(varied, &finished, option))
        .collect();
    let points = finished.iter().map(|row| Point {
        run: row.number,
        at: axes
            .iter()
            .zip(&row.values)
            .map(|(axis, value)| axis.place(value))
            .collect(),
        value: row.best().unwrap_or(f64::NAN),
    });
    let points: Vec<Point> = points.collect();
    let best = finished[0];
    let title = format!(
        "{} of {} runs",
        definition.metric.full_name(),
        plan.runs.len()
    );
    let of_best = plan.describe(&plan.runs[best.number - 1]);
    let value = table::number(best.best().unwrap_or(f64::NAN));
    let legend = format!("the best: run {}, {value}, with {of_best}", best.number);
    slices::draw(&axes, &points, &title, &legend, &path)
}

/// The axis of an option with its values.
fn axis(varied: &Varied, rows: &[&Row], option: usize) -> Axis {
    let texts = || rows.iter().map(|row| &row.values[option]);
    let numbers: Option<Vec<f64>> = texts().map(|text| text.parse().ok()).collect();
    let numbers = numbers.filter(|numbers| numbers.iter().all(|number| number.is_finite()));
    let scale = match (numbers, &varied.values) {
        (None, _) => {
            let names = match &varied.values {
                Values::Grid(values) | Values::Choices(values) => {
                    values.iter().map(file::shown).collect()
                }
                Values::Range(..) => texts().cloned().collect(),
            };
            Scale::Categories(names)
        }
        (Some(_), Values::Range(range, _)) if range.is_log => Scale::Logarithmic,
        (Some(_), Values::Range(..)) => Scale::Linear,
        (Some(numbers), _) => {
            let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
            let most = numbers.iter().copied().fold(0.0, f64::max);
            match least > 0.0 && most / least >= LOG_FROM {
                true => Scale::Logarithmic,
                false => Scale::Linear,
            }
        }
    };
    Axis {
        name: varied.key.clone(),
        scale,
    }
}

/// Says which run is the best, and what to do with it.
fn tell_the_best(definition: &Definition, plan: &Plan, rows: &[Row]) {
    let ranked = table::ranked(&definition.metric, rows);
    let Some(best) = ranked.first().filter(|row| row.best().is_some()) else {
        return;
    };
    let run = folder_of(&definition.output, best.number);
    terminal::print(format_args!(
        "the best is run {}, with {}: --config {run}/run.toml repeats it, and `test --checkpoint best --output-dir \
         {run}` tests it\nthe table and the picture are {} and {}",
        best.number,
        plan.describe(&plan.runs[best.number - 1]),
        definition.output.join(TABLE).display(),
        definition.output.join(PICTURE).display(),
        run = run.display(),
    ));
}

fn ensure_none_failed(folder: &Path, plan: &Plan, rows: &[Row]) -> Result<()> {
    let failed = rows.iter().filter_map(|row| match &row.status {
        Status::Failed(reason) => Some(format!(
            "run {} ({}): {reason}\n    its output is in {}",
            row.number,
            plan.describe(&plan.runs[row.number - 1]),
            folder_of(folder, row.number).join(LOG).display()
        )),
        _ => None,
    });
    let failed: Vec<String> = failed.collect();
    if !failed.is_empty() {
        let more = match failed.len().saturating_sub(MOST_SHOWN) {
            0 => String::new(),
            more => format!("\nand {more} more: sweep.csv has them all"),
        };
        bail!(
            "{} of {} runs failed; started again, the sweep tries them again\n{}{more}",
            failed.len(),
            rows.len(),
            failed[..failed.len().min(MOST_SHOWN)].join("\n")
        );
    }
    Ok(())
}

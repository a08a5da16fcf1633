//! Reads the file of a sweep, and finds the place of each error.

use std::path::{Path, PathBuf};

use clap::Command;
use toml::{
    Spanned,
    de::{DeString, DeValue},
};

use super::{
    metric::{Metric, goal_of},
    space::{Draws, Values, Varied},
};
use crate::{
    checkpoint::Best,
    configuration::file::{self, Setting, Source, in_order, key_of, type_of},
    similar::nearest,
};

/// Keys at the top of the file that are no options.
const KEYS: [&str; 4] = ["metric", "direction", "output", "parallel"];

/// Tables of the file.
const TABLES: [&str; 3] = ["base", "grid", "random"];

/// Options that the sweep sets for each run.
const OF_THE_SWEEP: [&str; 2] = ["resume", "output_dir"];

/// Folder of sweeps without `output`.
const OUTPUT: &str = "sweeps";

/// Maximum number of processes at a time.
const MOST_PARALLEL: i64 = 64;

/// Contents of the file of a sweep.
#[derive(Debug)]
pub(super) struct Definition {
    /// The folder of the sweep.
    pub output: PathBuf,
    pub metric: Metric,
    /// Runs at a time.
    pub parallel: usize,
    /// Options of all runs.
    pub base: Vec<Setting>,
    /// Options that vary, in the order of the file.
    pub varied: Vec<Varied>,
    /// The draws of options with random values.
    pub draws: Draws,
}

/// The sweep in a file; `best` is the metric by default, and `command` is built.
///
/// # Errors
/// One text per error: the file cannot be read, or it has a syntax error, an unknown key or a wrong value.
pub(super) fn read(path: &Path, command: &Command, best: Best) -> Result<Definition, Vec<String>> {
    let shown = path.display().to_string();
    let text = file::contents(path);
    let text = text.map_err(|reason| vec![format!("cannot read {shown}: {reason}")])?;
    parse(&shown, &text, command, best)
}

/// As [`read`], of the text of the file `path`.
pub(super) fn parse(
    path: &str,
    text: &str,
    command: &Command,
    best: Best,
) -> Result<Definition, Vec<String>> {
    let source = Source { path, text };
    let mut reader = Reader::new(&source, command, best);
    for (key, value) in source.entries()? {
        reader.top(&key, value);
    }
    reader.finish(path)
}

/// Collects what the file says, and its errors.
pub(super) struct Reader<'a> {
    pub source: &'a Source<'a>,
    pub command: &'a Command,
    best: Best,
    output: Option<PathBuf>,
    /// The value of `metric` and its start in the file.
    metric: Option<(Metric, std::ops::Range<usize>)>,
    has_direction: bool,
    parallel: usize,
    base: Vec<Setting>,
    varied: Vec<Varied>,
    pub draws: Draws,
    errors: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(source: &'a Source<'a>, command: &'a Command, best: Best) -> Self {
        Reader {
            source,
            command,
            best,
            output: None,
            metric: None,
            has_direction: false,
            parallel: 1,
            base: Vec::new(),
            varied: Vec::new(),
            draws: Draws::default(),
            errors: Vec::new(),
        }
    }

    pub fn refuse(&mut self, span: std::ops::Range<usize>, message: impl std::fmt::Display) {
        self.errors.push(self.source.error(span, message));
    }

    /// An entry at the top of the file.
    fn top(&mut self, key: &Key, value: Spanned<DeValue>) {
        let name = key.get_ref().as_ref();
        let span = value.span();
        match (name, value.into_inner()) {
            ("base", DeValue::Table(table)) => {
                for (key, value) in in_order(table) {
                    self.base_option(&key, &value);
                }
            }
            ("grid", DeValue::Table(table)) => {
                for (key, value) in in_order(table) {
                    self.grid_option(&key, &value);
                }
            }
            ("random", DeValue::Table(table)) => self.random(key, table),
            (name, value) if TABLES.contains(&name) => {
                let this = type_of(&value);
                self.refuse(span, format!("`{name}` is a table, and this is {this}"));
            }
            (name, value) if KEYS.contains(&name) => self.own(name, &value, span),
            (name, DeValue::Table(_)) if file::option(self.command, name).is_none() => {
                let similar = nearest(name, TABLES.map(str::to_owned));
                let what = match similar {
                    Some((_, table)) => format!("the nearest one is [{table}]"),
                    None => "a sweep has [base], [grid] and [random]".to_owned(),
                };
                self.refuse(key.span(), format!("unknown table `{name}`; {what}"));
            }
            (name, value) => {
                let of_options = file::options(self.command).map(|(_, long)| key_of(long));
                let of_options =
                    nearest(name, of_options).map_or(0.0, |(similarity, _)| similarity);
                let of_sweep = nearest(name, KEYS.map(str::to_owned));
                match of_sweep.filter(|(similarity, _)| *similarity > of_options) {
                    Some((_, key_of_sweep)) => self.refuse(
                        key.span(),
                        format!("unknown key `{name}`; the nearest one is `{key_of_sweep}`"),
                    ),
                    None => self.base_option(key, &Spanned::new(span, value)),
                }
            }
        }
    }

    /// A key of the sweep itself.
    fn own(&mut self, name: &str, value: &DeValue, span: std::ops::Range<usize>) {
        let text = match value {
            DeValue::String(text) => Some(text.as_ref()),
            _ => None,
        };
        let refusal = match (name, text) {
            ("output", Some(text)) if !text.is_empty() => {
                self.output = Some(text.into());
                return;
            }
            ("output", Some(_)) => "`output` is empty: it is the folder of the sweep".to_owned(),
            ("metric", Some(text)) => match Metric::parse(text, self.best) {
                Ok(metric) => {
                    self.metric = Some((metric, span));
                    return;
                }
                Err(refusal) => refusal,
            },
            ("direction", Some(text)) => match goal_of(text) {
                Ok(goal) => {
                    self.has_direction = true;
                    self.best.goal = goal;
                    return;
                }
                Err(refusal) => refusal,
            },
            ("parallel", _) => match integer(value) {
                Some(runs @ 1..=MOST_PARALLEL) => {
                    self.parallel = runs as usize;
                    return;
                }
                _ => {
                    format!("`parallel` takes an integer from 1 to {MOST_PARALLEL}: runs at a time")
                }
            },
            _ => format!("`{name}` takes a string, and this is {}", type_of(value)),
        };
        self.refuse(span, refusal);
    }

    /// The option of a key, unless it is refused: unknown, of the sweep, or set before.
    pub fn setting(&mut self, key: &Key, value: &Spanned<DeValue>) -> Option<Setting> {
        match file::setting(self.source, self.command, key, value) {
            Ok(setting) if OF_THE_SWEEP.contains(&&*key_of(&setting.long)) => {
                let refusal = format!(
                    "`{}` is set by the sweep for each run; `output` is the folder of all",
                    key.get_ref()
                );
                self.refuse(key.span(), refusal);
                None
            }
            Ok(setting) => Some(setting),
            Err(error) => {
                self.errors.push(error);
                None
            }
        }
    }

    /// Refuses an option that has a value already.
    fn is_first(&mut self, key: &Key, setting: &Setting) -> bool {
        let of_base = self.base.iter().find(|other| other.id == setting.id);
        let varied = self.varied.iter().find(|other| other.id == setting.id);
        let place = of_base.map(|other| &other.place);
        let place = place.or(varied.map(|other| &other.place)).cloned();
        if let Some(place) = &place {
            let refusal = format!("`{}` is set twice: first in {place}", key.get_ref());
            self.refuse(key.span(), refusal);
        }
        place.is_none()
    }

    fn base_option(&mut self, key: &Key, value: &Spanned<DeValue>) {
        if let Some(setting) = self.setting(key, value)
            && self.is_first(key, &setting)
        {
            self.base.push(setting);
        }
    }

    fn grid_option(&mut self, key: &Key, value: &Spanned<DeValue>) {
        let name = key.get_ref();
        match value.get_ref() {
            DeValue::Array(values) => {
                if let Some(values) = self.values(key, values, value.span()) {
                    self.vary(key, values[0].clone(), Values::Grid(values));
                }
            }
            other if file::option(self.command, name).is_some() => {
                let refusal = format!(
                    "`{name}` takes an array of values in [grid], and this is {}",
                    type_of(other)
                );
                self.refuse(value.span(), refusal);
            }
            // The error of an unknown option.
            _ => drop(self.setting(key, value)),
        }
    }

    /// The settings of an array of different values; `None` if one is refused, or there is none.
    pub fn values(
        &mut self,
        key: &Key,
        values: &[Spanned<DeValue>],
        span: std::ops::Range<usize>,
    ) -> Option<Vec<Setting>> {
        if file::option(self.command, key.get_ref()).is_some() && values.is_empty() {
            self.refuse(span, format!("`{}` has no value to try", key.get_ref()));
            return None;
        }
        if values.is_empty() {
            // The error of an unknown option.
            self.setting(key, &Spanned::new(span, DeValue::Boolean(true)));
            return None;
        }
        let mut settings: Vec<Setting> = Vec::new();
        for value in values {
            let setting = self.setting(key, value)?;
            if settings.iter().any(|other| shown(other) == shown(&setting)) {
                let refusal = format!("`{}` has this value twice", key.get_ref());
                self.refuse(value.span(), refusal);
                return None;
            }
            settings.push(setting);
        }
        Some(settings)
    }

    pub fn vary(&mut self, key: &Key, first: Setting, values: Values) {
        if self.is_first(key, &first) {
            self.varied.push(Varied {
                key: key_of(&first.long),
                id: first.id,
                place: first.place,
                values,
            });
        }
    }

    fn finish(mut self, path: &str) -> Result<Definition, Vec<String>> {
        if self.varied.is_empty() && self.errors.is_empty() {
            self.errors.push(format!(
                "{path} varies no option: add a table [grid], such as learning_rate = [1e-3, 2e-3], or [random]"
            ));
        }
        let mut metric = Metric::of(self.best);
        if let Some((given, span)) = self.metric.take() {
            let goal = match (self.has_direction, given.goal) {
                (true, _) => Some(self.best.goal),
                (false, goal) => goal,
            };
            if goal.is_none() {
                let refusal = format!(
                    "whether a high or a low `{}` is better is not known: add direction = \"highest\" or \
                     \"lowest\"",
                    given.name
                );
                self.refuse(span, refusal);
            }
            metric = Metric { goal, ..given };
        }
        if !self.errors.is_empty() {
            return Err(self.errors);
        }
        let stem = Path::new(path).file_stem().unwrap_or_default();
        Ok(Definition {
            output: self.output.unwrap_or_else(|| Path::new(OUTPUT).join(stem)),
            metric,
            parallel: self.parallel,
            base: self.base,
            varied: self.varied,
            draws: self.draws,
        })
    }
}

pub(super) type Key<'a> = Spanned<DeString<'a>>;

/// The value of an option as text, with numbers in their shortest form.
pub(super) fn shown(setting: &Setting) -> String {
    let option = format!("--{}", setting.long);
    let words = setting.words.iter().map(|word| word.to_string_lossy());
    let values: Vec<String> = words
        .filter(|word| *word != option)
        .map(|word| {
            let value = word.strip_prefix(&format!("{option}="));
            number(value.unwrap_or(&word))
        })
        .collect();
    match (setting.words.len(), values.is_empty()) {
        (0, _) => "false".to_owned(),
        (1, true) => "true".to_owned(),
        (times, true) => times.to_string(),
        _ => values.join(" "),
    }
}

/// `1e-3` and `0.001` are one value.
fn number(text: &str) -> String {
    match text.parse::<f64>() {
        Ok(number) if text.parse::<i128>().is_err() && number.is_finite() => format!("{number:?}"),
        _ => text.to_owned(),
    }
}

pub(super) fn integer(value: &DeValue) -> Option<i64> {
    match value {
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
        _ => None,
    }
}

/// The number of a value; NaN if it is none.
pub(super) fn float(value: &DeValue) -> f64 {
    match value {
        DeValue::Float(number) => number.as_str().parse().unwrap_or(f64::NAN),
        value => integer(value).map_or(f64::NAN, |number| number as f64),
    }
}

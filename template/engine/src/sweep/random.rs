//! Reads the table `[random]` of a sweep: the number of draws, choices and ranges.

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    file::{Key, Reader, float, integer},
    space::{Range, Values},
};
use crate::{
    configuration::{
        file::{self, in_order, listed, type_of},
        kind::Kind,
    },
    similar::nearest,
};

/// Keys in `[random]` that are no options, unless their value is a table.
const OF_RANDOM: [&str; 2] = ["runs", "seed"];

/// Keys of the table of an option in `[random]`.
const OF_RANGE: [&str; 4] = ["min", "max", "log", "choices"];

impl Reader<'_> {
    /// The table `[random]`.
    pub fn random(&mut self, table_key: &Key, table: DeTable) {
        let (mut runs, mut options) = (None, 0);
        for (key, value) in in_order(table) {
            let name = key.get_ref().as_ref();
            match (name, value.get_ref()) {
                (_, DeValue::Table(range)) => {
                    options += 1;
                    self.random_option(&key, range, value.span());
                }
                ("runs", other) => match integer(other) {
                    Some(number @ 1..) => runs = Some(number as usize),
                    _ => self.refuse(value.span(), "`runs` takes an integer of at least 1"),
                },
                ("seed", other) => match integer(other) {
                    Some(seed @ 0..) => self.draws.seed = seed as u64,
                    _ => self.refuse(value.span(), "`seed` takes an integer of at least 0"),
                },
                (name, other) if file::option(self.command, name).is_some() => {
                    let refusal = format!(
                        "`{name}` takes a table in [random], {{ min = A, max = B }} or \
                         {{ choices = [A, B] }}, and this is {}",
                        type_of(other)
                    );
                    self.refuse(value.span(), refusal);
                }
                (name, _) => match nearest(name, OF_RANDOM.map(str::to_owned)) {
                    Some((_, own)) => {
                        let refusal = format!("unknown key `{name}`; the nearest one is `{own}`");
                        self.refuse(key.span(), refusal);
                    }
                    None => drop(self.setting(&key, &value)),
                },
            }
        }
        match runs {
            Some(runs) => self.draws.runs = runs,
            None => self.refuse(
                table_key.span(),
                "[random] needs `runs`, the number of draws",
            ),
        }
        if options == 0 {
            let refusal = "[random] has no option to draw, such as \
                           learning_rate = { min = 1e-4, max = 1e-2, log = true }";
            self.refuse(table_key.span(), refusal);
        }
    }

    /// The table of an option in `[random]`.
    fn random_option(&mut self, key: &Key, table: &DeTable, span: std::ops::Range<usize>) {
        let name = key.get_ref().as_ref();
        if file::option(self.command, name).is_none() {
            // The error of an unknown option.
            self.setting(key, &Spanned::new(span, DeValue::Boolean(true)));
            return;
        }
        let unknown = table.iter().find(|(key, _)| {
            let name: &str = key.get_ref().as_ref();
            !OF_RANGE.contains(&name)
        });
        if let Some((unknown, _)) = unknown {
            let keys = listed(&OF_RANGE.map(|key| format!("`{key}`")));
            let refusal = format!("unknown key `{}`; there are {keys}", unknown.get_ref());
            self.refuse(unknown.span(), refusal);
            return;
        }
        let of = |wanted: &str| {
            let mut entries = table.iter();
            entries.find(|(key, _)| key.get_ref() == wanted)
        };
        match (of("choices"), of("min"), of("max"), of("log")) {
            (Some((_, choices)), None, None, None) => match choices.get_ref() {
                DeValue::Array(values) => {
                    if let Some(values) = self.values(key, values, choices.span()) {
                        self.vary(key, values[0].clone(), Values::Choices(values));
                    }
                }
                other => {
                    let refusal = format!("`choices` is an array, and this is {}", type_of(other));
                    self.refuse(choices.span(), refusal);
                }
            },
            (None, Some((_, min)), Some((_, max)), log) => {
                let is_log = match log.map(|(_, log)| (log.get_ref(), log.span())) {
                    None => false,
                    Some((DeValue::Boolean(is_log), _)) => *is_log,
                    Some((other, span)) => {
                        let this = type_of(other);
                        let refusal = format!("`log` is true or false, and this is {this}");
                        return self.refuse(span, refusal);
                    }
                };
                self.range(key, min, max, is_log);
            }
            _ => self.refuse(
                span,
                format!("`{name}` takes {{ min = A, max = B }}, with log = true or without, or {{ choices = [A, B] }}"),
            ),
        }
    }

    /// A range of a number.
    fn range(&mut self, key: &Key, min: &Spanned<DeValue>, max: &Spanned<DeValue>, is_log: bool) {
        let kind = file::option(self.command, key.get_ref())
            .map_or(Kind::Other, |(argument, _)| Kind::of(argument));
        if !matches!(kind, Kind::Integer | Kind::Float | Kind::Other) {
            let refusal = format!(
                "`{}` takes {}, which has no range: give {{ choices = [...] }}",
                key.get_ref(),
                kind.name()
            );
            return self.refuse(key.span(), refusal);
        }
        for bound in [min, max] {
            if !matches!(bound.get_ref(), DeValue::Integer(_) | DeValue::Float(_)) {
                let this = type_of(bound.get_ref());
                return self.refuse(
                    bound.span(),
                    format!("a bound is a number, and this is {this}"),
                );
            }
        }
        // Each bound is a value that the option takes.
        let (Some(first), Some(_)) = (self.setting(key, min), self.setting(key, max)) else {
            return;
        };
        let is_whole = kind != Kind::Float;
        let range = match (integer(min.get_ref()), integer(max.get_ref())) {
            (Some(low), Some(high)) if is_whole => Range::integers(low, high, is_log),
            _ => Range::floats(float(min.get_ref()), float(max.get_ref()), is_log),
        };
        match range {
            Ok(range) => self.vary(key, first.clone(), Values::Range(range, first)),
            Err(refusal) => self.refuse(min.span(), format!("`{}`: {refusal}", key.get_ref())),
        }
    }
}

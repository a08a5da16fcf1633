//! The options that apply with given values: those of `[placeholders]`, and those of conditions that
//! hold.
//!
//! As in cargo-generate, conditions are evaluated again as long as they add options, and an option
//! keeps its first definition. Conditions are read in the order of the file, where cargo-generate
//! takes any order.

use std::rc::Rc;

use super::{
    Template,
    answers::{Answers, Values},
    conditions::Evaluator,
    option::{TemplateOption, Value},
    variables::Variables,
};
use crate::{
    error::{Error, Result},
    name::Name,
};

/// The options that apply, and their values.
pub(crate) struct Applicable<'t> {
    /// The options, in the order in which they are asked.
    pub options: Vec<&'t TemplateOption>,
    /// Their values, in the same order.
    pub values: Values,
    /// The options without a value.
    pub lacking: Vec<&'t TemplateOption>,
    /// The given values that the option that applies refuses, by name.
    pub misfits: Vec<(String, Error)>,
}

impl<'t> Applicable<'t> {
    /// The options of `template` that apply with the values in `given`; other options have their
    /// defaults, or no value if `defaults` is false.
    ///
    /// # Errors
    /// A condition is invalid.
    pub fn of(template: &'t Template, name: &Name, given: &Values, defaults: bool) -> Result<Self> {
        let mut found = Self {
            options: Vec::new(),
            values: Values::new(),
            lacking: Vec::new(),
            misfits: Vec::new(),
        };
        for option in template.options() {
            found.add(option, given.get(&option.name).cloned(), defaults);
        }
        let mut left: Vec<_> = template.config().conditionals.iter().collect();
        left.retain(|conditional| !conditional.options.is_empty());
        while !left.is_empty() {
            let variables = found.variables(name)?;
            let evaluator = Evaluator::new(&variables);
            let mut truths = Vec::new();
            for conditional in &left {
                truths.push(evaluator.holds(template.config(), conditional)?);
            }
            let mut truths = truths.into_iter();
            let (hold, others): (Vec<_>, Vec<_>) = left
                .into_iter()
                .partition(|_| truths.next().unwrap_or(false));
            if hold.is_empty() {
                break;
            }
            for option in hold.into_iter().flat_map(|one| &one.options) {
                if !found.has(option) {
                    let value = found.fitting(option, given);
                    found.add(option, value, defaults);
                }
            }
            left = others;
        }
        Ok(found)
    }

    /// The given value of an option, which another condition may define with other values.
    fn fitting(&mut self, option: &TemplateOption, given: &Values) -> Option<Value> {
        match option.parse(&given.get(&option.name)?.to_string()) {
            Ok(value) => Some(value),
            Err(error) => {
                self.misfits.push((option.name.clone(), error));
                None
            }
        }
    }

    fn has(&self, option: &TemplateOption) -> bool {
        self.options.iter().any(|other| other.name == option.name)
    }

    fn add(&mut self, option: &'t TemplateOption, given: Option<Value>, defaults: bool) {
        self.options.push(option);
        let default = option.default.clone().filter(|_| defaults);
        match given.or(default) {
            Some(value) => drop(self.values.insert(option.name.clone(), value)),
            None => self.lacking.push(option),
        }
    }

    fn variables(&self, name: &Name) -> Result<Rc<Variables>> {
        let folder = std::path::absolute(name.package())
            .map_err(|cause| Error::io("find the folder", name.package().as_ref(), cause))?;
        let answers = Answers::partial(name.clone(), self.values.clone());
        Ok(Rc::new(Variables::new(&answers, folder)))
    }
}

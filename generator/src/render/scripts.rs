//! The Liquid filter `rhai` of cargo-generate: `{{ "name.rhai" | rhai }}` is the text that a script of
//! the template returns.
//!
//! Scripts run without access to files, programs, the clock and the terminal, and with a limit of
//! operations. What cargo-generate offers beyond that is refused by name.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use heck::{
    ToKebabCase, ToLowerCamelCase, ToPascalCase, ToShoutyKebabCase, ToShoutySnakeCase, ToSnakeCase,
    ToTitleCase, ToUpperCamelCase,
};
use liquid_core::{
    Display_filter, Error, Filter, FilterReflection, ParseFilter, Result, Runtime, Value,
    ValueView, parser::FilterArguments,
};
use rhai::{Dynamic, Engine, EvalAltResult, Module};

use crate::{
    quiet,
    template::{conditions::to_rhai, scripts::calls, variables::Variables},
};

/// Maximum number of operations of a script.
const MOST_OPERATIONS: u64 = 1_000_000;
/// Maximum length of a text or list in a script.
const LONGEST: usize = 1_000_000;

/// Modules of cargo-generate with functions that a filter cannot use here.
const REFUSED_MODULES: &[&str] = &["env", "file", "system"];
/// Functions that a filter cannot use here.
const REFUSED: &[&str] = &[
    "import",
    "sleep",
    "timestamp",
    "variable::prompt",
    "variable::set",
];

/// The scripts of a template.
#[derive(Debug)]
pub(super) struct Scripts {
    /// All files that are text, by path.
    files: BTreeMap<String, String>,
    variables: Arc<BTreeMap<String, Value>>,
    /// The paths of the scripts that ran.
    used: Mutex<BTreeSet<String>>,
}

type Returned<T> = std::result::Result<T, Box<EvalAltResult>>;

impl Scripts {
    /// The scripts among `files`, paths with their texts, which see the variables.
    pub fn new(files: BTreeMap<String, String>, variables: &Variables) -> Arc<Self> {
        let names: Vec<String> = variables.names().map(str::to_owned).collect();
        let values = names.into_iter().filter_map(|name| {
            let value = variables.value(&name)?.clone();
            Some((name, value))
        });
        Arc::new(Self {
            files,
            variables: Arc::new(values.collect()),
            used: Mutex::default(),
        })
    }

    /// The paths of the scripts that ran, which are not part of the project.
    pub fn used(&self) -> BTreeSet<String> {
        let used = self.used.lock();
        used.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The text that the script at `path` returns, or why there is none.
    fn run(&self, path: &str) -> std::result::Result<String, String> {
        let parts: Vec<_> = path.split('/').filter(|part| *part != ".").collect();
        if parts.iter().any(|part| matches!(*part, "" | "..")) {
            return Err(format!("the script `{path}` lies outside the template"));
        }
        let plain = parts.join("/");
        let script = self.files.get(&plain);
        let script = script.ok_or_else(|| format!("there is no script `{path}`"))?;
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.insert(plain);
        drop(used);
        if let Some(call) = calls(script)
            .into_iter()
            .find(|call| is_refused(&call.name))
        {
            return Err(format!(
                "the script `{path}` uses `{}` in line {}, which Kiln does not run",
                call.name, call.line
            ));
        }
        // Rhai skips such a line in files only.
        let script = match script.starts_with("#!") {
            true => script.split_once('\n').map_or("", |(_, rest)| rest),
            false => script,
        };
        let engine = engine(&self.variables);
        quiet::catch(|| engine.eval::<String>(script))
            .unwrap_or_else(|why| Err(why.into()))
            .map_err(|error| format!("the script `{path}` failed: {error}"))
    }
}

fn is_refused(name: &str) -> bool {
    let module = name.split_once("::").map(|(module, _)| module);
    REFUSED.contains(&name) || module.is_some_and(|module| REFUSED_MODULES.contains(&module))
}

fn engine(variables: &Arc<BTreeMap<String, Value>>) -> Engine {
    let mut engine = Engine::new();
    engine
        .set_max_operations(MOST_OPERATIONS)
        .set_max_string_size(LONGEST)
        .set_max_array_size(LONGEST)
        .set_max_map_size(LONGEST)
        .on_print(|_| {})
        .on_debug(|_, _, _| {})
        .register_static_module("variable", variable_module(variables).into())
        .register_fn("to_kebab_case", |text: &str| text.to_kebab_case())
        .register_fn("to_lower_camel_case", |text: &str| {
            text.to_lower_camel_case()
        })
        .register_fn("to_pascal_case", |text: &str| text.to_pascal_case())
        .register_fn("to_shouty_kebab_case", |text: &str| {
            text.to_shouty_kebab_case()
        })
        .register_fn("to_shouty_snake_case", |text: &str| {
            text.to_shouty_snake_case()
        })
        .register_fn("to_snake_case", |text: &str| text.to_snake_case())
        .register_fn("to_title_case", |text: &str| text.to_title_case())
        .register_fn("to_upper_camel_case", |text: &str| {
            text.to_upper_camel_case()
        })
        .register_fn("abort", |why: &str| -> Returned<String> { Err(why.into()) });
    engine
}

/// The module `variable`, whose functions only read.
fn variable_module(variables: &Arc<BTreeMap<String, Value>>) -> Module {
    let mut module = Module::new();
    let known = Arc::clone(variables);
    module.set_native_fn("is_set", move |name: &str| -> Returned<bool> {
        Ok(known.contains_key(name))
    });
    let known = Arc::clone(variables);
    module.set_native_fn("get", move |name: &str| -> Returned<Dynamic> {
        match known.get(name) {
            Some(value) => to_rhai(value),
            None => Ok(String::new().into()),
        }
    });
    module
}

/// The filter, as it is parsed.
#[derive(Clone, FilterReflection)]
#[filter(
    name = "rhai",
    description = "Runs a script of the template.",
    parsed(Rhai)
)]
pub(super) struct RhaiParser {
    pub scripts: Arc<Scripts>,
}

impl ParseFilter for RhaiParser {
    fn parse(&self, mut arguments: FilterArguments) -> Result<Box<dyn Filter>> {
        if arguments.positional.next().is_some() || arguments.keyword.next().is_some() {
            return Err(Error::with_msg("The filter `rhai` has no arguments"));
        }
        Ok(Box::new(Rhai {
            scripts: Arc::clone(&self.scripts),
        }))
    }

    fn reflection(&self) -> &dyn FilterReflection {
        self
    }
}

#[derive(Debug, Display_filter)]
#[name = "rhai"]
struct Rhai {
    scripts: Arc<Scripts>,
}

impl Filter for Rhai {
    fn evaluate(&self, input: &dyn ValueView, _: &dyn Runtime) -> Result<Value> {
        let path = input.to_kstr().into_string();
        self.scripts
            .run(&path)
            .map(Value::scalar)
            .map_err(Error::with_msg)
    }
}

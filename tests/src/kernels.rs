//! Kernels of the engine, its loops over numbers, which debug builds must optimise.
//!
//! `[profile.dev.package.kiln-engine]` and `[profile.dev.package.kiln-kernels]` do so. A function with type or constant
//! parameters, or with `#[inline]`, is however compiled where it is used: in the project's own crate, whose debug builds
//! are not optimised. A kernel in it takes several times as long. Such functions are in the program, and not in the
//! engine's libraries.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    ffi::OsStr,
    fs,
    path::Path,
    process::Command,
};

use crate::{rendered::text, shared_target};

/// Modules of the engine that hold kernels. Others loop over epochs, files or options.
const WITH_KERNELS: [&str; 19] = [
    "anomalies",
    "autodiff",
    "bytes",
    "comm",
    "data",
    "ema",
    "half",
    "layers",
    "loss",
    "metric",
    "model",
    "observations",
    "optim",
    "precision",
    "products",
    "random",
    "replica::shared_update",
    "threads",
    "vectors",
];

/// Functions of these modules that are none: what they loop over or compute with, and their paths.
const NO_KERNELS: [(&str, &[&str]); 8] = [
    ("losses", &["loss::Losses::iter"]),
    (
        "parameters and their layers",
        &[
            "optim::gradients::FlatGradients::retain",
            "optim::groups::scaled",
        ],
    ),
    ("replicas", &["replica::shared_update::update_for_all"]),
    (
        "batches and their examples",
        &[
            "data::distributed::prefetch::Prefetch::plan",
            "data::distributed::shard::Shard::load_parts",
        ],
    ),
    (
        "tensors of a sum or a state",
        &[
            "metric::mean::Counted::add",
            "optim::adam::AdamState::state_flatten",
        ],
    ),
    (
        "the decay of tensors",
        &[
            "ema::average::Average::update_parameters",
            "ema::average::Average::update_statistics",
            "ema::update",
            "ema::update_statistics_at",
        ],
    ),
    (
        "dimensions of a tensor",
        &[
            "loss::cross_entropy::SparseCategoricalCrossentropy::of_observations",
            "precision::autocast::layer_in_half",
        ],
    ),
    (
        "the loss scale",
        &[
            "precision::autocast::Unscaled::map_float",
            "precision::autocast::with_gradient_times",
        ],
    ),
];

/// What to do about a kernel.
const ADVICE: &str = "\
A function with type or constant parameters, or with `#[inline]`, is compiled with the crate that uses it, which debug \
builds do not optimise. Move the loop into a function without them, as `mask` in \
template/engine/src/layers/dropout.rs; a small one needs `#[inline(never)]`. If it is no loop over numbers, add it to \
`NO_KERNELS` in tests/src/kernels.rs.";

/// A type with a kernel that all programs have from the engine.
const KNOWN: &str = "comm::buckets::Buckets::";

/// The paths of `NO_KERNELS`.
pub fn exceptions() -> BTreeSet<&'static str> {
    let paths = NO_KERNELS.iter().flat_map(|(_, paths)| *paths);
    paths.copied().collect()
}

/// Checks that no kernel of the engine is compiled with the debug program of a project. Of processors, x86-64 alone;
/// elsewhere returns `None`. Returns the [exceptions] that the program needs.
///
/// # Panics
/// One is, or `nm` and `objdump` of GNU binutils are missing.
pub fn are_optimised(program: &Path) -> Option<BTreeSet<&'static str>> {
    if !cfg!(target_arch = "x86_64") {
        eprintln!("skipped: kernels of the engine in programs for other processors than x86-64");
        return None;
    }
    let (symbols, engines) = (symbols(program), engines());
    let of_engine = symbols.iter().filter(|one| engines.contains(&one.symbol));
    let mut paths = of_engine.filter_map(|symbol| path(&symbol.name));
    assert!(
        paths.any(|path| path.starts_with(KNOWN)),
        "{}: no kernel of the engine is seen",
        program.display()
    );
    let functions = compiled_with(program, &symbols, &engines);
    assert!(
        functions.iter().any(|function| function.loops),
        "{}: no loop of a generic function is seen, not even over replicas",
        program.display()
    );
    let kernels = kernels(&functions);
    assert!(
        kernels.is_empty(),
        "debug builds do not optimise these kernels of the engine:\n{}\n{ADVICE}",
        kernels.join("\n")
    );
    Some(functions.iter().filter_map(Function::exception).collect())
}

/// The symbols of the engine's libraries in the shared debug builds, one of each crate for each choice of features.
/// Those of generic functions in a program are never among them, as they have a hash of the crate that uses the function.
fn engines() -> HashSet<String> {
    let files = fs::read_dir(shared_target().join("debug/deps")).expect("shared builds");
    let files = files.map(|file| file.expect("a file").path());
    let libraries = files.filter(|path| {
        let is_engine = |name: &OsStr| {
            let name = name.as_encoded_bytes();
            name.starts_with(b"libkiln_engine-") || name.starts_with(b"libkiln_kernels-")
        };
        path.extension() == Some(OsStr::new("rlib")) && path.file_name().is_some_and(is_engine)
    });
    let symbols = libraries.flat_map(|library| listed(&library, &[]));
    symbols.map(|(_, symbol)| symbol).collect()
}

/// A function of the engine that was compiled with the program.
#[derive(Debug)]
struct Function {
    /// As demangled.
    name: String,
    /// Without the name of its crate, generic arguments and closures.
    path: String,
    /// Whether its instructions may repeat within a call.
    loops: bool,
    /// Whether it computes with, or copies, floating-point numbers.
    computes: bool,
    /// Whether it runs code with the vector instructions of the processor, by the library pulp.
    vectorizes: bool,
    address: u64,
    /// The addresses of called functions.
    calls: Vec<u64>,
}

impl Function {
    /// Why this is a kernel, if so.
    fn reason(&self) -> Option<&'static str> {
        self.work().filter(|_| !exceptions().contains(&*self.path))
    }

    /// The exception without which this would be a kernel.
    fn exception(&self) -> Option<&'static str> {
        self.work().and_then(|_| exceptions().take(&*self.path))
    }

    /// What a kernel does, if this does it in a module with kernels. A closure may be the body of a loop in the standard
    /// library.
    fn work(&self) -> Option<&'static str> {
        let is_in = |module: &&str| {
            let rest = self.path.strip_prefix(module);
            rest.is_some_and(|rest| rest.starts_with("::"))
        };
        if !WITH_KERNELS.iter().any(is_in) {
            return None;
        }
        match (self.loops, self.computes && self.name.contains("{closure")) {
            _ if self.vectorizes => Some("it has vector instructions"),
            (true, _) => Some("it loops"),
            (false, true) => Some("it is a closure with floating-point numbers"),
            (false, false) => None,
        }
    }
}

/// A line for each kernel: its name, the reason, and the functions of the engine that call it.
fn kernels(functions: &[Function]) -> Vec<String> {
    let mut lines = Vec::new();
    for function in functions {
        let Some(reason) = function.reason() else {
            continue;
        };
        let callers = functions.iter();
        let callers = callers.filter(|caller| caller.calls.contains(&function.address));
        let callers: Vec<_> = callers.map(|caller| &*caller.name).collect();
        let called = match callers[..] {
            [] => String::new(),
            _ => format!("; called by {}", callers.join(" and ")),
        };
        lines.push(format!("  {}: {reason}{called}", function.name));
    }
    lines.sort();
    lines.dedup();
    lines
}

/// The functions of the engine in a program whose symbols are not those of its libraries.
fn compiled_with(program: &Path, symbols: &[Symbol], engines: &HashSet<String>) -> Vec<Function> {
    let mut found = HashMap::new();
    for Symbol {
        address,
        symbol,
        name,
    } in symbols
    {
        if let Some(path) = path(name).filter(|_| !engines.contains(symbol)) {
            found.insert(*address, (name.clone(), path));
        }
    }
    let calls = Calls::of(program, symbols);
    let instructions = disassembled(program, symbols, found.keys().copied(), &calls);
    let functions = found.into_iter().filter_map(|(address, (name, path))| {
        let instructions = instructions.get(&address)?;
        let called: Vec<u64> = instructions.iter().filter_map(|one| one.called).collect();
        Some(Function {
            name,
            path,
            loops: loops(instructions),
            computes: instructions.iter().any(|one| one.is_floating_point),
            vectorizes: called.iter().any(|called| calls.of_pulp.contains(called)),
            address,
            calls: called,
        })
    });
    functions.collect()
}

/// The path of a function of the engine within it, without generic arguments and closures; `None` for others. Traits
/// of the engine that a project implements are the project's.
fn path(name: &str) -> Option<String> {
    let within = name.trim_start_matches(['<', '&']);
    let mut path = String::new();
    let (mut depth, mut last) = (0, ' ');
    for letter in within.chars() {
        match letter {
            '<' => depth += 1,
            '>' if last == '-' => {}
            '>' if depth > 0 => depth -= 1,
            // The end of `<Type as Trait>`.
            '>' => {
                path = match path.split_once(" as ") {
                    Some((of_type, of_trait)) if is_foreign(of_type) => of_trait.to_owned(),
                    Some((of_type, _)) => of_type.to_owned(),
                    None => path,
                }
            }
            _ if depth == 0 => path.push(letter),
            _ => {}
        }
        last = letter;
    }
    let path = path.split("::{").next()?;
    let mut within = ["kiln_engine::", "kiln_kernels::"].into_iter();
    let path = within.find_map(|name| path.strip_prefix(name))?;
    let parts = path.split("::").filter(|part| !part.is_empty());
    Some(parts.collect::<Vec<_>>().join("::"))
}

/// Whether a type is a parameter, or one of the standard library or of Burn, for which the engine implements a trait of
/// its own. A project can do so for its types alone.
fn is_foreign(of_type: &str) -> bool {
    let crates = ["alloc::", "burn", "core::", "std::"];
    !of_type.contains("::") || crates.iter().any(|name| of_type.starts_with(name))
}

/// A function or other symbol of a program.
struct Symbol {
    address: u64,
    symbol: String,
    /// As demangled.
    name: String,
}

fn symbols(program: &Path) -> Vec<Symbol> {
    let (symbols, names) = (listed(program, &[]), listed(program, &["--demangle"]));
    assert_eq!(symbols.len(), names.len(), "{}", program.display());
    let pairs = symbols.into_iter().zip(names);
    let symbols = pairs.map(|((address, symbol), (_, name))| Symbol {
        address,
        symbol,
        name,
    });
    symbols.collect()
}

/// The address and the name of each symbol of a program or library, in its order.
fn listed(file: &Path, options: &[&str]) -> Vec<(u64, String)> {
    let mut nm = Command::new("nm");
    nm.args(["--no-sort", "--defined-only"])
        .args(options)
        .arg(file);
    let output = printed(&mut nm);
    let symbols = output.lines().filter_map(|line| {
        let (address, rest) = line.split_once(' ')?;
        let (_kind, name) = rest.split_once(' ')?;
        Some((number(address)?, name.to_owned()))
    });
    symbols.collect()
}

/// The output of a program of binutils, as written: demangled names may be long, and errors are about what is no code.
fn printed(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?} of GNU binutils: {error}"));
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    String::from_utf8(output.stdout).expect("symbols in ASCII")
}

/// Parts of the names of functions that do not return, which the cleanup after a panic follows.
const NEVER_RETURN: [&str; 5] = [
    "_Unwind_Resume",
    "_failed",
    "handle_alloc_error",
    "handle_error",
    "panic",
];

/// What is known of the functions that a program calls.
struct Calls {
    /// The function of each place in memory that has the address of one, as calls between libraries go by.
    slots: HashMap<u64, u64>,
    never_return: HashSet<u64>,
    /// Those of the library pulp, for vector instructions.
    of_pulp: HashSet<u64>,
}

impl Calls {
    fn of(program: &Path, symbols: &[Symbol]) -> Self {
        let mut objdump = Command::new("objdump");
        let output = printed(objdump.arg("--dynamic-reloc").arg(program));
        let slots = output.lines().filter_map(|line| {
            let (slot, function) = line.split_once(" R_X86_64_RELATIVE ")?;
            let function = function.trim().strip_prefix("*ABS*+")?;
            Some((number(slot)?, number(function)?))
        });
        let named = |is_it: fn(&str) -> bool| {
            let named = symbols.iter().filter(|symbol| is_it(&symbol.name));
            named.map(|symbol| symbol.address).collect()
        };
        Calls {
            slots: slots.collect(),
            never_return: named(never_returns),
            of_pulp: named(|name| name.trim_start_matches('<').starts_with("pulp::")),
        }
    }
}

fn never_returns(name: &str) -> bool {
    NEVER_RETURN.iter().any(|part| name.contains(part))
}

/// A hexadecimal number, with or without `0x`.
fn number(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).ok()
}

/// A machine instruction.
struct Instruction {
    address: u64,
    /// Where it may jump to.
    target: Option<u64>,
    /// The called function.
    called: Option<u64>,
    /// Whether the next instruction may follow.
    goes_on: bool,
    is_floating_point: bool,
}

/// The instructions of the functions at these addresses of a program.
fn disassembled(
    program: &Path,
    symbols: &[Symbol],
    addresses: impl Iterator<Item = u64>,
    calls: &Calls,
) -> HashMap<u64, Vec<Instruction>> {
    let mut functions: HashMap<u64, Vec<Instruction>> =
        addresses.map(|address| (address, Vec::new())).collect();
    let (Some(first), Some(last)) = (functions.keys().min(), functions.keys().max()) else {
        return functions;
    };
    let mut objdump = Command::new("objdump");
    objdump.args(["--disassemble", "--no-show-raw-insn"]);
    objdump.arg(format!("--start-address={first}"));
    let after = symbols.iter().map(|symbol| symbol.address);
    if let Some(end) = after.filter(|address| address > last).min() {
        objdump.arg(format!("--stop-address={end}"));
    }
    let output = printed(objdump.arg(program));
    let mut function = None;
    for line in output.lines() {
        if let Some((address, _)) = line.split_once(" <").filter(|_| line.ends_with(">:")) {
            function = number(address);
        } else if let Some(function) = function.and_then(|at| functions.get_mut(&at)) {
            function.extend(instruction(line, calls));
        }
    }
    functions
}

/// The instruction of a line of `objdump`, such as `  15949:\tje     15994 <name+0x84>`, or, through a slot,
/// `  8c1958:\tcall   *0x12e7da2(%rip)        # 1ba9700 <name>`.
fn instruction(line: &str, calls: &Calls) -> Option<Instruction> {
    let (address, code) = line.split_once(":\t")?;
    let mut words = code.split_whitespace();
    let mut operation = words.next()?;
    while ["bnd", "notrack", "lock", "rep", "repz", "repnz"].contains(&operation) {
        operation = words.next()?;
    }
    let target = words.next().and_then(number);
    let slot = code
        .split_once("# ")
        .and_then(|(_, slot)| number(slot.split(' ').next()?));
    let function = slot.and_then(|slot| calls.slots.get(&slot).copied());
    let (is_call, is_jump) = (operation == "call", operation.starts_with("jmp"));
    let called = target.or(function).filter(|_| is_call || is_jump);
    let is_last = is_call
        && (never_returns(code) || called.is_some_and(|one| calls.never_return.contains(&one)));
    Some(Instruction {
        address: number(address.trim())?,
        target: target.filter(|_| operation.starts_with('j')),
        called,
        goes_on: !(is_last || is_jump || ["ret", "ud2", "int3"].contains(&operation)),
        is_floating_point: operation.ends_with("ss") || operation.ends_with("sd"),
    })
}

/// Whether the instructions of a function have a cycle: those that none precedes are removed until none is left, or
/// all.
fn loops(instructions: &[Instruction]) -> bool {
    let places = instructions.iter().enumerate();
    let places: HashMap<u64, usize> = places.map(|(place, one)| (one.address, place)).collect();
    let successors = |place: usize| {
        let one: &Instruction = &instructions[place];
        let target = one.target.and_then(|target| places.get(&target).copied());
        let next = (one.goes_on && place + 1 < instructions.len()).then_some(place + 1);
        target.into_iter().chain(next)
    };
    let mut preceding = vec![0; instructions.len()];
    (0..instructions.len())
        .flat_map(successors)
        .for_each(|place| preceding[place] += 1);
    let mut removed: Vec<usize> = (0..instructions.len())
        .filter(|place| preceding[*place] == 0)
        .collect();
    let mut left = instructions.len();
    while let Some(place) = removed.pop() {
        left -= 1;
        for next in successors(place) {
            preceding[next] -= 1;
            if preceding[next] == 0 {
                removed.push(next);
            }
        }
    }
    left > 0
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// An engine, optimised.
    const ENGINE: &str = r#"
        pub mod layers {
            pub trait Layer {
                fn forward(&self, values: &mut [f32]);
            }
            pub struct Scale<B>(pub B);
            impl<B: Clone> Scale<B> {
                pub fn looping(&self, values: &mut [f32]) -> B {
                    for value in values.iter_mut() {
                        *value = value.sqrt() * 2.0 + 1.0;
                    }
                    self.0.clone()
                }
                pub fn closing(&self, values: &[f32]) -> Vec<f32> {
                    values.iter().map(|value| value * 3.0).collect()
                }
                pub fn passing(&self, values: &mut [f32]) -> B {
                    kernel(values);
                    self.0.clone()
                }
            }
            impl<B: Clone> Layer for Scale<B> {
                fn forward(&self, values: &mut [f32]) {
                    let mut place = 0;
                    while place < values.len() {
                        values[place] += 1.0;
                        place += 1;
                    }
                }
            }
            #[inline]
            pub fn inline(values: &mut [i32]) {
                for value in values {
                    *value *= 3;
                }
            }
            #[inline(never)]
            pub fn kernel(values: &mut [f32]) {
                for value in values {
                    *value *= 4.0;
                }
            }
        }
        pub mod optim {
            pub mod groups {
                pub fn scaled<T: Fn(&str)>(names: &[&str], call: T) {
                    for name in names {
                        call(name);
                    }
                }
            }
        }
        pub mod report {
            pub fn write<T: Fn(f32)>(values: &[f32], call: T) {
                for value in values {
                    call(*value);
                }
            }
        }
        pub mod vectors {
            #[inline(never)]
            pub fn dispatch(work: impl FnOnce()) {
                pulp::vectorize(work)
            }
        }
        pub mod model {
            pub fn vectorized<const N: usize>(values: &mut [f32; N]) {
                pulp::vectorize(|| super::layers::kernel(values));
                super::vectors::dispatch(|| super::layers::kernel(values));
            }
        }
    "#;

    const PULP: &str =
        "#[inline(never)] pub fn vectorize<R>(work: impl FnOnce() -> R) -> R { work() }";

    /// A project, not optimised.
    const PROGRAM: &str = r#"
        use kiln_engine::{layers::{self, Layer, Scale}, model, optim::groups, report};
        struct Own;
        impl Layer for Own {
            fn forward(&self, values: &mut [f32]) {
                for value in values {
                    *value += 1.0;
                }
            }
        }
        fn main() {
            let (mut values, scale) = ([1.0; 7], Scale(3_u8));
            let layers: [&dyn Layer; 2] = [&scale, &Own];
            layers.into_iter().for_each(|layer| layer.forward(&mut values));
            scale.looping(&mut values);
            scale.passing(&mut values);
            layers::inline(&mut [1, 2]);
            groups::scaled(&["a"], |name| print!("{name}"));
            report::write(&scale.closing(&values), |value| print!("{value}"));
            model::vectorized(&mut values);
        }
    "#;

    fn compile(folder: &Path, name: &str, source: &str, options: &[&str]) -> PathBuf {
        let file = folder.join(format!("{name}.rs"));
        fs::write(&file, source).unwrap();
        let mut rustc = Command::new("rustc");
        rustc.current_dir(folder).args(options).arg(&file);
        rustc.args(["--edition", "2024", "-C", "embed-bitcode=no", "-L", "."]);
        let output = rustc.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        folder.join(name)
    }

    /// The kernels of the program above that are not optimised.
    fn found(mangling: &[&str]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let optimised = ["--crate-type", "rlib", "-C", "opt-level=3"];
        let options = [&optimised, mangling].concat();
        compile(folder.path(), "pulp", PULP, &options);
        let options = [&options[..], &["--extern", "pulp"]].concat();
        compile(folder.path(), "kiln_engine", ENGINE, &options);
        let options = [&["--extern", "kiln_engine"], mangling].concat();
        let program = compile(folder.path(), "my_model", PROGRAM, &options);
        let engine = listed(&folder.path().join("libkiln_engine.rlib"), &[]).into_iter();
        let engine: HashSet<String> = engine.map(|(_, symbol)| symbol).collect();
        assert!(engine.iter().any(|symbol| symbol.contains("kernel")));
        let functions = compiled_with(&program, &symbols(&program), &engine);
        assert!(
            functions
                .iter()
                .any(|one| one.path == "report::write" && one.loops)
        );
        let needed: Vec<&str> = functions.iter().filter_map(Function::exception).collect();
        assert_eq!(needed, ["optim::groups::scaled"]);
        kernels(&functions)
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn kernels_in_generic_and_inline_functions_are_found_and_no_others() {
        for mangling in [&[][..], &["-C", "symbol-mangling-version=v0"]] {
            let found = found(mangling);
            let expected = [
                ("layers::Scale", "forward", "it loops"),
                ("layers::Scale", "closing", "a closure"),
                ("layers::Scale", "looping", "it loops"),
                ("layers::inline", "", "it loops"),
                (
                    "  kiln_engine::model::vectorized",
                    "",
                    "vector instructions",
                ),
                ("vectors::dispatch", "; called by", "model::vectorized"),
            ];
            assert_eq!(found.len(), expected.len(), "{found:#?}");
            for (path, function, reason) in expected {
                let is_it = |line: &&String| {
                    [path, function, reason]
                        .iter()
                        .all(|part| line.contains(part))
                };
                assert_eq!(found.iter().filter(is_it).count(), 1, "{path}: {found:#?}");
            }
        }
    }

    #[test]
    fn functions_of_the_engine_are_told_from_those_of_a_project() {
        let paths = [
            (
                "kiln_engine::layers::dropout::Dropout::forward",
                Some("layers::dropout::Dropout::forward"),
            ),
            (
                "<kiln_engine::layers::Dropout>::forward::<2>::{closure#0}",
                Some("layers::Dropout::forward"),
            ),
            (
                "kiln_engine::data::Shard<E>::get::{{closure}}::{{closure}}",
                Some("data::Shard::get"),
            ),
            (
                "<kiln_engine::a::Recorded<O> as burn::Backward<B,_>>::backward",
                Some("a::Recorded::backward"),
            ),
            (
                "<F as kiln_engine::model::Choose>::tensor",
                Some("model::Choose::tensor"),
            ),
            (
                "<burn_tensor::Tensor<_> as kiln_kernels::autodiff::Input<B>>::values",
                Some("autodiff::Input::values"),
            ),
            (
                "kiln_engine::comm::<impl kiln_engine::replica::Context>::update",
                Some("comm::update"),
            ),
            (
                "<training::data::Digits as kiln_engine::data::Dataset>::get",
                None,
            ),
            (
                "core::ptr::drop_in_place<kiln_engine::data::Shard<E>>",
                None,
            ),
        ];
        for (name, expected) in paths {
            assert_eq!(path(name).as_deref(), expected, "{name}");
        }
    }
}

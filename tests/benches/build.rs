//! Build times: `cargo bench -p kiln-tests --bench build`, or `-- release` for one variant.
//!
//! Each variant is the default project with a change to its manifest. It is built into an empty
//! folder, and again after edits of a TODO site. A variant takes about ten minutes.
//!
//! Prints the times of each variant, and writes `target/build.json`, which keeps variants of earlier runs.

use std::{fs, path::PathBuf, process::Command, time::Instant};

use kiln_tests::{
    NAME,
    rendered::{Project, replace_in, text},
    repository,
    rounds::{chosen, median},
};
use serde_json::{Map, Value, json};

/// The number of edits of a TODO site; the median rebuild counts.
const EDITS: usize = 5;
/// Kernel sizes of the model, between which the edits alternate.
const KERNELS: [&str; 2] = [
    "Conv2dConfig::new(channels, [3, 3])",
    "Conv2dConfig::new(channels, [5, 5])",
];

/// A build configuration of the default project.
struct Variant {
    name: &'static str,
    release: bool,
    /// Replacements in the manifest.
    manifest: &'static [(&'static str, &'static str)],
}

const VARIANTS: [Variant; 6] = [
    Variant {
        name: "dev",
        release: false,
        manifest: &[],
    },
    Variant {
        name: "dev, macros and build scripts optimised too",
        release: false,
        manifest: &[(
            "[profile.dev.package.\"*\"]\n",
            "[profile.dev.package.\"*\"]\nopt-level = 1\n",
        )],
    },
    Variant {
        name: "release",
        release: true,
        manifest: &[],
    },
    Variant {
        name: "release, not incremental",
        release: true,
        manifest: &[("incremental = true\n", "")],
    },
    Variant {
        name: "release without cpu-layers",
        release: true,
        manifest: &[("default = [\"flex\", \"cpu-layers\"", "default = [\"flex\"")],
    },
    Variant {
        name: "release without tensorboard",
        release: true,
        manifest: &[(", \"tensorboard\"]", "]")],
    },
];

fn main() {
    let chosen = chosen(&VARIANTS.each_ref().map(|variant| variant.name));
    let variants = VARIANTS.iter();
    let variants = variants.filter(|variant| chosen.contains(&variant.name));
    let path = repository().join("target/build.json");
    let before = fs::read_to_string(&path).ok();
    let mut report: Map<String, Value> = before
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    for variant in variants {
        let measured = Build::of(variant).measure();
        println!("{}: {measured:#}", variant.name);
        report.insert(variant.name.to_owned(), measured);
        let text = serde_json::to_string_pretty(&report).expect("JSON");
        fs::write(&path, text + "\n").expect("a file");
    }
    println!("\nwritten: target/build.json");
}

/// A project and its initially empty build folder.
struct Build {
    project: Project,
    release: bool,
}

impl Build {
    fn of(variant: &Variant) -> Self {
        let project = Project::to_edit();
        let manifest = project.path().join("Cargo.toml");
        for (from, to) in variant.manifest {
            replace_in(&manifest, from, to);
        }
        Build {
            project,
            release: variant.release,
        }
    }

    fn measure(&self) -> Value {
        let (cold, crates) = self.cargo(&["build"]);
        let (tests, _) = self.cargo(&["test", "--no-run"]);
        let mut rebuilds: Vec<f64> = (0..EDITS).map(|edit| self.rebuild(edit)).collect();
        rebuilds.sort_by(f64::total_cmp);
        let profile = if self.release { "release" } else { "debug" };
        let program = self.folder().join(profile).join(NAME);
        let bytes = fs::metadata(program).expect("a program").len();
        json!({
            "cold build, seconds": cold,
            "crates": crates,
            "tests after it, seconds": tests,
            "rebuild after an edit, seconds": median(&rebuilds),
            "rebuilds, seconds": rebuilds,
            "program, bytes": bytes,
        })
    }

    /// The time of a rebuild after an edit of the model.
    fn rebuild(&self, edit: usize) -> f64 {
        self.project
            .edit("model.rs", KERNELS[edit % 2], KERNELS[(edit + 1) % 2]);
        self.cargo(&["build"]).0
    }

    fn folder(&self) -> PathBuf {
        self.project.path().join("target")
    }

    /// The seconds that cargo takes, and the number of crates that it compiles.
    fn cargo(&self, arguments: &[&str]) -> (f64, usize) {
        let start = Instant::now();
        let output = Command::new("cargo")
            .args(arguments)
            .args(self.release.then_some("--release"))
            .current_dir(self.project.path())
            .env("CARGO_TARGET_DIR", self.folder())
            .output()
            .expect("cargo starts");
        let seconds = start.elapsed().as_secs_f64();
        let printed = text(&output);
        assert!(output.status.success(), "{arguments:?}: {printed}");
        (seconds, printed.matches(" Compiling ").count())
    }
}

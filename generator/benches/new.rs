//! Benchmarks of `kiln new`: the whole process, and its parts in this process.

use std::{
    hint::black_box,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use criterion::{Criterion, criterion_group, criterion_main};
use kiln::{
    name::Name,
    project::{self, WriteOptions},
    render::render,
    template::{Template, Vcs, answers::Answers},
};

fn process(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = |args: &[&str]| {
        let status = Command::new(env!("CARGO_BIN_EXE_kiln"))
            .args(args)
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .status()
            .expect("the binary runs");
        assert!(status.success());
    };
    c.bench_function("process: kiln new x --yes --vcs none", |b| {
        b.iter_custom(|times| {
            let mut total = Duration::ZERO;
            for _ in 0..times {
                let start = Instant::now();
                run(&["new", "x", "--yes", "--vcs", "none"]);
                total += start.elapsed();
                std::fs::remove_dir_all(folder.path().join("x")).expect("it was made");
            }
            total
        });
    });
    c.bench_function("process: kiln --version", |b| {
        b.iter(|| run(&["--version"]))
    });
}

fn in_process(c: &mut Criterion) {
    let name = Name::parse("x").expect("a valid name");
    c.bench_function("read the template", |b| {
        b.iter(|| black_box(Template::embedded().expect("a valid template")));
    });
    let template = Template::embedded().expect("a valid template");
    let answers = Answers::defaults(&template, name).expect("defaults");
    c.bench_function("render", |b| {
        b.iter(|| black_box(render(&template, &answers).expect("it renders")));
    });
    let rendered = render(&template, &answers).expect("it renders");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let target = folder.path().join("x");
    let options = WriteOptions {
        force: false,
        vcs: Vcs::None,
        require_vcs: false,
    };
    c.bench_function("write", |b| {
        b.iter_custom(|times| {
            let mut total = Duration::ZERO;
            for _ in 0..times {
                let start = Instant::now();
                project::write(&rendered, &target, options).expect("it is written");
                total += start.elapsed();
                std::fs::remove_dir_all(&target).expect("it was made");
            }
            total
        });
    });
}

criterion_group!(benches, process, in_process);
criterion_main!(benches);

//! The files of `launch/`: what their commands run.
#![cfg(unix)]

use std::{env, fs, path::Path, process::Command};

use crate::common::Place;
use kiln::{
    name::Name,
    render::render,
    template::{Template, answers::Answers},
};

/// The bundle of kernels in the folder that workers share.
const BUNDLE: &str = "/runs/kernels.bundle";

/// A program that prints its arguments, and fails with a status of its own.
const PRINTS_ARGUMENTS: &str = "printf '[%s]' \"$@\"\nexit 3";

/// A file of `launch/` of a project for `cluster` and `hardware`.
fn launch(cluster: &str, hardware: &str, name: &str) -> String {
    let template = Template::embedded().unwrap();
    let project = Name::parse("my-model").unwrap();
    let answers = [("cluster", cluster), ("hardware", hardware)]
        .into_iter()
        .fold(
            Answers::defaults(&template, project).unwrap(),
            |answers, (option, value)| answers.with(&template, option, value).unwrap(),
        );
    let rendered = render(&template, &answers).unwrap();
    let mut files = rendered.files.iter();
    let file = files.find(|file| file.path == Path::new("launch").join(name));
    String::from_utf8(file.unwrap().contents.to_vec()).unwrap()
}

fn kubernetes(hardware: &str) -> String {
    launch("kubernetes", hardware, "kubernetes.yaml")
}

/// The script of the command, whose next word is the program.
fn script(text: &str) -> String {
    let (_, rest) = text.split_once("- -c\n").expect(text);
    let (block, rest) = rest.split_once("- my-model").expect(text);
    assert!(rest.starts_with('\n'), "{text}");
    let (_, lines) = block.split_once("- |\n").expect(text);
    let indentation = lines.len() - lines.trim_start().len();
    let lines = lines.lines().filter_map(|line| line.get(indentation..));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn kubernetes_uses_kernels_where_a_bundle_has_them() {
    let place = Place::new();
    let [bundle, program] = ["kernels.bundle", "program"].map(|name| place.join(name));
    place.put_program("program", PRINTS_ARGUMENTS);
    for hardware in ["cuda", "wgpu"] {
        let script = script(&kubernetes(hardware));
        assert!(script.contains(BUNDLE), "{script}");
        let script = script.replace(BUNDLE, bundle.to_str().unwrap());
        let run = || {
            let mut worker = Command::new("sh");
            worker.args(["-c", &script]).arg(&program);
            let output = worker.args(["--data-dir", "my data", "--resume"]).output();
            let output = output.unwrap();
            assert_eq!(output.status.code(), Some(3), "of the program: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(run(), "[--data-dir][my data][--resume]", "{script}");
        fs::write(&bundle, "").unwrap();
        let with_kernels = format!(
            "[--kernels][{}][--data-dir][my data][--resume]",
            bundle.display()
        );
        assert_eq!(run(), with_kernels, "{script}");
        fs::remove_file(&bundle).unwrap();
    }
}

#[test]
fn kubernetes_starts_the_program_itself_on_cpus() {
    let text = kubernetes("flex");
    assert!(
        text.contains("command: [mpirun, -np, \"2\", --bind-to, none, my-model]\n"),
        "{text}"
    );
    assert!(!text.contains("kernels"), "{text}");
}

#[test]
fn slurm_uses_kernels_where_a_bundle_has_them() {
    let place = Place::new();
    let [script, bundle] = ["slurm.sh", "kernels.bundle"].map(|name| place.join(name));
    place.put_program("srun", PRINTS_ARGUMENTS);
    let run = |hardware| {
        fs::write(&script, launch("slurm", hardware, "slurm.sh")).unwrap();
        let path = format!("{}:{}", place.path().display(), env::var("PATH").unwrap());
        let mut job = Command::new("bash");
        job.arg(&script).args(["--data-dir", "my data"]);
        job.envs([("PATH", &*path), ("SLURM_CPUS_PER_TASK", "8")]);
        let output = job.current_dir(place.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "of the program: {output:?}");
        let printed = String::from_utf8(output.stdout).unwrap();
        let (_, options) = printed.split_once("[--resume]").expect(&printed);
        options.to_owned()
    };
    let given = "[--data-dir][my data]";
    for hardware in ["cuda", "wgpu", "flex"] {
        assert_eq!(run(hardware), given, "{hardware}");
    }
    fs::write(&bundle, "").unwrap();
    for hardware in ["cuda", "wgpu"] {
        let with_kernels = format!("[--kernels][kernels.bundle]{given}");
        assert_eq!(run(hardware), with_kernels, "{hardware}");
    }
    assert_eq!(run("flex"), given, "the option is for GPUs");
}

/// Each file of the image comes from an earlier stage, or from the project.
#[test]
fn an_image_takes_files_from_stages_that_it_has() {
    let stages = |hardware| {
        let text = launch("kubernetes", hardware, "Dockerfile");
        let mut stages: Vec<String> = Vec::new();
        for line in text.lines() {
            if let Some(stage) = line.strip_prefix("FROM ") {
                let name = stage.split_once(" AS ").map_or("", |(_, name)| name);
                stages.push(name.to_owned());
            }
            if let Some(copied) = line.strip_prefix("COPY --from=") {
                let (from, _) = copied.split_once(' ').expect(line);
                let earlier = &stages[..stages.len() - 1];
                assert!(earlier.iter().any(|stage| stage == from), "{line}: {text}");
            }
        }
        assert!(
            text.contains("COPY --from=build /build/target/release/my-model "),
            "{text}"
        );
        stages
    };
    assert_eq!(stages("cuda"), ["llvm", "cuda", "build", ""]);
    assert_eq!(stages("flex"), ["build", ""]);
}

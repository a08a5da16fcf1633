//! The files of `launch/`: what their commands run.
#![cfg(unix)]

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
};

use kiln::{
    name::Name,
    render::render,
    template::{Template, answers::Answers},
};

/// The bundle of kernels in the folder that workers share.
const BUNDLE: &str = "/runs/kernels.bundle";

/// `launch/kubernetes.yaml` of a project for `hardware`.
fn kubernetes(hardware: &str) -> String {
    let template = Template::embedded().unwrap();
    let name = Name::parse("my-model").unwrap();
    let answers = [("cluster", "kubernetes"), ("hardware", hardware)]
        .into_iter()
        .fold(
            Answers::defaults(&template, name).unwrap(),
            |answers, (option, value)| answers.with(&template, option, value).unwrap(),
        );
    let rendered = render(&template, &answers).unwrap();
    let mut files = rendered.files.iter();
    let file = files.find(|file| file.path == Path::new("launch/kubernetes.yaml"));
    String::from_utf8(file.unwrap().contents.to_vec()).unwrap()
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
    let folder = tempfile::tempdir().unwrap();
    let [bundle, program] = ["kernels.bundle", "program"].map(|name| folder.path().join(name));
    fs::write(&program, "#!/bin/sh\nprintf '[%s]' \"$@\"\nexit 3\n").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
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

//! Invalid input ends a rendered program with an error that states the problem and its place,
//! before any data is lost.

use std::{fs, io::Write, path::PathBuf, process::Command};

use flate2::{Compression, write::GzEncoder};
use kiln_tests::{
    idx::{IDX_FILES as FILES, idx, idx_data as data},
    job::fails,
    parallel,
    rendered::{Project, text},
    running::{self, TRAINING, succeeds},
};

struct Program {
    program: PathBuf,
    folder: PathBuf,
}

impl Program {
    fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(options).current_dir(&self.folder);
        command
    }

    #[track_caller]
    fn fails(&self, options: &[&str], messages: &[&str]) {
        fails(&mut self.command(options), messages);
    }

    #[track_caller]
    fn runs(&self, options: &[&str]) -> String {
        succeeds(&mut self.command(options), TRAINING)
    }
}

#[test]
#[ignore = "long"]
fn bad_input_is_told_with_its_place() {
    let folder = Project::default_answers().apart(&[]);
    let program = Program {
        program: folder.path().join("programs/program"),
        folder: folder.path().to_owned(),
    };
    let tests: [fn(&Program); 3] = [
        |program| {
            data_of_other_sizes_train(program);
            a_full_disk_keeps_the_checkpoint_before(program);
            // With the data and the checkpoint of these.
            places_that_cannot_be_written_are_named(program);
        },
        divergence_names_step_replica_and_parameter,
        // One after the other, as all of their runs have the same output folder.
        |program| {
            damaged_data_are_named(program);
            options_of_gpus_are_refused_on_the_cpu(program);
        },
    ];
    parallel::for_each(&tests, |test| test(&program));
}

fn options_of_gpus_are_refused_on_the_cpu(program: &Program) {
    let built = "this program is built for the CPU";
    program.fails(
        &["--kernel-cache", "kernels", "train"],
        &["--kernel-cache is for GPUs", built],
    );
    program.fails(
        &["--kernels", "kernels.bundle", "train"],
        &["--kernels is for GPUs", built],
    );
    program.fails(&["compile", "kernels.bundle"], &["`compile` is for GPUs"]);
    assert!(!program.folder.join("kernels.bundle").exists());
}

fn damaged_data_are_named(program: &Program) {
    let folder = program.folder.join("damaged");
    let options = ["train", "--epochs", "1", "--data-dir", "damaged"];
    let labels = folder.join(FILES[1]);
    let images = folder.join(FILES[0]);
    data(&folder, 8);
    let whole = fs::read(&images).unwrap();

    fs::write(&images, &whole[..whole.len() - 7]).unwrap();
    program.fails(
        &options,
        &[
            "damaged/train-images-idx3-ubyte",
            "[60, 8, 8]",
            "3833 bytes follow it",
        ],
    );
    fs::write(&images, [&[0, 0, 9, 3], &whole[4..]].concat()).unwrap();
    program.fails(
        &options,
        &[
            "damaged/train-images-idx3-ubyte",
            "magic number is [00, 00, 09, 03]",
        ],
    );
    fs::write(&images, idx(&[59, 8, 8], |_| 0)).unwrap();
    program.fails(
        &options,
        &[
            "train-images-idx3-ubyte has 59 images",
            "train-labels-idx1-ubyte has 60 labels",
        ],
    );
    fs::write(&images, &whole).unwrap();
    fs::write(&labels, idx(&[60], |at| if at == 41 { 10 } else { 0 })).unwrap();
    program.fails(
        &options,
        &[
            "label 41 of damaged/train-labels-idx1-ubyte is 10",
            "10 classes",
        ],
    );
    fs::write(&labels, b"").unwrap();
    program.fails(&options, &["train-labels-idx1-ubyte", "0 bytes"]);
    fs::remove_file(&labels).unwrap();
    program.fails(
        &options,
        &["neither train-labels-idx1-ubyte nor train-labels-idx1-ubyte.gz is in damaged"],
    );
    data(&folder, 8);
    fs::write(folder.join(FILES[2]), idx(&[0, 8, 8], |_| 0)).unwrap();
    fs::write(folder.join(FILES[3]), idx(&[0], |_| 0)).unwrap();
    program.fails(
        &options,
        &["cannot batch the test split", "the dataset is empty"],
    );
    program.fails(
        &["infer", "damaged/none"],
        &["there is no checkpoint in runs"],
    );
    assert!(
        !program.folder.join("runs/checkpoints").exists(),
        "nothing was begun"
    );
}

/// Gzipped images of 28 x 28 pixels, like MNIST's; and more replicas than examples.
fn data_of_other_sizes_train(program: &Program) {
    let folder = program.folder.join("mnist");
    data(&folder, 28);
    for name in FILES {
        let path = folder.join(name);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&fs::read(&path).unwrap()).unwrap();
        fs::write(path.with_extension("gz"), gzip.finish().unwrap()).unwrap();
        fs::remove_file(path).unwrap();
    }
    let options = [
        "--epochs",
        "1",
        "--data-dir",
        "mnist",
        "--output-dir",
        "runs/mnist",
    ];
    let printed = program.runs(&options);
    assert!(printed.contains("(20 examples)"), "{printed}");
    let replicas = [&options[..], &["--replicas", "23", "--batch-size", "1"]].concat();
    let printed = program.runs(&replicas);
    assert!(printed.contains("(20 examples)"), "{printed}");
    program.fails(
        &[&options[..], &["--drop-remainder", "--batch-size", "50"]].concat(),
        &["54 examples make no full batch of 100", "--drop-remainder"],
    );
}

fn divergence_names_step_replica_and_parameter(program: &Program) {
    let folder = ["--output-dir", "runs/diverged"];
    program.runs(&[&["train", "--epochs", "1"], &folder[..]].concat());
    let options = [
        "train",
        "--epochs",
        "2",
        "--resume",
        "--learning-rate",
        "1e38",
    ];
    program.fails(
        &[&options[..], &folder].concat(),
        &[
            "training stopped at epoch 2, step 4",
            "replica",
            "of 2 failed",
            "the gradient of `conv1.weight` holds NaN",
        ],
    );
    program.fails(
        &[&options[..], &folder, &["--detect-anomalies"]].concat(),
        &[
            "of 2 failed",
            "--detect-anomalies: in the forward pass, the output of `conv",
            "(conv2d, [",
            "of the training data, from a finite input; the loss `loss` is",
        ],
    );
    let printed = program.runs(&[&["test"], &folder[..]].concat());
    assert!(
        !printed.contains("warning"),
        "the checkpoint before is untouched: {printed}"
    );
}

/// A limit on the size of files simulates a full disk.
fn a_full_disk_keeps_the_checkpoint_before(program: &Program) {
    let folder = ["--output-dir", "runs/full"];
    program.runs(&[&["train", "--epochs", "1"], &folder[..]].concat());
    let script = format!(
        "trap '' XFSZ; ulimit -f 100; exec '{}' train --resume --epochs 2 --output-dir runs/full",
        program.program.display()
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).current_dir(&program.folder);
    let output = running::output(&mut bash, TRAINING);
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("cannot save the checkpoint runs/full/checkpoints/step-00000086"),
        "{printed}"
    );
    assert!(printed.contains("File too large"), "{printed}");
    let left = fs::read_dir(program.folder.join("runs/full/checkpoints")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["step-00000043-epoch-1"]);
    let printed = program.runs(&[&["train", "--resume", "--epochs", "2"], &folder[..]].concat());
    assert!(
        printed.contains("resumed from runs/full/checkpoints/step-00000043-epoch-1"),
        "{printed}"
    );
}

fn places_that_cannot_be_written_are_named(program: &Program) {
    program.fails(
        &["--output-dir", "data/README.md/runs"],
        &["cannot make the output folder data/README.md/runs"],
    );
    program.fails(
        &["--output-dir", "/proc/runs"],
        &["cannot make the output folder /proc/runs"],
    );
    program.fails(
        &[
            "infer",
            "mnist/t10k-images-idx3-ubyte.gz",
            "--output-dir",
            "runs/full",
            "--output",
            "none/at/all",
        ],
        &["cannot write none/at/all"],
    );
    program.fails(
        &[
            "infer",
            "mnist/t10k-labels-idx1-ubyte.gz",
            "--output-dir",
            "runs/full",
        ],
        &["mnist/t10k-labels-idx1-ubyte.gz", "3 dimensions"],
    );
}

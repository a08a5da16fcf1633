//! The TODO sites are enough to make another task of a rendered crate, and its contract tests hold
//! for that task, too.

use std::{fs, process::Command};

use kiln::todo;
use kiln_tests::{
    log,
    rendered::{Project, replace_in, text},
    repository,
    running::{self, TRAINING},
};

/// Files in which the task shows. The others keep what they do, without their markers.
const REPLACED: [&str; 5] = ["dataset.rs", "infer.rs", "loss.rs", "metric.rs", "model.rs"];

/// The mean absolute error that a trained model must reach on a target with a deviation of about 2.
const ERROR: f64 = 0.15;

/// Rows of four numbers between -1 and 1, and a target that follows from them.
fn table(rows: usize) -> String {
    let mut state = 1_u32;
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1 << 23) - 1.0
    };
    let mut table = "a,b,c,d,target\n".to_owned();
    for _ in 0..rows {
        let [a, b, c, d] = std::array::from_fn(|_| draw());
        let target = 3.0 * a - 2.0 * b + c * d + 0.5;
        table += &format!("{a},{b},{c},{d},{target}\n");
    }
    table
}

/// The source without its markers, as who is done with a site leaves it.
fn without_markers(source: &str) -> String {
    let mut in_marker = false;
    let kept = source.lines().filter(|line| {
        let line = line.trim_start();
        in_marker = line.starts_with("// TODO(") || (in_marker && line.starts_with("//   "));
        !in_marker
    });
    kept.fold(String::new(), |text, line| text + line + "\n")
}

fn fill_in(project: &Project) {
    let sites = fs::read_to_string(project.path().join("todos.toml")).unwrap();
    let sites: toml::Table = sites.parse().unwrap();
    let files = sites["site"].as_array().unwrap().iter();
    for file in files.map(|site| site["file"].as_str().unwrap()) {
        let path = project.path().join(file);
        let source = fs::read_to_string(&path).unwrap();
        fs::write(&path, without_markers(&source)).unwrap();
    }
    for file in REPLACED {
        let from = repository().join("tests/fixtures/regression").join(file);
        fs::copy(from, project.path().join("src").join(file)).unwrap();
    }
    fs::write(project.path().join("data/table.csv"), table(1_000)).unwrap();
    let manifest = project.path().join("Cargo.toml");
    replace_in(
        &manifest,
        "[dependencies]\n",
        "[dependencies]\ncsv = \"1\"\n",
    );
}

/// `kiln add` merges into what its user wrote.
#[test]
#[ignore = "long"]
fn options_are_added_to_another_task() {
    let project = Project::with_answers(&[("tensorboard", "no")]);
    fill_in(&project);
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln_command"));
    command
        .args(["add", "slurm", "ci", "tensorboard", "--allow-dirty"])
        .current_dir(project.path());
    let output = running::output(&mut command, TRAINING);
    assert!(output.status.success(), "{output:?}");
    assert!(project.path().join("launch/slurm.sh").exists());
    assert!(project.path().join(".github/workflows").exists());
    project.cargo(&["test", "--test", "contract"]);
    project.cargo(&["run", "--", "--epochs", "1"]);
    let runs = fs::read_dir(project.path().join("runs")).unwrap().flatten();
    let files = runs.filter(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().contains("tfevents") || entry.path().join("train").is_dir()
    });
    assert!(files.count() > 0, "no event files");
}

#[test]
#[ignore = "long"]
fn another_task_needs_no_other_edits() {
    let project = Project::to_edit();
    fill_in(&project);
    assert!(todo::scan(&project.path()).unwrap().is_done());
    project.is_clean("");
    project.cargo(&["test", "--test", "contract"]);
    for replicas in ["1", "2"] {
        let runs = project.path().join("runs").join(replicas);
        let folder = runs.to_str().unwrap();
        project.cargo(&[
            "run",
            "--release",
            "--",
            "--epochs",
            "30",
            "--replicas",
            replicas,
            "--output-dir",
            folder,
        ]);
        let log = log(&runs);
        let test = log.last().unwrap();
        assert_eq!(
            (&test["split"], &test["examples"]),
            (&"test".into(), &200.into())
        );
        let error = test["mean_absolute_error"].as_f64().unwrap();
        assert!(error < ERROR, "{replicas} replicas: {log:?}");
        let table = project.path().join("data/table.csv");
        let arguments = ["run", "--release", "--", "infer", "--output-dir", folder];
        let predictions = project.cargo(&[&arguments[..], &[table.to_str().unwrap()]].concat());
        let lines = predictions
            .lines()
            .filter(|line| line.contains("table.csv,"));
        assert_eq!(lines.count(), 1_000, "{predictions}");
    }
    let path = project.path().join("data/table.csv");
    let table = fs::read_to_string(&path).unwrap();
    let broken = table.lines().enumerate().map(|(at, line)| match at {
        7..40 => format!("NaN,{}\n", line.split_once(',').unwrap().1),
        _ => format!("{line}\n"),
    });
    fs::write(&path, broken.collect::<String>()).unwrap();
    let output = project.try_cargo(&[
        "run",
        "--release",
        "--",
        "train",
        "--output-dir",
        "runs/nan",
    ]);
    let printed = text(&output);
    assert!(
        !output.status.success(),
        "NaN in the data trains: {printed}"
    );
    assert!(
        printed.contains("training stopped at epoch 1, step"),
        "{printed}"
    );
    assert!(
        printed.contains("the gradient of `hidden.weight` holds NaN"),
        "{printed}"
    );
}

/// The network of the template, and a second one with a loss and an optimizer of its own.
fn add_a_network(project: &Project) {
    let model = [
        ("pub struct Model {", "pub struct Network {"),
        ("impl Model {", "impl Network {"),
        ("layers: &[\"conv1\"]", "layers: &[\"network\"]"),
        ("layers: &[\"conv2\", \"output\"]", "layers: &[\"brightness\"]"),
        ("model.begin(features.tensor()).into()", "model.network.begin(features.tensor()).into()"),
        ("model.finish(x.tensor()).into()", "model.network.finish(x.tensor()).into()"),
        ("        Model {\n            conv1", "        Network {\n            conv1"),
        (
            "/// What is trained: a model",
            "/// The network, and another that guesses how bright an image is from what it says.
#[derive(Module, Debug)]
pub struct Model {
    pub network: Network,
    pub brightness: Linear,
}

impl Model {
    pub fn new(device: &Device) -> Self {
        Model {
            network: Network::new(device),
            brightness: LinearConfig::new(CLASSES, 1).init(device),
        }
    }

    pub fn forward(&self, features: Tensor<4>) -> Tensor<2> {
        self.network.forward(features)
    }
}

/// What is trained: a model",
        ),
        ("    pub optimizer: ScheduledOptimizer,", "    pub optimizer: ScheduledOptimizer,\n    pub second: ScheduledOptimizer,"),
        (
            "        let gradients = gradients.take(&self.model);
        self.model = self.optimizer.update(self.model, gradients);",
            "        let network = gradients.take(&self.model.network);
        let brightness = gradients.take(&self.model.brightness);
        self.model.network = self.optimizer.update(self.model.network, network);
        self.model.brightness = self.second.update(self.model.brightness, brightness);",
        ),
        ("    Ok(Trainable { model, optimizer })", "    let second = ScheduledOptimizer::new(kiln_engine::nadam::NadamConfig::new().init(), 0.01);
    Ok(Trainable { model, optimizer, second })"),
    ];
    for (from, to) in model {
        project.edit("model.rs", from, to);
    }
    let step = [
        ("    let loss = train_loss(predictions, batch)?; // [1]", "    let brightness = batch.features.clone().flatten::<2>(1, 3).mean_dim(1); // [batch, 1]
    let guess = model.brightness.forward(predictions.clone().detach()); // [batch, 1]
    let errors = (guess - brightness).square().squeeze_dim(1); // [batch]
    let second = compute_loss(errors)?; // [1]
    let loss = train_loss(predictions, batch)?; // [1]"),
        ("    let gradients = GradientsParams::from_grads(loss.backward(), &model);", "    let of_network = GradientsParams::from_grads(loss.backward(), &model.network);
    let of_brightness = GradientsParams::from_grads(second.backward(), &model.brightness);"),
        ("Losses::new().with(\"loss\", &loss)", "Losses::new().with(\"loss\", &loss).with(\"brightness\", &second)"),
        ("Gradients::new().with(gradients)", "Gradients::new().with(of_network).with(of_brightness)"),
    ];
    for (from, to) in step {
        project.edit("train.rs", from, to);
    }
}

#[test]
#[ignore = "long"]
fn two_networks_have_a_loss_and_an_optimizer_each() {
    let project = Project::to_edit();
    add_a_network(&project);
    let output = project.try_cargo(&["test", "--test", "contract", "checkpoint"]);
    let printed = text(&output);
    assert!(!printed.contains("could not compile"), "{printed}");
    assert!(
        printed.contains("TODO(optimizer.choice): ")
            && printed.contains("does `Trainable::optimizers_mut` list all optimizers?"),
        "an optimizer that is not saved goes unseen: {printed}"
    );
    project.edit(
        "model.rs",
        "vec![(\"optimizer\", &mut self.optimizer)]",
        "vec![(\"optimizer\", &mut self.optimizer), (\"second\", &mut self.second)]",
    );
    project.cargo(&["test", "--test", "contract"]);
}

//! The TODO sites suffice to fill a rendered crate in for another task, and its contract tests hold
//! for that task too.

use std::{fs, path::Path, process::Command};

use kiln::project::todo;
use kiln_tests::{
    check,
    filled_in::{self, FIRST_OPTIMIZER, own_training_state},
    log, parallel,
    rendered::{Project, replace_in, text},
    repository,
    running::{self, TRAINING, succeeds},
    runs::log_without_seconds,
};

const KILN: &str = env!("CARGO_BIN_EXE_kiln_command");

/// The maximum mean absolute error on the test data, whose target has a standard deviation of about 2.
const ERROR: f64 = 0.15;

/// Rows of four numbers between -1 and 1, and a target computed from them.
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

/// The source without its markers, as after all edits.
fn without_markers(source: &str) -> String {
    let mut in_marker = false;
    let kept = source.lines().filter(|line| {
        let line = line.trim_start();
        in_marker = line.starts_with("// TODO(") || (in_marker && line.starts_with("//   "));
        !in_marker
    });
    kept.fold(String::new(), |text, line| text + line + "\n")
}

/// Replaces the sources that depend on the task. The others keep their defaults, without their markers.
fn replace_sources(project: &Project, sources: &Path, dependencies: &str) {
    let sites = fs::read_to_string(project.path().join("todos.toml")).unwrap();
    let sites: toml::Table = sites.parse().unwrap();
    let files = sites["site"].as_array().unwrap().iter();
    for file in files.map(|site| site["file"].as_str().unwrap()) {
        let path = project.path().join(file);
        let source = fs::read_to_string(&path).unwrap();
        fs::write(&path, without_markers(&source)).unwrap();
    }
    for source in fs::read_dir(sources).unwrap() {
        let source = source.unwrap();
        let replaced = project.path().join("src").join(source.file_name());
        fs::copy(source.path(), replaced).unwrap();
    }
    let manifest = project.path().join("Cargo.toml");
    let section = "[dependencies]\n";
    replace_in(&manifest, section, &format!("{section}{dependencies}"));
}

fn fill_in(project: &Project) {
    let sources = repository().join("tests/fixtures/regression");
    replace_sources(project, &sources, "csv = \"1\"\n");
    fs::write(project.path().join("data/table.csv"), table(1_000)).unwrap();
}

/// `kiln add` merges into edited files.
#[test]
#[ignore = "long"]
fn options_are_added_to_another_task() {
    let project = Project::with_answers(&[("tensorboard", "no")]);
    fill_in(&project);
    let mut command = Command::new(KILN);
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

/// A program, in the folder of its project.
fn program(project: &Path, path: &Path) -> Command {
    let mut command = Command::new(path);
    command.current_dir(project);
    command
}

#[test]
#[ignore = "long"]
fn another_task_needs_no_other_edits() {
    let project = Project::to_edit();
    fill_in(&project);
    assert!(todo::scan(&project.path()).unwrap().is_done());
    project.is_clean();
    project.cargo(&["test", "--test", "contract"]);
    let (built, path) = (project.build(), project.path());
    let _folder = project.unlock();
    parallel::for_each(&["1", "2"], |replicas| {
        let mut train = program(&path, &built);
        train.args(["--epochs", "30", "--replicas", replicas, "--output-dir"]);
        succeeds(train.arg(replicas), TRAINING);
        let log = log(&path.join(replicas));
        let test = log.last().unwrap();
        assert_eq!(
            (&test["split"], &test["examples"]),
            (&"test".into(), &200.into())
        );
        let error = test["mean_absolute_error"].as_f64().unwrap();
        assert!(error < ERROR, "{replicas} replicas: {log:?}");
        let mut infer = program(&path, &built);
        infer.args(["infer", "--output-dir", replicas, "data/table.csv"]);
        let predictions = succeeds(&mut infer, TRAINING);
        let lines = predictions
            .lines()
            .filter(|line| line.starts_with("data/table.csv,"));
        assert_eq!(lines.count(), 1_000, "{predictions}");
    });
    let file = path.join("data/table.csv");
    let table = fs::read_to_string(&file).unwrap();
    let broken = table.lines().enumerate().map(|(at, line)| match at {
        7..40 => format!("NaN,{}\n", line.split_once(',').unwrap().1),
        _ => format!("{line}\n"),
    });
    fs::write(&file, broken.collect::<String>()).unwrap();
    let mut train = program(&path, &built);
    train.args(["train", "--output-dir", "nan"]);
    let output = running::output(&mut train, TRAINING);
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

/// A wrong edit: the site, its file, the text to replace, and the replacement.
type WrongEdit = (&'static str, &'static str, &'static str, &'static str);

/// A task of a fixture.
struct Task {
    /// The folder of the fixture.
    name: &'static str,
    make_data: fn(&Path),
    /// The options of a training.
    options: [&'static str; 4],
    /// The number of test examples.
    examples: usize,
    /// The minimum values of test metrics.
    least: &'static [(&'static str, f64)],
    /// Wrong edits, which a contract test of the site's file must detect.
    wrong_edits: &'static [WrongEdit],
}

impl Task {
    /// Fills in a project, checks it with `kiln check`, on one replica and two, trains it, and checks what it
    /// predicts.
    fn holds(&self, predicts: impl Fn(&Path, &Path)) {
        let project = Project::to_edit();
        let fixture = repository().join("tests/fixtures").join(self.name);
        let answers = fs::read_to_string(fixture.join("answers.toml")).unwrap_or_default();
        let dependencies = answers.split_once("[cargo.dependencies]\n");
        let dependencies = dependencies.map_or("", |(_, dependencies)| dependencies);
        replace_sources(&project, &fixture.join("src"), dependencies);
        (self.make_data)(&project.path().join("data"));
        assert!(todo::scan(&project.path()).unwrap().is_done());
        project.is_clean();
        let report = check::passes(KILN, &project);
        assert_eq!(report["sites_left"], 0, "{report:#}");
        // That of `kiln check`.
        let built = project.build();
        self.wrong_edits_are_found(&project);
        let path = project.path();
        let _folder = project.unlock();
        self.trains(&path, &built);
        predicts(&path, &built);
    }

    fn wrong_edits_are_found(&self, project: &Project) {
        for (site, file, right, wrong) in self.wrong_edits {
            let path = project.path().join("src").join(file);
            let source = fs::read_to_string(&path).unwrap();
            project.edit(file, right, wrong);
            let module = file.trim_end_matches(".rs");
            let output = project.try_cargo(&["test", "--test", "contract", module]);
            fs::write(&path, source).unwrap();
            let printed = text(&output);
            assert!(!printed.contains("could not compile"), "{site}: {printed}");
            let is_named = printed.contains(&format!("TODO({site}): "));
            assert!(is_named, "{site} is not named: {printed}");
        }
    }

    /// Trains on one replica, and twice on two, which must be bit-identical.
    fn trains(&self, project: &Path, built: &Path) {
        let all = [("two", "2"), ("again", "2"), ("one", "1")];
        parallel::for_each(&all, |(runs, replicas)| {
            let mut train = program(project, built);
            train.args(["--output-dir", runs, "--replicas", replicas]);
            succeeds(train.args(self.options), TRAINING);
            let log = log(&project.join(runs));
            let test = log.last().unwrap();
            println!("{} on {replicas} replicas: {test}", self.name);
            assert_eq!(test["split"], "test");
            assert_eq!(test["examples"], self.examples);
            for (metric, least) in self.least {
                let reached = test[metric].as_f64().unwrap();
                assert!(reached > *least, "`{metric}` is {reached}: {log:?}");
            }
        });
        let logs = ["two", "again"].map(|runs| log_without_seconds(&project.join(runs)));
        assert_eq!(logs[0], logs[1], "a training does not repeat");
    }
}

/// The trained model's predictions for the examples of a file, as fields.
fn predictions(project: &Path, built: &Path, file: &str) -> Vec<Vec<String>> {
    let mut infer = program(project, built);
    infer.args(["infer", "--output-dir", "two", file]);
    let printed = succeeds(&mut infer, TRAINING);
    let lines = printed.lines();
    let rows = lines.filter_map(|line| line.strip_prefix(file)?.strip_prefix(','));
    rows.map(|row| row.split(',').skip(1).map(str::to_owned).collect())
        .collect()
}

/// Batch normalisation, a class for each pixel, and images flipped with their masks.
#[test]
#[ignore = "long"]
fn a_unet_segments_images() {
    let task = Task {
        name: "unet",
        make_data: filled_in::masks,
        options: ["--epochs", "3", "--batch-size", "4"],
        examples: 60,
        least: &[
            ("pixel_accuracy", 0.9),
            ("pixel_iou", 0.55),
            ("pixel_dice", 0.65),
        ],
        wrong_edits: &[
            (
                "dataset.augment",
                "dataset.rs",
                "        example.mask.chunks_mut(width).for_each(<[u8]>::reverse);\n",
                "",
            ),
            (
                "dataset.batch",
                "dataset.rs",
                "permute([0, 3, 1, 2])",
                "reshape([batch, 3, height, width])",
            ),
        ],
    };
    task.holds(|project, built| {
        let predictions = predictions(project, built, "data/test/images/000.png");
        let shares = predictions.iter().flatten();
        let shares: Vec<f32> = shares.map(|share| share.parse().unwrap()).collect();
        assert_eq!(shares.len(), 3, "{predictions:?}");
        assert!(
            (shares.iter().sum::<f32>() - 1.0).abs() < 1e-3,
            "{shares:?}"
        );
    });
}

/// Batches of varying length, a padding mask, and Burn's dropout.
#[test]
#[ignore = "long"]
fn a_transformer_classifies_padded_sequences() {
    let task = Task {
        name: "sequences",
        make_data: filled_in::sequences,
        options: ["--epochs", "3", "--batch-size", "16"],
        examples: 300,
        least: &[("accuracy", 0.9)],
        wrong_edits: &[(
            "model.architecture",
            "model.rs",
            ".mask_pad(batch.mask.clone())",
            "",
        )],
    };
    task.holds(|project, built| {
        let strings = "aaaaab\nbcbbdbbe\nhcccccgfahc\ndddd\n";
        fs::write(project.join("strings.txt"), strings).unwrap();
        let predictions = predictions(project, built, "strings.txt");
        let classes: Vec<&str> = predictions
            .iter()
            .map(|fields| fields[0].as_str())
            .collect();
        assert_eq!(classes, ["0", "1", "2", "3"], "{predictions:?}");
    });
}

/// Adds a second network, with its own loss and optimizer, to the template's.
fn add_a_network(project: &Project) {
    let model = [
        ("pub struct Model {", "pub struct Network {"),
        ("impl Model {", "impl Network {"),
        ("layers: &[\"conv1\"]", "layers: &[\"network\"]"),
        ("layers: &[\"conv2\", \"output\"]", "layers: &[\"brightness\"]"),
        ("model.begin(batch).into()", "model.network.begin(batch).into()"),
        ("model.finish(x.into()).into()", "model.network.finish(x.into()).into()"),
        ("        Model {\n            conv1", "        Network {\n            conv1"),
        (
            "/// The training state: the model",
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

    pub fn forward(&self, batch: &Batch) -> Predictions {
        self.network.forward(batch)
    }
}

/// The training state: the model",
        ),
        ("    Ok(Trainable { model, optimizer })", "    let second = ScheduledOptimizer::new(kiln_engine::optim::NadamConfig::new().init(), 0.01);
    Ok(Trainable { model, optimizer, second })"),
    ];
    for (from, to) in model {
        project.edit("model.rs", from, to);
    }
    let update = "let network = gradients.take(&self.model.network);
        let brightness = gradients.take(&self.model.brightness);
        self.model.network = self.optimizer.update(self.model.network, network);
        self.model.brightness = self.second.update(self.model.brightness, brightness);";
    let second = "pub second: ScheduledOptimizer,";
    own_training_state(project, second, update, FIRST_OPTIMIZER);
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
        FIRST_OPTIMIZER,
        "vec![(\"optimizer\", &mut self.optimizer), (\"second\", &mut self.second)]",
    );
    project.cargo(&["test", "--test", "contract"]);
}

//! A real MLflow server has each parameter and each point of a training once, although the training was killed,
//! stopped and resumed, or trained while the server was away.
//!
//! Requires Python and, the first time, the network. Without them, the test is skipped with a
//! message, unless `KILN_REQUIRE_PYTHON` is set.

use std::{
    collections::BTreeMap,
    env, fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
};

use kiln_tests::{
    parallel, python,
    rendered::{Project, text},
    repository,
    running::{self, Running, TRAINING},
    runs::{checkpoints, log, log_of},
    trainer::Trainer,
};
use serde_json::Value;

/// The smallest part of MLflow that can be a server, and what that imports.
const PACKAGES: [&str; 9] = [
    "mlflow-skinny==3.17.2",
    "aiohttp==3.14.5",
    "alembic==1.20.1",
    "flask==3.1.3",
    "flask-cors==6.0.5",
    "numpy==2.4.6",
    "pandas==3.1.1",
    "sqlalchemy==2.1.9",
    "starlette==1.10.0",
];

/// The server that `mlflow server` starts, without its other processes.
const SERVER: &str = "mlflow.server.fastapi_app";

/// Every update is logged, so that points are on their way whenever a training ends.
const OPTIONS: &str = "--epochs 8 --log-every 1 --checkpoint-steps 20 --mlflow-experiment digits";

#[test]
#[ignore = "long"]
fn a_server_has_each_parameter_and_point_once() {
    let folder = PACKAGES[0].replace("==", "-");
    let python = match python::with_packages(&folder, SERVER, &PACKAGES) {
        Ok(python) => python,
        Err(reason) if env::var_os("KILN_REQUIRE_PYTHON").is_some() => panic!("{reason}"),
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    // Without the project, so that another test compiles meanwhile.
    let trainer = Trainer::new(&Project::default_answers());
    let mut server = Server::start(&python, &trainer.folder);
    nothing_is_sent_unless_asked(&trainer, &server);
    let tests = [killed_and_stopped_trainings_go_on, mistakes_are_told];
    parallel::for_each(&tests, |test| test(&trainer, &server));
    a_training_goes_on_while_the_server_is_away(&trainer, &mut server);
}

fn nothing_is_sent_unless_asked(trainer: &Trainer, server: &Server) {
    let mut command = trainer.command("runs/off", "--epochs 1 train");
    command.env("MLFLOW_TRACKING_URI", server.uri());
    running::succeeds(&mut command, TRAINING);
    assert!(!trainer.runs("runs/off").join("mlflow.json").exists());
    assert_eq!(server.read(&[]), serde_json::json!(["Default"]));
}

fn mistakes_are_told(trainer: &Trainer, server: &Server) {
    let uri = server.uri();
    let long = "x".repeat(600);
    for (options, messages) in [
        (
            format!("--mlflow {uri}/nowhere"),
            ["status 404", "the address of an MLflow server"],
        ),
        (
            format!("--mlflow {uri} --mlflow-experiment {long}"),
            ["cannot create the experiment", "--mlflow-experiment"],
        ),
        (
            "--mlflow http://127.0.0.1:1".to_owned(),
            ["no response", "is it running"],
        ),
    ] {
        trainer.fails("runs/mistake", &options, &messages);
        assert!(!trainer.runs("runs/mistake").join("run.json").exists());
    }
}

fn killed_and_stopped_trainings_go_on(trainer: &Trainer, server: &Server) {
    let options = format!("{OPTIONS} --mlflow {}", server.uri());
    let runs = trainer.runs("runs/resumed");
    let has_saved = |step: usize| {
        let last = checkpoints(&runs).pop_last();
        last.is_some_and(|((last, _), _)| last >= step)
    };
    let running = trainer.start("runs/resumed", &options);
    running.wait_until("checkpoint", || has_saved(40)).kill();
    let resume = format!("{options} --resume");
    let running = trainer.start("runs/resumed", &resume);
    let running = running.wait_until("later checkpoint", || has_saved(100));
    let stop = Command::new("kill").arg(running.id().to_string()).status();
    assert!(stop.expect("`kill`").success());
    running.end(TRAINING);
    assert_eq!(server.run(&runs)["status"], "KILLED");
    trainer.run("runs/resumed", &resume.replace("--epochs 8", "--epochs 9"));
    let run = server.run(&runs);
    assert_has_all(&run, &runs);
    assert_eq!(run["status"], "FINISHED");
    let parameters = [
        ("epochs", "8"),
        ("batch-size", "16"),
        ("replicas", "2"),
        ("seed", "42"),
    ];
    for (name, value) in parameters {
        assert_eq!(run["parameters"][name], value, "{name}");
    }
    assert_eq!(run["tags"]["resumed.epochs"], "9");
    let files = run["files"].as_array().unwrap();
    assert!(files.contains(&"curves.svg".into()), "{files:?}");
}

fn a_training_goes_on_while_the_server_is_away(trainer: &Trainer, server: &mut Server) {
    let options = format!("{OPTIONS} --mlflow {}", server.uri());
    let runs = trainer.runs("runs/away");
    let running = trainer.start("runs/away", &options);
    let running = running.wait_until("checkpoint", || !checkpoints(&runs).is_empty());
    server.stop();
    let printed = text(&running.end(TRAINING));
    let kept = "are kept in runs/away/mlflow-unsent.jsonl";
    assert!(printed.contains(kept), "{printed}");
    let command = format!("--output-dir runs/away {options} --resume");
    assert!(printed.contains(&command), "{printed}");
    assert!(printed.contains("test  loss"), "{printed}");
    server.go_on();
    let printed = trainer.run("runs/away", &format!("{options} --resume"));
    assert!(!printed.contains("train  loss"), "{printed}");
    assert!(
        printed.contains("has what mlflow-unsent.jsonl kept"),
        "{printed}"
    );
    assert_has_all(&server.run(&runs), &runs);
    assert!(!runs.join("mlflow-unsent.jsonl").exists());
}

/// Checks that the server has exactly the points of the logs. Speed and memory of repeated steps differ.
fn assert_has_all(run: &Value, runs: &Path) {
    let mut expected: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
    let mut add = |name: String, line: &Value, value: &Value| {
        let (step, value) = (line["step"].as_u64().unwrap(), value.as_f64().unwrap());
        expected.entry(name).or_default().insert(step, value);
    };
    for line in log_of(&runs.join("steps.jsonl")) {
        add("step/loss".to_owned(), &line, &line["losses"]["loss"]);
        add(
            "step/gradient_norm".to_owned(),
            &line,
            &line["gradient_norm"],
        );
    }
    for line in log(runs) {
        for name in ["loss", "accuracy"] {
            let split = line["split"].as_str().unwrap();
            add(format!("{split}/{name}"), &line, &line[name]);
        }
    }
    for (name, points) in expected {
        let sent: Vec<(u64, f64)> = serde_json::from_value(run["metrics"][&name].clone())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let same = |((step, value), (sent_step, sent)): ((u64, f64), &(u64, f64))| {
            // Programs print the last digit differently.
            step == *sent_step && (value - sent).abs() <= 1e-12 * value.abs()
        };
        assert_eq!(sent.len(), points.len(), "{name}");
        assert!(points.into_iter().zip(&sent).all(same), "{name}: {sent:?}");
    }
    let steps = |name: &str| -> Vec<u64> {
        let points = run["metrics"][name].as_array().unwrap().iter();
        points.map(|point| point[0].as_u64().unwrap()).collect()
    };
    assert_eq!(steps("step/memory"), steps("step/loss"));
}

/// An MLflow server with a database in a folder.
struct Server {
    python: PathBuf,
    folder: PathBuf,
    port: u16,
    running: Option<Running>,
}

impl Server {
    fn start(python: &Path, folder: &Path) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut server = Server {
            python: python.to_owned(),
            folder: folder.to_owned(),
            port: free.local_addr().expect("a port").port(),
            running: None,
        };
        drop(free);
        server.go_on();
        server
    }

    fn go_on(&mut self) {
        let database = format!("sqlite:///{}", self.folder.join("mlflow.db").display());
        let mut command = Command::new(&self.python);
        command
            .args(["-m", "uvicorn", &format!("{SERVER}:app")])
            .args(["--host", "127.0.0.1", "--port", &self.port.to_string()])
            // As `mlflow server` sets them.
            .env("_MLFLOW_SERVER_FILE_STORE", database)
            .env("_MLFLOW_SERVER_ARTIFACT_ROOT", "mlflow-artifacts:/")
            .env(
                "_MLFLOW_SERVER_ARTIFACT_DESTINATION",
                self.folder.join("artifacts"),
            )
            .env("_MLFLOW_SERVER_SERVE_ARTIFACTS", "true");
        let port = self.port;
        let listens = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        let running = Running::start(&mut command).wait_until("connection", listens);
        self.running = Some(running);
    }

    fn stop(&mut self) {
        self.running.take().expect("a running server").kill();
    }

    fn uri(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The run of an output folder.
    fn run(&self, runs: &Path) -> Value {
        let file = fs::read_to_string(runs.join("mlflow.json")).expect("the run");
        let run: Value = serde_json::from_str(&file).expect("JSON");
        self.read(&[run["run_id"].as_str().expect("an id")])
    }

    fn read(&self, arguments: &[&str]) -> Value {
        let mut command = Command::new(&self.python);
        command
            .arg(repository().join("tests/fixtures/read_mlflow.py"))
            .arg(self.uri())
            .args(arguments);
        let printed = running::succeeds(&mut command, TRAINING);
        serde_json::from_str(&printed).expect("JSON")
    }
}

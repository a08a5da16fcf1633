//! The tracker against a small server of this test.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Mutex, PoisonError},
};

use super::*;
use crate::{
    data::Shard,
    loss::Losses,
    test_task::{self, on_a_thread, replica_step, set_up},
    tracking::Parameters,
    training::Callbacks,
};

/// Responses of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Normal,
    /// Answers `runs/log-batch` with this status, after it stored the batch if `stores`.
    Fails {
        status: u16,
        stores: bool,
    },
    /// Answers everything with this status and text.
    Refuses(u16, &'static str),
    /// Never answers.
    Silent,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    requests: Vec<(String, String, Value)>,
    experiments: Vec<(String, &'static str)>,
    runs: usize,
    points: Vec<(String, u64, Value)>,
    parameters: Vec<(String, String)>,
    tags: Vec<(String, String)>,
    status: String,
}

/// An MLflow server that stores one run.
#[derive(Clone)]
struct Server {
    uri: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server {
            uri: format!("http://{}", listener.local_addr().unwrap()),
            state: Arc::new(Mutex::new(State {
                mode: Mode::Normal,
                requests: Vec::new(),
                experiments: Vec::new(),
                runs: 0,
                points: Vec::new(),
                parameters: Vec::new(),
                tags: Vec::new(),
                status: String::new(),
            })),
        };
        let serving = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let serving = serving.clone();
                thread::spawn(move || serving.serve(&stream.unwrap()));
            }
        });
        server
    }

    fn with<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, mode: Mode) {
        self.with(|state| state.mode = mode);
    }

    fn tracker(&self, folder: &Path) -> Mlflow {
        let api = Api::with_authorization(&self.uri, Some("Bearer secret".to_owned()));
        Mlflow {
            end: Duration::from_secs(5),
            ..Mlflow::with_api(api.unwrap(), Some("digits"), folder)
        }
    }

    /// Waits until a request to `path` was made in this mode.
    fn wait_for(&self, path: &str) {
        for _ in 0..500 {
            if self.with(|state| state.requests.iter().any(|request| request.0 == path)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("no request to {path}");
    }

    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let target = line.split(' ').nth(1).unwrap().to_owned();
        let (mut length, mut authorization) = (0, String::new());
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            let header = header.trim_end();
            let Some((name, value)) = header.split_once(": ") else {
                break;
            };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().unwrap(),
                "authorization" => authorization = value.to_owned(),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let path = target.trim_start_matches("/api/2.0/");
        let path = path.trim_start_matches("mlflow/");
        let path = path.split('?').next().unwrap().to_owned();
        let answer = self.with(|state| {
            state
                .requests
                .push((path.clone(), authorization, body.clone()));
            state.answer(&path, &body)
        });
        match answer {
            None => thread::sleep(Duration::from_secs(20)),
            Some((status, text)) => {
                let length = text.len();
                let head = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                );
                let mut stream = stream;
                let _ = stream.write_all((head + &text).as_bytes());
            }
        }
    }
}

impl State {
    fn answer(&mut self, path: &str, body: &Value) -> Option<(u16, String)> {
        match (self.mode, path) {
            (Mode::Silent, _) => return None,
            (Mode::Refuses(status, text), _) => return Some((status, text.to_owned())),
            (Mode::Fails { status, stores }, "runs/log-batch") => {
                if stores {
                    self.store(body);
                }
                return Some((status, String::new()));
            }
            _ => {}
        }
        let (status, json) = match path {
            "experiments/get-by-name" => match self.experiments.first() {
                None => (
                    404,
                    json!({ "error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none" }),
                ),
                Some((_, stage)) => (
                    200,
                    json!({ "experiment": { "experiment_id": "7", "lifecycle_stage": stage } }),
                ),
            },
            "experiments/create" => {
                let name = body["name"].as_str().unwrap().to_owned();
                self.experiments.push((name, "active"));
                (200, json!({ "experiment_id": "7" }))
            }
            "runs/create" => {
                self.runs += 1;
                self.status = "RUNNING".to_owned();
                (
                    200,
                    json!({ "run": { "info": { "run_id": format!("r{}", self.runs) } } }),
                )
            }
            "runs/get" => (200, self.run()),
            "runs/log-batch" => self.store(body),
            "runs/update" => {
                self.status = body["status"].as_str().unwrap().to_owned();
                (200, json!({}))
            }
            _ => (200, json!({})),
        };
        Some((status, json.to_string()))
    }

    fn store(&mut self, body: &Value) -> (u16, Value) {
        let list = |name: &str| body[name].as_array().cloned().unwrap_or_default();
        if list("metrics").len() > 1_000 || list("params").len() > 100 || list("tags").len() > 100 {
            return (400, json!({ "error_code": "INVALID_PARAMETER_VALUE" }));
        }
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        for point in list("metrics") {
            let step = point["step"].as_u64().unwrap();
            self.points
                .push((text(&point["key"]), step, point["value"].clone()));
        }
        let pairs = |name| {
            list(name)
                .into_iter()
                .map(|one| (text(&one["key"]), text(&one["value"])))
        };
        self.parameters.extend(pairs("params"));
        self.tags.extend(pairs("tags"));
        (200, json!({}))
    }

    fn run(&self) -> Value {
        let mut last = std::collections::BTreeMap::new();
        for (key, step, _) in &self.points {
            let last = last.entry(key).or_insert(*step);
            *last = (*last).max(*step);
        }
        let metrics = last
            .into_iter()
            .map(|(key, step)| json!({ "key": key, "step": step }));
        let params = self.parameters.iter();
        let params = params.map(|(key, value)| json!({ "key": key, "value": value }));
        json!({ "run": {
            "info": { "status": self.status, "lifecycle_stage": "active" },
            "data": {
                "metrics": metrics.collect::<Vec<_>>(),
                "params": params.collect::<Vec<_>>(),
            },
        }})
    }

    /// The steps of a metric, in the order of arrival.
    fn steps(&self, key: &str) -> Vec<u64> {
        let points = self.points.iter().filter(|point| point.0 == key);
        points.map(|point| point.1).collect()
    }
}

fn parameters(count: usize) -> Parameters {
    (0..count)
        .map(|index| (format!("p{index}"), json!(index)))
        .collect()
}

/// Starts or resumes a run from `step`.
fn start(tracker: &mut Mlflow, step: Option<usize>, parameters: Parameters) -> Result<()> {
    tracker.connect(step.is_some())?;
    let folder = tracker.folder.clone();
    tracker.start(&StartedRun {
        name: "runs".to_owned(),
        folder: &folder,
        parameters,
        record: &RunRecord {
            command_line: ["my-model", "--epochs", "8", "a name"]
                .map(str::to_owned)
                .into(),
            ..RunRecord::default()
        },
        resumes: step.is_some(),
        step: step.unwrap_or_default(),
        first_step: step.map_or(0, |step| step + 1),
    })
}

fn end(tracker: &mut Mlflow, outcome: Outcome) -> Result<()> {
    tracker.finish(&EndedRun {
        outcome,
        files: Vec::new(),
    })
}

fn log(tracker: &mut Mlflow, steps: std::ops::RangeInclusive<usize>) {
    for step in steps {
        tracker
            .scalar(step, "step/loss", 1.0 / step as f64)
            .unwrap();
    }
}

#[test]
fn a_run_is_sent_in_batches_within_the_limits() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let mut tracker = server.tracker(folder.path());
    let mut all = parameters(150);
    all.push(("long".to_owned(), json!("ä".repeat(501))));
    start(&mut tracker, None, all).unwrap();
    log(&mut tracker, 1..=2_500);
    let metric = |value| MergedMetric {
        name: "R²@1".to_owned(),
        value,
        examples: 8,
        observations: 8,
    };
    tracker
        .metrics(Split::Validation, 2_500, &[metric(f64::NAN)])
        .unwrap();
    tracker
        .metrics(Split::Validation, 2_501, &[metric(f64::NEG_INFINITY)])
        .unwrap();
    let files = vec![folder.path().join("run.json")];
    fs::write(&files[0], "{}").unwrap();
    let ended = EndedRun {
        outcome: Outcome::Finished,
        files,
    };
    tracker.finish(&ended).unwrap();
    server.with(|state| {
        assert_eq!(state.experiments, [("digits".to_owned(), "active")]);
        assert_eq!(state.steps("step/loss"), (1..=2_500).collect::<Vec<_>>());
        let values = state
            .points
            .iter()
            .filter(|point| point.0 == "validation/R__1");
        let values: Vec<&Value> = values.map(|point| &point.2).collect();
        assert_eq!(values, [&json!("NaN"), &json!("-Infinity")]);
        assert_eq!(state.parameters.len(), 151);
        assert_eq!(state.parameters[150].1.chars().count(), 500);
        assert!(state.tags.iter().any(|(name, _)| name == "output_dir"));
        assert_eq!(state.status, "FINISHED");
        let requests = &state.requests;
        assert!(requests.iter().all(|request| request.1 == "Bearer secret"));
        let artifact = "mlflow-artifacts/artifacts/7/r1/artifacts/run.json";
        assert!(requests.iter().any(|request| request.0 == artifact));
    });
    assert!(!folder.path().join(UNSENT).exists());
}

#[test]
fn a_resumed_run_goes_on_and_sends_what_was_kept_once() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let mut tracker = server.tracker(folder.path());
    start(&mut tracker, None, parameters(2)).unwrap();
    log(&mut tracker, 1..=4);
    server.wait_for("runs/log-batch");
    while server.with(|state| state.steps("step/loss").len()) < 4 {
        thread::sleep(Duration::from_millis(5));
    }
    server.set(Mode::Fails {
        status: 503,
        stores: false,
    });
    log(&mut tracker, 5..=8);
    let error = end(&mut tracker, Outcome::Killed).unwrap_err().to_string();
    assert!(
        error.ends_with(":\n  my-model --epochs 8 'a name' --resume") && error.contains(UNSENT),
        "{error}"
    );
    drop(tracker);

    // From a checkpoint after step 6, so that 7 and 8 are repeated; 5 and 6 are in the file.
    server.set(Mode::Normal);
    let mut tracker = server.tracker(folder.path());
    let mut changed = parameters(3);
    changed[0].1 = json!("other");
    start(&mut tracker, Some(6), changed).unwrap();
    log(&mut tracker, 7..=10);
    end(&mut tracker, Outcome::Finished).unwrap();

    // Repeats the test of step 10, which is still in the file.
    let mut tracker = server.tracker(folder.path());
    start(&mut tracker, Some(10), parameters(3)).unwrap();
    server.set(Mode::Fails {
        status: 503,
        stores: false,
    });
    tracker.scalar(10, "test/loss", 0.5).unwrap();
    end(&mut tracker, Outcome::Finished).unwrap_err();
    server.set(Mode::Normal);
    let mut tracker = server.tracker(folder.path());
    start(&mut tracker, Some(10), parameters(3)).unwrap();
    tracker.scalar(10, "test/loss", 0.5).unwrap();
    end(&mut tracker, Outcome::Finished).unwrap();

    // From an earlier checkpoint than the server has steps.
    let mut tracker = server.tracker(folder.path());
    start(&mut tracker, Some(8), parameters(3)).unwrap();
    log(&mut tracker, 9..=12);
    end(&mut tracker, Outcome::Finished).unwrap();
    server.with(|state| {
        assert_eq!(state.runs, 1);
        assert_eq!(state.steps("step/loss"), (1..=12).collect::<Vec<_>>());
        assert_eq!(state.steps("test/loss"), [10]);
        let names: Vec<&str> = state.parameters.iter().map(|one| one.0.as_str()).collect();
        assert_eq!(names, ["p0", "p1", "p2"]);
        let changed = ("resumed.p0".to_owned(), "other".to_owned());
        assert!(state.tags.contains(&changed));
        assert_eq!(state.status, "FINISHED");
    });
}

#[test]
fn a_batch_whose_response_is_lost_is_not_sent_twice() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let mut tracker = server.tracker(folder.path());
    start(&mut tracker, None, Vec::new()).unwrap();
    server.with(|state| state.requests.clear());
    server.set(Mode::Fails {
        status: 500,
        stores: true,
    });
    log(&mut tracker, 1..=3);
    server.wait_for("runs/log-batch");
    server.set(Mode::Normal);
    log(&mut tracker, 4..=5);
    end(&mut tracker, Outcome::Finished).unwrap();
    let steps = server.with(|state| state.steps("step/loss"));
    assert_eq!(steps, [1, 2, 3, 4, 5]);
}

#[test]
fn a_silent_server_delays_neither_the_training_nor_its_end() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let mut tracker = server.tracker(folder.path());
    tracker.end = Duration::from_millis(100);
    start(&mut tracker, None, Vec::new()).unwrap();
    server.set(Mode::Silent);
    let started = Instant::now();
    log(&mut tracker, 1..=2_000);
    end(&mut tracker, Outcome::Finished).unwrap_err();
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    let kept = fs::read_to_string(folder.path().join(UNSENT)).unwrap();
    assert_eq!(kept.lines().count(), 2_000);
}

#[test]
fn a_server_that_cannot_be_used_is_an_error_before_the_training() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let refusal = |mode: Mode| {
        server.set(mode);
        let error = server.tracker(folder.path()).connect(false).unwrap_err();
        format!("{error:#}")
    };
    for (status, text, message) in [
        (
            401,
            "You are not authenticated.",
            "MLFLOW_TRACKING_PASSWORD",
        ),
        (403, "", "MLFLOW_TRACKING_TOKEN"),
        (404, "<!doctype html>", "the address of an MLflow server"),
        (302, "", "redirects"),
        (503, "<html>", "status 503"),
        (200, "<html>", "is it an MLflow server?"),
        (
            400,
            r#"{"error_code": "INVALID_PARAMETER_VALUE", "message": "a bad name"}"#,
            "INVALID_PARAMETER_VALUE: a bad name",
        ),
    ] {
        let error = refusal(Mode::Refuses(status, text));
        let both = error.contains(message) && error.contains(&server.uri);
        assert!(both && !error.contains("html"), "{status}: {error}");
    }
    server.with(|state| state.experiments.push(("digits".to_owned(), "deleted")));
    let error = refusal(Mode::Normal);
    assert!(error.contains("\"digits\" is deleted"), "{error}");

    let unused = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let api = Api::with_authorization(&format!("http://{unused}"), None).unwrap();
    let error = Mlflow::with_api(api, None, folder.path())
        .connect(false)
        .unwrap_err();
    assert!(format!("{error:#}").contains("is it running"), "{error:#}");
    assert!(!folder.path().join(RUN).exists());
}

#[test]
fn a_resume_trains_also_if_the_server_is_away() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let mut tracker = server.tracker(folder.path());
    start(&mut tracker, None, Vec::new()).unwrap();
    end(&mut tracker, Outcome::Killed).unwrap();
    server.set(Mode::Refuses(503, ""));
    let mut tracker = server.tracker(folder.path());
    start(&mut tracker, Some(3), Vec::new()).unwrap();
    server.set(Mode::Normal);
    log(&mut tracker, 4..=5);
    end(&mut tracker, Outcome::Finished).unwrap();
    server.with(|state| {
        assert_eq!(state.steps("step/loss"), [4, 5]);
        assert_eq!((state.runs, state.status.as_str()), (1, "FINISHED"));
    });
}

/// Trains for an epoch of two steps with the tracker of `--mlflow`.
fn train(
    server: &Server,
    folder: &Path,
    words: &[&str],
    step: impl Fn(Shard<f32>) -> Result<Losses> + Clone + Send + 'static,
) {
    let common = ["--epochs", "1", "--batch-size", "8", "--log-every", "1"];
    let words = [&common[..], &["--mlflow", &server.uri], words].concat();
    let train = |options: &_| {
        set_up(options)?;
        let datasets = test_task::datasets(options, 16)?;
        test_task::train(options, &datasets, Callbacks::new(), step)
    };
    on_a_thread(folder, &words, train).unwrap();
}

#[test]
fn the_resume_of_a_training_that_has_ended_sends_what_was_kept_and_trains_no_step() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let unsent = folder.path().join(UNSENT);
    let away = server.clone();
    train(&server, folder.path(), &[], move |shard| {
        away.set(Mode::Refuses(503, ""));
        replica_step(shard)
    });
    assert!(fs::read_to_string(&unsent).unwrap().contains("step/loss"));
    server.set(Mode::Normal);
    train(&server, folder.path(), &["--resume"], |_| panic!("a step"));
    assert!(!unsent.exists());
    server.with(|state| {
        assert_eq!(state.steps("step/loss"), [1, 2]);
        assert_eq!(state.steps("train/loss"), [2]);
        assert_eq!((state.runs, state.status.as_str()), (1, "FINISHED"));
    });
}

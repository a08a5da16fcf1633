//! A server for the requests of trainings to MLflow. `tests/trackers/mlflow.rs` has a real one.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use serde_json::{Value, json};

/// The metrics and the status that a training sent.
#[derive(Clone, Default, Debug)]
pub struct Run {
    /// The name and step of each point, in the order of arrival.
    pub points: Vec<(String, u64)>,
    /// The last status.
    pub status: String,
}

/// The server. Its thread ends with the process.
#[derive(Clone)]
pub struct Server {
    uri: String,
    runs: Arc<Mutex<BTreeMap<String, Run>>>,
    created: Arc<AtomicUsize>,
}

impl Server {
    /// Starts a server on a free port of this machine.
    ///
    /// # Panics
    /// No port is free.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let server = Server {
            uri: format!("http://{address}"),
            runs: Arc::default(),
            created: Arc::default(),
        };
        let serving = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                // A client that closes its connection ends the thread.
                thread::spawn(move || serving.serve(&stream));
            }
        });
        server
    }

    /// The address, for `--mlflow`.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The number of runs that trainings created.
    pub fn created(&self) -> usize {
        self.created.load(Ordering::SeqCst)
    }

    /// A run by its id.
    pub fn run(&self, id: &str) -> Run {
        self.with(|runs| runs.get(id).cloned().unwrap_or_default())
    }

    fn with<R>(&self, look: impl FnOnce(&mut BTreeMap<String, Run>) -> R) -> R {
        look(&mut self.runs.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Answers one request, after which the connection is closed.
    fn serve(&self, mut stream: &TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut first = String::new();
        reader.read_line(&mut first)?;
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.trim_end().split_once(": ") else {
                break;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let answer = self.answer(&first, &body).to_string();
        let length = answer.len();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{answer}"
        )
    }

    fn answer(&self, request: &str, body: &Value) -> Value {
        let is = |path: &str| request.contains(path);
        let id = body["run_id"].as_str().unwrap_or_default().to_owned();
        if is("experiments/get-by-name") {
            return json!({ "experiment": { "experiment_id": "1", "lifecycle_stage": "active" } });
        }
        if is("runs/create") {
            let number = self.created.fetch_add(1, Ordering::SeqCst);
            return json!({ "run": { "info": { "run_id": format!("run-{number}") } } });
        }
        if is("runs/get") {
            let info = json!({ "status": "RUNNING", "lifecycle_stage": "active" });
            return json!({ "run": { "info": info, "data": {} } });
        }
        if is("runs/log-batch") {
            let points = body["metrics"].as_array().into_iter().flatten();
            let points = points.map(|point| {
                let name = point["key"].as_str().unwrap_or_default();
                (name.to_owned(), point["step"].as_u64().unwrap_or_default())
            });
            self.with(|runs| runs.entry(id).or_default().points.extend(points));
        } else if is("runs/update") {
            let status = body["status"].as_str().unwrap_or_default().to_owned();
            self.with(|runs| runs.entry(id).or_default().status = status);
        }
        json!({})
    }
}

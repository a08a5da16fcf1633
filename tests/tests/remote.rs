//! Training on Burn servers, each a process on the loopback network.

use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
    time::Instant,
};

use kiln_tests::{
    abilities::{
        self, ONE, OTHER_KERNELS, Strategy, TOGETHER, find_learning_rate,
        finds_the_rate_of_one_device, is_as_on_one_device,
    },
    hardware,
    job::{Job, Signal, assert_close, assert_near, ends_in_time, signal},
    parallel,
};

/// A server, which is killed at the end of the test.
struct Server {
    process: Child,
    address: String,
    /// Kept open so that the server can print.
    _printed: BufReader<ChildStdout>,
}

impl Server {
    fn start(job: &Job) -> Self {
        let mut command = job.alone();
        command
            .args(["serve", "--address", "127.0.0.1:0"])
            .stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        let mut printed = BufReader::new(process.stdout.take().unwrap());
        printed.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("serves 1 device(s) on ");
        Server {
            address: address.expect(&line).to_owned(),
            process,
            _printed: printed,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "long"]
fn a_program_trains_across_servers() {
    let project = hardware::project();
    let job = Job::of(&project, &["weights"], "remote");
    abilities::prepare(&job);
    let servers = [Server::start(&job), Server::start(&job)];
    let hosts = servers.each_ref().map(|server| server.address.as_str());
    // Side by side, as this process and the servers wait for each other.
    let tests = [
        servers_train_to_the_weights_of_one_device,
        what_cannot_work_is_refused,
    ];
    parallel::for_each(&tests, |test| test(&job, hosts));
    abilities_are_those_of_one_device(&job);
    // Alone, as it has seconds to end.
    a_server_that_is_lost_ends_the_training(&job, servers);
}

/// 54 examples in batches of 24, 24 and 6; the last is smaller than the number of replicas, 8.
fn servers_train_to_the_weights_of_one_device(job: &Job, hosts: [&str; 2]) {
    let train = |options: &[&str], batch_size: &str, runs: &str| {
        let data = ["--data-dir", "small", "--epochs", "3", "--output-dir", runs];
        let batch = ["--batch-size", batch_size];
        job.runs_alone(&[options, &data, &batch].concat());
        (job.weights(runs), job.metrics(runs))
    };
    let one = train(&["--strategy", "one-device"], "24", "runs/one");
    let both = hosts.join(",");
    let remote = |hosts: &str, replicas: &str, batch_size: &str| {
        let options = ["--strategy", "remote", "--hosts", hosts];
        let options = [&options[..], &["--replicas", replicas]].concat();
        train(&options, batch_size, &format!("runs/remote-{replicas}"))
    };
    let server = remote(hosts[0], "1", "24");
    assert_near(&server.0, &one.0, OTHER_KERNELS, "weights of a server");
    assert_close(&server.1, &one.1, "metrics of a server");
    for (replicas, batch_size) in [("2", "12"), ("8", "3")] {
        let (weights, metrics) = remote(&both, replicas, batch_size);
        let what = format!("{replicas} remote replicas");
        assert_close(&weights, &server.0, &format!("weights of {what}"));
        assert_close(&metrics, &server.1, &format!("metrics of {what}"));
    }
    // One stage of a model per server.
    let options = ["--strategy", "model-parallel", "--hosts", &both];
    let (weights, metrics) = train(&options, "24", "runs/stages");
    assert_close(&weights, &server.0, "weights of stages on servers");
    assert_close(&metrics, &server.1, "metrics of stages on servers");
}

/// Trains also twice to the same bits. Each list of abilities has servers of its own, side by side: a server has one
/// generator of random numbers for all programs.
fn abilities_are_those_of_one_device(job: &Job) {
    let lists = TOGETHER.iter().map(Some).chain([None]);
    parallel::for_each(&lists.collect::<Vec<_>>(), |together| {
        let servers = [Server::start(job), Server::start(job)];
        let hosts = servers.each_ref().map(|server| server.address.as_str());
        let both = hosts.join(",");
        let strategies = [1, 3].map(|replicas| Strategy::remote(&both, replicas));
        match together {
            Some(together) => {
                together.train_on_one_device(job, None);
                for on in strategies {
                    is_as_on_one_device(job, together, on, &[]);
                }
            }
            None => {
                find_learning_rate(job, ONE);
                for on in strategies {
                    finds_the_rate_of_one_device(job, on);
                }
            }
        }
    });
}

fn what_cannot_work_is_refused(job: &Job, hosts: [&str; 2]) {
    let remote = |options: &[&str]| {
        let mut command = job.alone();
        command.args(["--strategy", "remote"]).args(options);
        command
    };
    job.fails(&mut remote(&[]), &["--hosts HOST:PORT,..."]);
    job.fails(
        &mut remote(&["--hosts", "127.0.0.1:1"]),
        &["the Burn server 127.0.0.1:1 cannot be reached", " serve "],
    );
    job.fails(
        &mut remote(&["--hosts", "no such host"]),
        &["--hosts: \"no such host\" is not HOST or HOST:PORT"],
    );
    let twice = [hosts[0], hosts[0]].join(",");
    job.fails(&mut remote(&["--hosts", &twice]), &["twice"]);
    let exchange = ["--hosts", hosts[0], "--exchange-precision", "bfloat16"];
    job.fails(
        &mut remote(&exchange),
        &["--exchange-precision bfloat16 is not for --strategy remote: the servers send"],
    );
    let devices = ["--hosts", hosts[0], "--devices", "1"];
    job.fails(&mut remote(&devices), &["--devices 1: there is no such"]);
    let serve = |address: &str| {
        let mut command = job.alone();
        command.args(["serve", "--address", address]);
        command
    };
    job.fails(&mut serve(hosts[0]), &["cannot listen on ", "in use"]);
    job.fails(&mut serve("here"), &["cannot listen on here"]);
}

fn a_server_that_is_lost_ends_the_training(job: &Job, servers: [Server; 2]) {
    let both = [servers[0].address.as_str(), servers[1].address.as_str()].join(",");
    let long = |runs: &str| -> Command {
        let mut command = job.alone();
        command.args(["--strategy", "remote", "--hosts", &both, "--timeout", "8"]);
        command.args(["--epochs", "100000", "--output-dir", runs, "train"]);
        command
    };
    let lost = servers[1].process.id();
    let training = job.start(&mut long("runs/stopped"), "runs/stopped");
    signal(Signal::STOP, lost);
    let silent = format!(
        "the Burn server {} has not answered for",
        servers[1].address
    );
    ends_in_time(training, Instant::now(), &[&silent]);
    signal(Signal::CONT, lost);
    let training = job.start(&mut long("runs/killed"), "runs/killed");
    signal(Signal::KILL, lost);
    let messages = ["training stopped at epoch ", "replica 1 of 2 failed on "];
    ends_in_time(training, Instant::now(), &messages);
    // The saved training resumes on the other server.
    let alone = ["--strategy", "remote", "--hosts", &servers[0].address];
    let options = ["--output-dir", "runs/killed", "--resume", "--epochs", "1"];
    job.runs_alone(&[&alone[..], &options, &["train"]].concat());
}

//! Asynchronous replicas: each example once per epoch, bounded staleness, and the results of one replica.

use kiln_tests::{
    idx::idx_data,
    job::{Job, Signal, signal, workers},
    mpi, parallel,
    rendered::{EXAMPLES, Project, text},
    running::TRAINING,
};

/// The minimum accuracy on the digits with 4 replicas.
const ACCURACY: f64 = 0.97;

fn job(project: &Project, examples: &[&str]) -> Job {
    let job = Job::of(project, examples, "parameter-server");
    idx_data(&job.folder.join("small"), 8);
    job
}

/// The accuracy on the digits' test split.
fn accuracy(job: &Job, runs: &str) -> f64 {
    let log = job.log(runs);
    let test = log.iter().find(|line| line["split"] == "test").unwrap();
    test["accuracy"].as_f64().unwrap()
}

#[test]
#[ignore = "long"]
fn replicas_of_one_process_train_at_their_own_pace() {
    let project = Project::default_answers();
    let job = job(&project, &[]);
    one_replica_without_staleness_is_one_device(&job);
    for staleness in ["0", "3", "8"] {
        let runs = format!("runs/staleness-{staleness}");
        let options = ["--strategy", "parameter-server", "--replicas", "4"];
        let staleness = ["--max-staleness", staleness, "--output-dir", &runs];
        job.runs_alone(&[options, staleness].concat());
        // As many updates as on one device, of one batch each.
        assert_eq!(job.manifest(&runs)["step"], 20 * 85);
        let accuracy = accuracy(&job, &runs);
        assert!(accuracy >= ACCURACY, "{runs}: {accuracy}");
    }
}

/// Bit-identical, even with several batches per update and checkpoints in between.
fn one_replica_without_staleness_is_one_device(job: &Job) {
    let train = |strategy: &[&str], runs: &str| {
        let options = ["--data-dir", "small", "--epochs", "3", "--batch-size", "5"];
        let steps = ["--accumulate", "2", "--checkpoint-steps", "4"];
        job.runs_alone(&[strategy, &options, &steps, &["--output-dir", runs]].concat());
        (job.manifest(runs)["parameters"].clone(), job.metrics(runs))
    };
    let one = train(&["--strategy", "one-device"], "runs/one");
    let server = ["--strategy", "parameter-server", "--replicas", "1"];
    let server = [&server[..], &["--max-staleness", "0"]].concat();
    assert_eq!(train(&server, "runs/server"), one);
}

#[test]
#[ignore = "long"]
fn replicas_of_several_processes_train_at_their_own_pace() {
    if !mpi::is_there() {
        return;
    }
    let project = Project::default_answers();
    let job = job(&project, &EXAMPLES);
    // Side by side, as launchers and processes wait for each other.
    let tests: [fn(&Job); 4] = [
        each_batch_is_computed_once,
        a_signal_to_one_stops_all_after_the_same_step,
        Job::a_time_limit_stops_all_after_the_same_step,
        what_does_not_fit_together_is_refused,
    ];
    parallel::for_each(&tests, |test| test(&job));
    // Alone, as it has seconds to end.
    a_process_that_is_lost_ends_the_job(&job);
}

fn each_batch_is_computed_once(job: &Job) {
    for (processes, replicas) in [(2, "2"), (4, "1")] {
        let runs = format!("runs/{processes}x{replicas}");
        // Only the chief reports; the others must not be asked for what it prints.
        let reports = ["--throughput", "--peak-flops", "1T", "--log-every", "1"];
        let options = ["--replicas", replicas, "--output-dir", &runs];
        job.runs(processes, &[&options[..], &reports].concat());
        let log = job.log(&runs);
        for line in log.iter().filter(|line| line["split"] == "train") {
            assert_eq!(line["examples"], 1_350, "{line}");
            assert_eq!(line["step"], 85 * line["epoch"].as_u64().unwrap(), "{line}");
        }
        let accuracy = accuracy(job, &runs);
        assert!(accuracy >= ACCURACY, "{runs}: {accuracy}");
    }
    // More replicas than batches in an epoch, and two batches per update.
    let options = ["--data-dir", "small", "--batch-size", "16", "--epochs", "2"];
    let options = [&options[..], &["--accumulate", "2", "--replicas", "2"]].concat();
    job.runs(2, &[&options[..], &["--output-dir", "runs/few"]].concat());
    assert_eq!(job.manifest("runs/few")["step"], 4);
    let trained = job.log("runs/few").into_iter();
    let mut trained = trained.filter(|line| line["split"] == "train");
    assert!(trained.all(|line| line["examples"] == 54));
}

fn a_signal_to_one_stops_all_after_the_same_step(job: &Job) {
    let options = ["--output-dir", "runs/signal", "--epochs", "100000", "train"];
    let running = job.start(&mut job.command(3, &options), "runs/signal");
    signal(Signal::TERM, workers("runs/signal")[1]);
    let output = running.end(TRAINING);
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(143), "{printed}");
    let step = &job.manifest("runs/signal")["step"];
    assert!(
        printed.contains(&format!("stopped after step {step};")),
        "{step}: {printed}"
    );
    another_number_of_processes_goes_on(job);
}

fn another_number_of_processes_goes_on(job: &Job) {
    let before = &job.manifest("runs/signal");
    let (step, epoch) = (&before["step"], before["epoch"].as_u64().unwrap());
    let epochs = (epoch + 1).to_string();
    let options = ["--output-dir", "runs/signal", "--resume", "--epochs"];
    let printed = job.runs(2, &[&options[..], &[&epochs, "train"]].concat());
    assert!(printed.contains("resumed from"), "{step}: {printed}");
    let after = &job.manifest("runs/signal")["step"];
    assert_eq!(after.as_u64().unwrap(), 85 * (epoch + 1), "from {step}");
    let log = job.log("runs/signal");
    let mut trained = log.iter().filter(|line| line["split"] == "train");
    assert!(trained.all(|line| line["examples"] == 1_350));
}

fn a_process_that_is_lost_ends_the_job(job: &Job) {
    job.ends_after(
        "runs/killed",
        |workers| signal(Signal::KILL, workers[2]),
        &["error: worker 0 of 3", "worker 2 of 3 (host ", ") died at"],
    );
    job.ends_after(
        "runs/stopped",
        |workers| signal(Signal::STOP, workers[1]),
        &["worker 1 of 3 (host ", ") has not answered for "],
    );
    job.ends_after(
        "runs/server",
        |workers| signal(Signal::KILL, workers[0]),
        &["error: worker 1 of 3", "worker 0 of 3 (host ", ") died at"],
    );
}

fn what_does_not_fit_together_is_refused(job: &Job) {
    let program = job.programs.join("program");
    let mut command = mpi::run(1);
    let options = ["--strategy", "parameter-server", "--max-staleness"];
    command.arg(&program).args(options).arg("1");
    command.args([":", "-np", "1"]).arg(&program).args(options);
    job.fails(
        command.arg("2"),
        &["--max-staleness differs between workers: 1 on worker 0 of 2"],
    );
}

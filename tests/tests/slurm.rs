//! The Slurm script on a cluster: two nodes train to the results of one replica, save before the
//! time limit of the job, resume in its next run, and end if one of them is lost.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    thread::{self, sleep},
    time::{Duration, Instant},
};

use kiln_tests::{
    NAME,
    idx::idx_data,
    job::{Job, assert_close, second_epoch_began},
    mpi, parallel,
    rendered::{EXAMPLES, Project},
    running::TRAINING,
    runs::checkpoints,
    slurm::{self, Cluster},
};

/// The global batch size.
const GLOBAL_BATCH: usize = 24;
/// Epochs of the job that is stopped: more than it completes before the signal.
const EPOCHS: u64 = 300;
const SCRIPT: &str = "launch/slurm.sh";

#[test]
#[ignore = "long"]
fn the_script_for_slurm_trains_on_its_nodes() {
    if !mpi::is_there() || !slurm::is_there() {
        return;
    }
    let script = script();
    let project = Project::default_answers();
    let (job, cluster) = thread::scope(|scope| {
        let cluster = scope.spawn(Cluster::start);
        (job(&project, &script), cluster.join().unwrap())
    });
    nodes_train_to_the_weights_of_one_device(&job, &cluster);
    // Side by side: one job has the nodes while the other waits for its next turn.
    let tests = [
        a_job_saves_when_its_time_is_up_and_goes_on_in_its_next_turn,
        a_node_that_is_lost_ends_the_job,
    ];
    parallel::for_each(&tests, |test| test(&job, &cluster));
}

/// The script of a project for Slurm.
fn script() -> String {
    let project = Project::with_answers(&[("cluster", "slurm")]);
    fs::read_to_string(project.path().join(SCRIPT)).unwrap()
}

/// The programs of a project, and the script, as in a user's folder.
fn job(project: &Project, script: &str) -> Job {
    let job = Job::of(project, &EXAMPLES, "multi-worker-mirrored");
    // The path of the program in a user's build.
    let (launch, built) = (job.folder.join("launch"), job.folder.join("target/release"));
    fs::create_dir_all(&launch).unwrap();
    fs::create_dir_all(&built).unwrap();
    fs::write(job.folder.join(SCRIPT), script).unwrap();
    fs::copy(job.programs.join("program"), built.join(NAME)).unwrap();
    idx_data(&job.folder.join("small"), 8);
    job
}

/// Submits the script with the common options; returns the job id and the output file.
fn submit(job: &Job, cluster: &Cluster, runs: &str, options: &[&str]) -> (String, PathBuf) {
    let batch = (GLOBAL_BATCH / 2).to_string();
    let common = [
        "--replicas",
        "1",
        "--batch-size",
        &batch,
        "--data-dir",
        "small",
    ];
    let output = format!("{runs}.txt");
    fs::create_dir_all(job.folder.join("runs")).unwrap();
    let arguments = [&common[..], &["--output-dir", runs], options].concat();
    let number = cluster.submit(&job.folder, SCRIPT, &output, &arguments);
    (number, job.folder.join(output))
}

fn nodes_train_to_the_weights_of_one_device(job: &Job, cluster: &Cluster) {
    let batch = GLOBAL_BATCH.to_string();
    let one = [
        "--strategy",
        "one-device",
        "--batch-size",
        &batch,
        "--epochs",
        "3",
    ];
    job.runs_alone(
        &[
            &one[..],
            &["--data-dir", "small", "--output-dir", "runs/one"],
        ]
        .concat(),
    );
    let (number, output) = submit(job, cluster, "runs/nodes", &["--epochs", "3"]);
    let state = cluster.wait(&number);
    let printed = fs::read_to_string(output).unwrap();
    assert_eq!(state, "COMPLETED", "{printed}");
    assert_eq!(job.manifest("runs/nodes")["replicas"], 2, "{printed}");
    let (one, nodes) = (job.weights("runs/one"), job.weights("runs/nodes"));
    assert_close(&nodes, &one, "weights of two nodes of Slurm");
}

/// Sends the signal that Slurm sends two minutes before the time limit, as the script requests. The
/// job is submitted once and requeues itself.
fn a_job_saves_when_its_time_is_up_and_goes_on_in_its_next_turn(job: &Job, cluster: &Cluster) {
    let options = ["--epochs", &EPOCHS.to_string(), "train"];
    let (number, output) = submit(job, cluster, "runs/late", &options);
    second_epoch(job, "runs/late");
    cluster.signal(&number, "USR1");
    let state = cluster.wait(&number);
    let printed = fs::read_to_string(output).unwrap();
    assert_eq!(state, "COMPLETED", "{printed}");
    // Each run of the job appends to the output.
    let (stopped, resumed) = printed.split_once("stopped ").expect("a stop");
    assert!(!stopped.contains("resumed from"), "{printed}");
    let step = resumed.split_once("after step ").unwrap().1;
    let step: u64 = step.split(';').next().unwrap().parse().unwrap();
    let resumed = format!("resumed from runs/late/checkpoints/step-{step:08}");
    assert_eq!(
        printed.matches(&resumed).count(),
        1,
        "no {resumed}: {printed}"
    );
    let last = job.manifest("runs/late");
    assert!(0 < step && step < 3 * EPOCHS, "{step}");
    assert_eq!(
        (&last["step"], &last["epoch"]),
        (&(3 * EPOCHS).into(), &(EPOCHS + 1).into())
    );
}

fn a_node_that_is_lost_ends_the_job(job: &Job, cluster: &Cluster) {
    let options = ["--epochs", "100000", "--timeout", "8", "train"];
    let (number, output) = submit(job, cluster, "runs/lost", &options);
    second_epoch(job, "runs/lost");
    // The program itself, not the `srun` with its name.
    let of_program = format!("^[^ ]*target/release/{NAME} .*runs/lost");
    let workers = Command::new("pgrep").args(["--full", &of_program]).output();
    let workers = String::from_utf8(workers.unwrap().stdout).unwrap();
    let workers: Vec<&str> = workers.lines().collect();
    let mut kill = Command::new("kill");
    let killed = kill
        .args(["-KILL", workers.last().expect("a worker")])
        .status();
    assert!(killed.unwrap().success());
    let state = cluster.wait(&number);
    let printed = fs::read_to_string(output).unwrap();
    assert_eq!(state, "FAILED", "{printed}");
    assert!(!job.manifest("runs/lost")["step"].is_null(), "{printed}");
}

/// Waits until the second epoch has started, and the checkpoint of the first, which is written beside it, is there.
fn second_epoch(job: &Job, runs: &str) {
    let runs = job.folder.join(runs);
    let start = Instant::now();
    while !second_epoch_began(&runs) || checkpoints(&runs).is_empty() {
        let waited = start.elapsed();
        assert!(waited < TRAINING, "no second epoch in {}", runs.display());
        sleep(Duration::from_millis(20));
    }
}

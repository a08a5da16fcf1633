//! Several MPI processes train to the results of one replica, stop together, and end if one of them is lost.

use std::{
    env,
    ffi::OsString,
    fs, iter,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use kiln_tests::{
    idx::idx_data,
    interruptions::{Ended, Whole},
    job::{Job, Signal, assert_close, signal, workers},
    mpi, parallel,
    random::Random,
    rendered::{EXAMPLES, Project, text},
    running::{self, Running, TRAINING, succeeds, write_program},
};

/// The global batch size, divisible by all numbers of replicas here.
const GLOBAL_BATCH: usize = 24;

#[test]
#[ignore = "long"]
fn several_processes_are_one_job() {
    if !mpi::is_there() {
        return;
    }
    let project = Project::default_answers();
    let job = Job::of(&project, &EXAMPLES, "multi-worker-mirrored");
    idx_data(&job.folder.join("small"), 8);
    // Alone, as moments are chosen within its time.
    let time = a_launched_training_is_timed(&job);
    // Side by side, as launchers and processes wait for each other. The longest first, so that no core waits at the end.
    let tests: [&(dyn Fn() + Sync); 12] = [
        &|| launched_trainings_are_stopped_at_random_moments(&job, time),
        &|| processes_train_to_the_weights_of_one_device(&job),
        &|| what_does_not_fit_together_is_refused(&job),
        &|| an_overflow_in_one_process_skips_the_update_in_all(&job),
        &|| another_number_of_processes_goes_on(&job),
        &|| a_signal_to_one_stops_all_after_the_same_step(&job),
        &|| a_signal_to_the_launcher_stops_all(&job),
        &|| a_signal_before_the_workers_start_waits_for_them(&job),
        &|| job.a_time_limit_stops_all_after_the_same_step(),
        &|| workers_that_outlive_mpirun_are_waited_for(&job),
        &|| gradients_in_bfloat16_are_half_the_bytes(&job),
        &|| a_callback_of_one_stops_all_after_the_same_step(&job),
    ];
    parallel::for_each(&tests, |test| test());
    // After all others, as these have seconds to end. What is idle comes first, beside the one with the least time.
    let lost: [fn(&Job); 4] = [
        a_process_that_is_stopped_ends_the_job,
        a_process_that_hangs_ends_the_job,
        a_chief_that_is_killed_ends_the_job,
        a_process_that_is_killed_ends_the_job,
    ];
    parallel::for_each(&lost, |test| test(&job));
}

/// 54 examples in batches of 24, 24 and 6; the last is smaller than the number of replicas, 8.
fn processes_train_to_the_weights_of_one_device(job: &Job) {
    let train = |replicas: usize, folder: &str| {
        let batch = (GLOBAL_BATCH / replicas).to_string();
        let options = [
            "--data-dir",
            "small",
            "--epochs",
            "3",
            "--batch-size",
            &batch,
        ];
        let options = [&options[..], &["--output-dir", folder]].concat();
        options.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let one = train(1, "runs/one");
    let one: Vec<&str> = one.iter().map(String::as_str).collect();
    job.runs_alone(&[&["--strategy", "one-device"], &one[..]].concat());
    let (expected, metrics) = (job.weights("runs/one"), job.metrics("runs/one"));
    assert_eq!(metrics.len(), 2 * (2 * 3 + 1));
    for processes in 1..=4 {
        for replicas in 1..=2 {
            let runs = format!("runs/{processes}x{replicas}");
            let options = train(processes * replicas, &runs);
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let local = replicas.to_string();
            job.runs(processes, &[&["--replicas", &local], &options[..]].concat());
            let what = format!("{processes} processes with {replicas} replicas");
            assert_close(
                &job.weights(&runs),
                &expected,
                &format!("weights of {what}"),
            );
            assert_close(&job.metrics(&runs), &metrics, &format!("metrics of {what}"));
            assert_eq!(job.manifest(&runs)["replicas"], processes * replicas);
        }
    }
    // A repeated run is bit-identical.
    let again = train(6, "runs/again");
    let again: Vec<&str> = again.iter().map(String::as_str).collect();
    job.runs(3, &[&["--replicas", "2"], &again[..]].concat());
    assert_eq!(
        job.manifest("runs/again")["parameters"],
        job.manifest("runs/3x2")["parameters"]
    );
}

/// Only the chief needs the folder: it sends the checkpoint to the others.
fn another_number_of_processes_goes_on(job: &Job) {
    let options = [
        "--output-dir",
        "runs/resumed",
        "--batch-size",
        "8",
        "--epochs",
    ];
    job.runs(2, &[&options[..], &["1"]].concat());
    let printed = job.runs(3, &[&options[..], &["2", "--resume"]].concat());
    assert!(
        printed.contains("resumed from runs/resumed/checkpoints/step-00000085-epoch-1"),
        "{printed}"
    );
    assert_eq!(
        printed.matches("resumed from").count(),
        1,
        "only the chief reports: {printed}"
    );
    // 1,350 examples in batches of 16, and later of 24.
    assert_eq!(job.manifest("runs/resumed")["step"], 85 + 57);
    let tested = job.runs(
        2,
        &[
            "--output-dir",
            "runs/resumed",
            "test",
            "--checkpoint",
            "latest",
        ],
    );
    let alone = job.runs_alone(&[
        "--strategy",
        "one-device",
        "--output-dir",
        "runs/resumed",
        "test",
    ]);
    let result = |printed: &str| {
        printed
            .lines()
            .find(|line| line.starts_with("test  "))
            .map(str::to_owned)
    };
    assert!(result(&tested).is_some(), "{tested}");
    assert_eq!(result(&tested), result(&alone));
}

fn a_signal_to_one_stops_all_after_the_same_step(job: &Job) {
    let options = ["--output-dir", "runs/signal", "--epochs", "100000", "train"];
    let running = job.start(&mut job.command(3, &options), "runs/signal");
    signal(Signal::TERM, workers("runs/signal")[2]);
    let output = running.end(TRAINING);
    assert_eq!(output.status.code(), Some(143), "{}", text(&output));
    assert!(
        text(&output).contains("go on with the same options and --resume"),
        "{}",
        text(&output)
    );
    assert!(
        job.runs(3, &["--output-dir", "runs/signal", "test"])
            .contains("test  loss")
    );
}

/// By the crate's launcher, which forwards the signal.
fn a_signal_to_the_launcher_stops_all(job: &Job) {
    let mut launch = job.alone();
    let options = [
        "launch",
        "--workers",
        "2",
        "--output-dir",
        "runs/launch",
        "--epochs",
        "100000",
    ];
    launch.args(options).args(["--", "train"]);
    let running = job.start(&mut launch, "runs/launch");
    signal(Signal::TERM, running.id());
    let output = running.end(TRAINING);
    assert_eq!(output.status.code(), Some(143), "{}", text(&output));
    assert!(
        text(&output).contains("go on with the same options and --resume"),
        "{}",
        text(&output)
    );
    assert_eq!(job.manifest("runs/launch")["replicas"], 2);
}

/// The launcher starts them a second late.
#[cfg(target_os = "linux")]
fn a_signal_before_the_workers_start_waits_for_them(job: &Job) {
    let folder = job.folder.join("late");
    fs::create_dir(&folder).unwrap();
    let path = env::var("PATH").unwrap();
    let script = format!(
        "PATH='{path}'\n\
         [ \"$1\" = --version ] || {{ echo a late launcher >&2; sleep 1; }}\n\
         exec mpirun \"$@\""
    );
    write_program(&folder.join("mpirun"), &script);
    let mut launch = launched(job, "runs/late", false);
    launch.env("PATH", before_other_paths(&folder));
    let running = Running::start(&mut launch).wait_until_printed("a late launcher");
    signal(Signal::TERM, running.id());
    let output = running.end(TRAINING);
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(143), "{printed}");
    // Before or after the first step.
    for message in ["stopping once all workers have started, in ", "stopped "] {
        assert!(printed.contains(message), "{message}: {printed}");
    }
}

/// `PATH` with another folder first.
fn before_other_paths(folder: &Path) -> OsString {
    let others = env::var_os("PATH").unwrap();
    let paths = iter::once(folder.to_owned()).chain(env::split_paths(&others));
    env::join_paths(paths).unwrap()
}

/// A stand-in for Open MPI's launcher, which does not wait for the processes that it has killed, as they hold the
/// output folder until they are gone.
#[cfg(target_os = "linux")]
fn workers_that_outlive_mpirun_are_waited_for(job: &Job) {
    let folder = job.folder.join("stand-in");
    fs::create_dir(&folder).unwrap();
    let worker = folder.join("worker");
    let launch = |seconds: &str| {
        let script = format!(
            "[ \"$1\" = --version ] && echo 'mpirun (Open MPI) 4.1.4' && exit\n\
             sleep {seconds} &\n\
             echo $! > {}\n\
             exit 7",
            worker.display()
        );
        write_program(&folder.join("mpirun"), &script);
        let started = Instant::now();
        let output = running::output(
            job.alone()
                .args(["launch", "--workers", "2"])
                .env("PATH", before_other_paths(&folder)),
            TRAINING,
        );
        let printed = text(&output);
        assert!(
            printed.contains("mpirun ended with exit status: 7"),
            "{printed}"
        );
        assert!(!printed.contains("warning"), "{printed}");
        let id = fs::read_to_string(&worker).unwrap();
        // That of a process that has ended but that nobody has waited for is empty.
        let command = fs::read(format!("/proc/{}/cmdline", id.trim())).unwrap_or_default();
        assert!(command.is_empty(), "a worker outlives its launcher");
        started.elapsed().as_secs_f64()
    };
    // One ends by itself, the other is killed.
    let ended = launch("1");
    assert!(ended >= 1.0, "{ended}");
    let killed = launch("100");
    assert!((3.0..50.0).contains(&killed), "{killed}");
}

#[cfg(not(target_os = "linux"))]
fn workers_that_outlive_mpirun_are_waited_for(_: &Job) {}

fn a_callback_of_one_stops_all_after_the_same_step(job: &Job) {
    let mut command = mpi::run(3);
    command
        .arg(job.programs.join("early_stop"))
        .current_dir(&job.folder)
        .args(["--strategy", job.strategy, "--replicas", "1"]);
    let printed = succeeds(&mut command, TRAINING);
    for worker in 0..3 {
        let told = format!("worker {worker}, step 2: Callback, as the loss is low enough");
        assert!(printed.contains(&told), "no {told}: {printed}");
    }
}

/// With gradients exchanged in bfloat16, each process has the bits of a thread.
fn an_overflow_in_one_process_skips_the_update_in_all(job: &Job) {
    let lines = |command: &mut Command, strategy: &str, replicas: &str, exchange: &str| {
        command
            .arg(job.programs.join("overflow"))
            .current_dir(&job.folder);
        command.args(["--strategy", strategy, "--replicas", replicas]);
        command.args(["--precision", "float16", "--exchange-precision", exchange]);
        let printed = succeeds(command, TRAINING);
        let lines = printed.lines().filter(|line| line.starts_with("replica "));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    for exchange in ["float32", "bfloat16"] {
        let processes = lines(&mut mpi::run(3), job.strategy, "1", exchange);
        // The text after the name of the replica.
        let states: Vec<&str> = processes.iter().map(|line| &line[11..]).collect();
        assert_eq!(states.len(), 9, "{processes:?}");
        assert!(states[1].starts_with("step 2: scale 32768, 1 skipped,"));
        let parameters = |state: &str| state.split(' ').next_back().map(str::to_owned);
        let parameters: Vec<_> = states[..3].iter().map(|state| parameters(state)).collect();
        assert_eq!(parameters[0], parameters[1], "{processes:?}");
        assert_ne!(parameters[1], parameters[2], "{processes:?}");
        assert_eq!(states[3..6], states[..3]);
        assert_eq!(states[6..], states[..3]);
        if exchange == "bfloat16" {
            // It starts one process.
            let mut alone = Command::new("env");
            assert_eq!(lines(&mut alone, "mirrored", "3", exchange), processes);
        }
    }
}

/// The bytes of Open MPI, of which each process reports those that it sends.
fn gradients_in_bfloat16_are_half_the_bytes(job: &Job) {
    let bytes = |exchange: &str| {
        let reports = job.folder.join(format!("bytes-{exchange}"));
        let mut command = mpi::run(3);
        for (name, value) in [("enable", "1"), ("enable_output", "3")] {
            command.args(["--mca", &format!("pml_monitoring_{name}"), value]);
        }
        command.args(["--mca", "pml_monitoring_filename"]);
        command.arg(&reports);
        command.arg(job.programs.join("overflow"));
        command.current_dir(&job.folder);
        command.args(["--strategy", job.strategy, "--replicas", "1"]);
        command.args(["--precision", "float16", "--exchange-precision", exchange]);
        succeeds(&mut command, TRAINING);
        let report = fs::read_to_string(reports.with_extension("1.prof")).ok()?;
        Some(sent(&report))
    };
    let [Some(exact), Some(rounded)] = ["float32", "bfloat16"].map(bytes) else {
        return println!("skipped: this MPI does not count bytes");
    };
    println!("worker 1 sends {exact} bytes in float32, {rounded} in bfloat16");
    let share = rounded as f64 / exact as f64;
    assert!((0.45..0.55).contains(&share), "{rounded} of {exact} bytes");
}

/// The bytes to all processes in lines such as `I 1 0 4096 bytes 2 msgs sent`, of MPI's own messages and others.
fn sent(report: &str) -> u64 {
    let bytes = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let is_message = matches!(words.next(), Some("I" | "E"));
        words.nth(2).filter(|_| is_message)?.parse::<u64>().ok()
    };
    report.lines().filter_map(bytes).sum()
}

/// A training of two processes by the crate's launcher.
fn launched(job: &Job, runs: &str, resume: bool) -> Command {
    let options = "launch --workers 2 --replicas 1 --data-dir small --batch-size 2 --epochs 20";
    let mut launch = job.alone();
    launch.args(options.split(' ')).args(["--output-dir", runs]);
    launch
        .args(resume.then_some("--resume"))
        .args(["--", "train"]);
    launch
}

/// The output folder of a launched training that nobody stops.
const NEVER_STOPPED: &str = "runs/never-stopped";

fn a_launched_training_is_timed(job: &Job) -> Duration {
    let start = Instant::now();
    succeeds(&mut launched(job, NEVER_STOPPED, false), TRAINING);
    start.elapsed()
}

/// Signals go to the launcher, singly or in bursts; it ends like a training in one process.
fn launched_trainings_are_stopped_at_random_moments(job: &Job, time: Duration) {
    let whole = Whole {
        runs: &job.folder.join(NEVER_STOPPED),
        time,
    };
    let start = Instant::now();
    let mut stopped = 0;
    for number in 0..10 {
        // Shown by the test runner if one of the trainings fails.
        println!("launched training {number}");
        let runs = format!("runs/stopped-{number}");
        let (folder, mut random) = (job.folder.join(&runs), Random::new(number));
        let command = |resume| launched(job, &runs, resume);
        let ends = whole.is_reached_with_stops(&folder, &mut random, command);
        stopped += ends
            .iter()
            .filter(|ended| **ended == Ended::Stopped)
            .count();
        assert_eq!(workers(&runs), [0; 0], "a worker outlives its launcher");
    }
    println!(
        "10 launched trainings in {:.0?}, {stopped} stops",
        start.elapsed()
    );
    assert!(stopped > 3);
}

fn what_does_not_fit_together_is_refused(job: &Job) {
    let program = job.programs.join("program");
    // Two different programs in one job, as a launcher with a host file can start them.
    let mixed = |first: &[&str], second: &[&str]| {
        let all = [
            "--strategy",
            "multi-worker-mirrored",
            "--output-dir",
            "runs/refused",
        ];
        let mut command = mpi::run(1);
        command.arg(&program).args(all).args(first);
        command
            .args([":", "-np", "1"])
            .arg(&program)
            .args(all)
            .args(second);
        command
    };
    job.fails(
        &mut mixed(&["--replicas", "2"], &["--replicas", "1"]),
        &[
            "--replicas differs between workers: 2 on worker 0 of 2",
            "1 on worker 1 of 2",
        ],
    );
    job.fails(
        &mut mixed(&["--seed", "1"], &["--seed", "2"]),
        &[
            "--seed differs between workers: 1 on worker 0",
            "with the same options",
        ],
    );
    job.fails(
        &mut mixed(&[], &["--data-dir", "small"]),
        &[
            "the number of examples differs between workers: 1350 on worker 0",
            "54 on worker 1",
        ],
    );
    job.fails(
        &mut mixed(&[], &["--data-dir", "absent"]),
        &[
            "error: worker 1 of 2",
            "neither train-images-idx3-ubyte nor",
        ],
    );
    // MPI waits for the process that never initialises it.
    let mut silent = mpi::run(1);
    silent
        .arg(&program)
        .args(["--strategy", "multi-worker-mirrored", "--timeout", "3"])
        .args([":", "-np", "1", "sleep", "100"]);
    job.fails(
        &mut silent,
        &["MPI has not connected this process with the others within 3 s"],
    );
    let mut mirrored = mpi::run(2);
    mirrored
        .arg(&program)
        .args(["--strategy", "mirrored", "--output-dir", "runs/refused"]);
    job.fails(
        &mut mirrored,
        &[
            "mpirun started 2 processes",
            "use --strategy multi-worker-mirrored",
        ],
    );
    let mut other = job.alone();
    other
        .args(["--strategy", "multi-worker-mirrored"])
        .env("PMI_SIZE", "4")
        // Without mpirun, Open MPI starts its own server, which may outlive the program.
        .env("OMPI_MCA_ess_singleton_isolated", "1");
    job.fails(
        &mut other,
        &["mpiexec started 4 processes, but MPI sees 1", "Open MPI"],
    );
    let mut missing = job.alone();
    missing
        .args(["launch", "--workers", "2"])
        .env("PATH", "/nowhere");
    job.fails(&mut missing, &["mpirun was not found", "nstall"]);
    assert!(!job.folder.join("runs/refused/checkpoints").exists());
}

fn a_process_that_is_killed_ends_the_job(job: &Job) {
    job.ends_after(
        "runs/killed",
        |workers| signal(Signal::KILL, workers[1]),
        &[
            "error: worker 0 of 3 (host ",
            "worker 1 of 3 (host ",
            ") died at step ",
            "(collective ",
        ],
    );
    job.runs(
        2,
        &[
            "--output-dir",
            "runs/killed",
            "--epochs",
            "1",
            "--resume",
            "train",
        ],
    );
}

fn a_process_that_is_stopped_ends_the_job(job: &Job) {
    job.ends_after(
        "runs/stopped",
        |workers| signal(Signal::STOP, workers[2]),
        &[
            "worker 2 of 3 (host ",
            ") has not answered for ",
            "; it was at step ",
        ],
    );
}

/// All others wait on the chief.
fn a_chief_that_is_killed_ends_the_job(job: &Job) {
    job.ends_after(
        "runs/chief",
        |workers| signal(Signal::KILL, workers[0]),
        &[
            "error: worker 1 of 3",
            "error: worker 2 of 3",
            "worker 0 of 3 (host ",
            ") died at step ",
        ],
    );
}

/// One process computes for ever while its monitor responds; the others cannot exit.
fn a_process_that_hangs_ends_the_job(job: &Job) {
    let mut command = mpi::run(3);
    command.arg(job.programs.join("hang"));
    command.args(["--strategy", "multi-worker-mirrored", "--timeout", "8"]);
    let started = Instant::now();
    job.fails(
        &mut command,
        &[
            "worker 1 of 3 (host ",
            ") has not reached the sum of 4 numbers (collective ",
            ", step 7) for ",
            "increase --timeout",
        ],
    );
    assert!(started.elapsed() < Duration::from_secs(9));
}

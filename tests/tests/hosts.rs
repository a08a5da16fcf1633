//! Several hosts: network namespaces connected by a switch, each with a host name and an address.
//! MPI starts on all, one is disconnected, and the job ends in time and resumes on the others.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use kiln_tests::{
    job::wait_for_second_epoch,
    mpi, parallel,
    rendered::{Project, text},
    running::{Running, write_program},
};

/// The time in seconds that a worker may keep the others waiting.
const TIMEOUT: u64 = 10;

/// The hosts `a`, `b` and `c`, with the addresses 10.99.0.1 to 3.
struct Hosts {
    prefix: String,
    names: [&'static str; 3],
    /// A script that runs a command on a host, as SSH would.
    shell: PathBuf,
}

impl Hosts {
    /// Creates the hosts; fails if namespaces are not permitted.
    fn new(folder: &Path) -> Result<Self, String> {
        let hosts = Hosts {
            prefix: format!("kiln{}", std::process::id()),
            names: ["a", "b", "c"],
            shell: folder.join("shell"),
        };
        let prefix = &hosts.prefix;
        let script = format!(
            "# shell HOST COMMAND...\n\
             case $1 in\n10.99.0.1) host=a ;;\n10.99.0.2) host=b ;;\n10.99.0.3) host=c ;;\nesac\n\
             shift\n\
             exec ip netns exec {prefix}-$host unshare --uts sh -c \"hostname host-$host; exec $*\""
        );
        write_program(&hosts.shell, &script);
        ip(&format!("netns add {prefix}-switch"))?;
        ip(&format!("-n {prefix}-switch link add br0 type bridge"))?;
        ip(&format!("-n {prefix}-switch link set br0 up"))?;
        for (number, name) in (1..).zip(hosts.names) {
            let host = format!("{prefix}-{name}");
            ip(&format!("netns add {host}"))?;
            ip(&format!("-n {host} link set lo up"))?;
            ip(&format!(
                "link add port-{name} netns {prefix}-switch type veth peer name eth0 netns {host}"
            ))?;
            ip(&format!(
                "-n {prefix}-switch link set port-{name} master br0 up"
            ))?;
            ip(&format!("-n {host} addr add 10.99.0.{number}/24 dev eth0"))?;
            ip(&format!("-n {host} link set eth0 up"))?;
        }
        Ok(hosts)
    }

    fn cut_off(&self, name: &str) {
        ip(&format!(
            "-n {}-switch link set port-{name} down",
            self.prefix
        ))
        .unwrap();
    }

    /// The crate's launcher on the first host, with workers on the hosts with these numbers.
    fn launch(&self, program: &Path, numbers: &[u32], options: &str) -> Command {
        let hosts: Vec<String> = numbers
            .iter()
            .map(|number| format!("10.99.0.{number}"))
            .collect();
        let hosts = hosts.join(",");
        let program = program.display();
        let mut command = Command::new(&self.shell);
        command
            .arg("10.99.0.1")
            .arg(format!(
                "{program} launch --hosts {hosts} --timeout {TIMEOUT} {options}"
            ))
            .env("OMPI_MCA_plm_rsh_agent", &self.shell);
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in self.names.iter().chain(&["switch"]) {
            let host = format!("{}-{name}", self.prefix);
            let ids = Command::new("ip").args(["netns", "pids", &host]).output();
            let ids = ids.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            for id in ids.unwrap_or_default().split_whitespace() {
                let _ = Command::new("kill").args(["-KILL", id]).status();
            }
            let _ = ip(&format!("netns del {host}"));
        }
    }
}

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("ip {words}: {}", text(&output).trim())),
        Err(error) => Err(format!("ip {words}: {error}")),
    }
}

/// Whether the job succeeded, and its output.
fn ending(job: Running) -> (bool, String) {
    let output = job.end(Duration::from_secs(120));
    (output.status.success(), text(&output))
}

#[test]
#[ignore = "long"]
fn a_host_that_is_cut_off_ends_the_job_which_goes_on_with_the_rest() {
    if !mpi::is_there() {
        return;
    }
    let project = Project::default_answers();
    let hosts = match Hosts::new(&project.path()) {
        Ok(hosts) => hosts,
        Err(problem) => {
            println!("skipped: network namespaces are not allowed here: {problem}");
            return;
        }
    };
    let program = project.build();
    let runs = project.path().join("runs");
    let options = options(&runs, 100_000) + " -- train";
    let mut command = hosts.launch(&program, &[1, 2, 3], &options);
    let job = wait_for_second_epoch(Running::start(&mut command), &runs);
    hosts.cut_off("c");
    let cut = Instant::now();
    let (success, printed) = ending(job);
    let seconds = cut.elapsed().as_secs_f64();
    assert!(!success, "{printed}");
    assert!(seconds < TIMEOUT as f64 + 1.0, "{seconds}: {printed}");
    for part in [
        "error: worker 0 of 3 (host host-a): ",
        "worker 2 of 3 (host host-c) has not answered for ",
        "; it was at step ",
        "(collective ",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    // The monitor ends a process that is blocked in MPI, and does not know the epoch.
    let places = ["training stopped at epoch ", ": stopped at step "];
    assert!(
        places.iter().any(|place| printed.contains(place)),
        "{printed}"
    );
    println!("the job ended {seconds:.1} s after the cut");
    // Side by side: an unreachable host is an error only after a while.
    let later = [the_others_go_on, a_host_that_cannot_be_reached_is_an_error];
    parallel::for_each(&later, |test| test(&hosts, &program, &runs));
}

/// The options of a job that trains for this many epochs.
fn options(runs: &Path, epochs: u32) -> String {
    let runs = runs.display();
    format!("--output-dir {runs} --epochs {epochs} --checkpoint-steps 5")
}

fn the_others_go_on(hosts: &Hosts, program: &Path, runs: &Path) {
    let options = options(runs, 1) + " --resume";
    let mut command = hosts.launch(program, &[1, 2], &options);
    let (success, printed) = ending(Running::start(&mut command));
    assert!(success, "{printed}");
    assert!(
        printed.contains("resumed from ") && printed.contains("test  loss "),
        "{printed}"
    );
}

fn a_host_that_cannot_be_reached_is_an_error(hosts: &Hosts, program: &Path, runs: &Path) {
    let options = options(&runs.join("unreachable"), 1);
    let mut command = hosts.launch(program, &[1, 3], &options);
    let (success, printed) = ending(Running::start(&mut command));
    assert!(!success, "{printed}");
    println!("{printed}");
}

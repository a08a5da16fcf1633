//! A Slurm cluster with two nodes, both of which are this machine.

use std::{
    env, fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{
    rendered::text,
    running::{self, Running, TRAINING},
    there_or_skipped,
};

const PROGRAMS: [&str; 6] = ["munged", "slurmctld", "slurmd", "sbatch", "srun", "unshare"];

/// Whether Slurm is installed; if not, prints that a test is skipped.
///
/// # Panics
/// Slurm is missing, and `KILN_REQUIRE_SLURM` is set.
pub fn is_there() -> bool {
    let paths = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&paths).collect();
    let mut programs = PROGRAMS.iter();
    let found = programs.all(|program| folders.iter().any(|folder| folder.join(program).is_file()));
    let is_root = Command::new("id").arg("-u").output();
    let is_root = is_root.is_ok_and(|id| id.stdout.trim_ascii() == b"0");
    let there = found && is_root;
    there_or_skipped(
        there,
        "KILN_REQUIRE_SLURM",
        &format!("this is not root's, or one of {PROGRAMS:?} is missing"),
        "what needs Slurm; as root, `apt install munge slurm-client slurmctld slurmd` has it",
    )
}

/// The daemons of a cluster, which write into one folder.
pub struct Cluster {
    folder: TempDir,
    /// In order of termination: the last started ends first.
    daemons: Vec<Running>,
}

impl Cluster {
    /// Starts the daemons and waits until both nodes accept jobs.
    ///
    /// # Panics
    /// The nodes do not become ready.
    pub fn start() -> Self {
        // A short name, as paths of sockets have at most 107 bytes.
        let folder = tempfile::Builder::new().prefix("s").tempdir_in("/tmp");
        let mut cluster = Cluster {
            folder: folder.expect("a temporary folder"),
            daemons: Vec::new(),
        };
        cluster.configure();
        let mut munged = Command::new("munged");
        munged.args(["--foreground", "--force", "--num-threads=2"]);
        for (option, file) in [
            ("socket", "munge.socket"),
            ("key-file", "munge/key"),
            ("pid-file", "munged.pid"),
            ("log-file", "munge/log"),
            ("seed-file", "munge/seed"),
        ] {
            let file = cluster.path(file);
            munged.arg(format!("--{option}={}", file.display()));
        }
        let socket = cluster.path("munge.socket");
        let munged = Running::start(&mut munged);
        let munged = munged.wait_until("socket", || socket.exists());
        cluster.daemons.push(munged);
        let controller = Running::start(cluster.command("slurmctld").args(["-D", "-i"]));
        cluster.daemons.push(controller);
        for node in ["node1", "node2"] {
            // MPI assumes that processes with the same host name are on one machine.
            let script = "hostname \"$0\" && exec slurmd -D -N \"$0\"";
            let mut slurmd = cluster.command("unshare");
            let node = Running::start(slurmd.args(["--uts", "sh", "-c", script, node]));
            cluster.daemons.push(node);
        }
        let start = Instant::now();
        while !cluster.is_up() {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "the nodes do not come up:\n{}",
                cluster.logs()
            );
            thread::sleep(Duration::from_millis(200));
        }
        cluster
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn configure(&self) {
        let folders = [
            "munge",
            "state",
            "spool.node1",
            "spool.node2",
            "tmp.node1",
            "tmp.node2",
        ];
        for folder in folders {
            fs::create_dir(self.path(folder)).expect("a folder");
        }
        let private = |path: &Path, mode: &str| {
            let changed = Command::new("chmod").arg(mode).arg(path).status();
            assert!(changed.expect("chmod").success());
        };
        // The shared secret of the daemons.
        fs::write(self.path("munge/key"), [b'k'; 128]).expect("a key");
        private(&self.path("munge/key"), "600");
        private(&self.path("munge"), "700");
        private(self.folder.path(), "755");
        fs::write(self.path("plugstack.conf"), "").expect("a file");
        let host = Command::new("hostname").arg("-s").output();
        let host = String::from_utf8(host.expect("a host name").stdout);
        // Held until all ports are known, so that they differ.
        let ports = [(); 3].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"));
        let ports = ports.map(|port| port.local_addr().expect("an address").port());
        let folder = self.folder.path().display();
        let settings = include_str!("slurm.conf")
            .replace("FOLDER", &folder.to_string())
            .replace("HOST", host.expect("a host name").trim());
        let settings = ports
            .iter()
            .enumerate()
            .fold(settings, |settings, (place, port)| {
                settings.replace(&format!("PORT{place}"), &port.to_string())
            });
        fs::write(self.path("slurm.conf"), settings).expect("a file");
    }

    /// A Slurm command for this cluster.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("SLURM_CONF", self.path("slurm.conf"))
            // The nodes communicate on this machine only.
            .env("OMPI_MCA_btl_tcp_if_include", "lo");
        command
    }

    fn output(&self, program: &str, arguments: &[&str]) -> Output {
        running::output(self.command(program).args(arguments), TRAINING)
    }

    fn is_up(&self) -> bool {
        let nodes = self.output("sinfo", &["--noheader", "--Node", "--format", "%T"]);
        let nodes = text(&nodes);
        nodes.lines().filter(|state| *state == "idle").count() == 2
    }

    fn logs(&self) -> String {
        let logs = ["slurmctld.log", "slurmd.node1.log", "slurmd.node2.log"];
        let logs = logs.map(|log| fs::read_to_string(self.path(log)).unwrap_or_default());
        logs.concat()
    }

    /// Submits a script in `folder` whose output goes to `output`; returns the job id.
    ///
    /// # Panics
    /// Slurm refuses the job.
    pub fn submit(&self, folder: &Path, script: &str, output: &str, arguments: &[&str]) -> String {
        let mut sbatch = self.command("sbatch");
        sbatch
            .args(["--parsable", "--output", output, script])
            .args(arguments)
            .current_dir(folder);
        running::succeeds(&mut sbatch, TRAINING).trim().to_owned()
    }

    /// Waits until a job ends; returns its state, such as `COMPLETED`.
    ///
    /// # Panics
    /// The job does not end in time.
    pub fn wait(&self, job: &str) -> String {
        let start = Instant::now();
        loop {
            let shown = text(&self.output("scontrol", &["--oneliner", "show", "job", job]));
            let state = shown.split_once(" JobState=");
            let state = state.and_then(|(_, rest)| rest.split(' ').next());
            match state {
                Some("PENDING" | "CONFIGURING" | "RUNNING" | "COMPLETING") => {}
                Some(state) => return state.to_owned(),
                None => panic!("no such job: {shown}"),
            }
            assert!(start.elapsed() < TRAINING, "{shown}\n{}", self.logs());
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Sends a signal to the processes of a job's steps.
    ///
    /// # Panics
    /// The job does not exist.
    pub fn signal(&self, job: &str, name: &str) {
        let sent = self.output("scancel", &["--signal", name, job]);
        assert!(sent.status.success(), "{}", text(&sent));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A failed test may leave jobs behind.
        let _ = self.command("scancel").args(["--user", "root"]).status();
        while let Some(daemon) = self.daemons.pop() {
            drop(daemon);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_runs_on_both_nodes() {
        if !is_there() {
            return;
        }
        let cluster = Cluster::start();
        let folder = tempfile::tempdir().unwrap();
        let script = "#!/bin/sh\n#SBATCH --nodes=2 --ntasks-per-node=1\nsrun hostname; exit $1\n";
        fs::write(folder.path().join("script"), script).unwrap();
        for (status, state) in [("0", "COMPLETED"), ("3", "FAILED")] {
            let job = cluster.submit(folder.path(), "script", "output", &[status]);
            assert_eq!(cluster.wait(&job), state, "{}", cluster.logs());
        }
        let printed = fs::read_to_string(folder.path().join("output")).unwrap();
        let mut names: Vec<&str> = printed.lines().collect();
        names.sort_unstable();
        assert_eq!(names, ["node1", "node2"]);
    }
}

//! Starts this program in several processes with the MPI launcher.

mod listening;
#[cfg(target_os = "linux")]
mod orphans;
#[cfg(feature = "remote")]
mod remote;
#[cfg(not(feature = "remote"))]
#[path = "no_remote.rs"]
mod remote;
mod signals;

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::{BufRead, BufReader, ErrorKind},
    path::Path,
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{CommandFactory, parser::ValueSource};

use crate::{
    checkpoint::interrupt, console::terminal, options::Launch, run_record, workers::install_hint,
};
use listening::Workers;
use signals::Forwarded;

pub use remote::{connect_servers, serve};

/// The MPI launcher.
const LAUNCHER: &str = "mpirun";

/// Maximum workers per host, to bound memory.
const MAX_WORKERS_PER_HOST: usize = 256;

/// Time for the launcher to exit after a failure, and for workers on this host to exit after the launcher.
const GRACE: Duration = Duration::from_secs(3);

/// Shell wrapper of a worker, whose program is `$0`. MPICH's launcher kills all workers as soon as one of
/// its processes fails, so the wrapper waits until the other workers have reported the failure or stopped.
/// It ignores signals, which the worker receives too.
const GUARD: &str =
    r#"trap : USR1 TERM INT; "$0" "$@"; status=$?; [ $status = 0 ] || sleep 2; exit $status"#;

/// Starts the workers and waits for them; `A` is the command line of this program.
///
/// # Errors
/// MPI is missing, a host is unreachable, or a process failed.
pub fn launch<A: CommandFactory>(options: &Launch, hosts: &[String]) -> Result<()> {
    ensure!(
        cfg!(feature = "mpi"),
        "this program was built without MPI: use `cargo run --features mpi -- launch`"
    );
    let program = env::current_exe().context("cannot find the path of this program")?;
    let mut command = launcher_command::<A>(options, hosts, &program)?;
    #[cfg(target_os = "linux")]
    let others = orphans::adopt();
    // First, as a signal that ended this process alone would leave the workers running.
    let signals = Forwarded::begin(Workers {
        program,
        on_this_host: match hosts {
            [] => worker_count(options.workers, hosts),
            _ => 1, // at least, if this host is one of them
        },
    });
    let cannot = || format!("cannot start {LAUNCHER}");
    let mut launcher = command.spawn().with_context(cannot)?;
    signals.launcher_has_started(launcher.id());
    let failed = pass_on(launcher.stderr.take().with_context(cannot)?);
    let ended = wait(&mut launcher, &failed);
    // One that comes during the wait for orphans has not stopped the launcher.
    let signal = signals.end();
    #[cfg(target_os = "linux")]
    match &ended {
        // It has waited for the workers; what they have started may go on.
        Ok(status) if status.success() => {}
        Ok(status) if status.code().is_some() => orphans::wait(GRACE, &others),
        // It was killed, as the workers are then.
        _ => orphans::wait(Duration::ZERO, &others),
    }
    let status = ended?;
    // A worker that could not save exits with 1.
    let stopped = !status.success() && status.code() != Some(1);
    if let Some(signal) = signal
        && stopped
        && !failed.load(Ordering::Relaxed)
    {
        interrupt::note_stopped(signal);
        return Ok(());
    }
    ensure!(
        status.success(),
        "{LAUNCHER} ended with {status}; the reason is above"
    );
    Ok(())
}

/// The command of the launcher, which starts `program` with the options of this one.
fn launcher_command<A: CommandFactory>(
    options: &Launch,
    hosts: &[String],
    program: &Path,
) -> Result<Command> {
    let mut words = launcher_words(options.workers, hosts, &version()?)?;
    words.push(program.into());
    words.extend(worker_words::<A>()?);
    words.extend(options.command.clone());
    let mut command = Command::new(LAUNCHER);
    command
        .args(&words)
        // Open MPI requires both if the user is root, as in a container.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .stderr(Stdio::piped());
    // In its own process group, the launcher receives only the signals that this process forwards.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    Ok(command)
}

/// Forwards the workers' standard error; the flag is set when one reports that the job has failed.
fn pass_on(stderr: ChildStderr) -> Arc<AtomicBool> {
    let failed = Arc::new(AtomicBool::new(false));
    let notes = Arc::clone(&failed);
    thread::spawn(move || {
        for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line); // of any program that the workers start
            terminal::warn(&line);
            if line.starts_with("error: worker ") {
                notes.store(true, Ordering::Relaxed);
            }
        }
    });
    failed
}

/// Waits for the launcher, and kills it if it hangs after a failure: although all workers have exited, it
/// may wait forever for an unreachable host, or for itself, as Open MPI 4.1.4 in `PMIx_server_finalize`, or while a
/// worker that a signal ended at its start is left as a zombie.
fn wait(launcher: &mut Child, failed: &AtomicBool) -> Result<ExitStatus> {
    let (mut deadline, mut last_child) = (None, None);
    loop {
        if let Some(status) = launcher.try_wait()? {
            return Ok(status);
        }
        if !children(launcher.id()).is_empty() {
            last_child = Some(Instant::now());
        }
        if last_child.is_some_and(|last: Instant| last.elapsed() > GRACE) {
            launcher.kill()?;
            return Ok(launcher.wait()?);
        }
        if failed.load(Ordering::Relaxed) {
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + GRACE);
            if Instant::now() > deadline {
                launcher.kill()?;
                launcher.wait()?;
                bail!(
                    "{LAUNCHER} did not end after this failure and was killed; look for processes \
                     that it left on a host that cannot be reached"
                );
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// The ids of a process's children, without those that have ended but nobody has waited for. Linux only, none
/// elsewhere.
fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let words = lists.flat_map(|list| list.split(' ').map(str::to_owned).collect::<Vec<_>>());
    let children = words.filter_map(|word| word.parse().ok());
    children.filter(|child| is_living(*child)).collect()
}

/// False if a process is a zombie or does not exist.
fn is_living(process: u32) -> bool {
    let Ok(stat) = fs::read(format!("/proc/{process}/stat")) else {
        return false;
    };
    // The state follows the name, which is in parentheses and may contain some.
    let name_end = stat.iter().rposition(|byte| *byte == b')');
    let state = name_end.and_then(|end| stat.get(end + 2));
    state.is_some_and(|state| !b"ZX".contains(state))
}

/// The version output of the launcher.
fn version() -> Result<String> {
    match Command::new(LAUNCHER).arg("--version").output() {
        Ok(output) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "{LAUNCHER} was not found: MPI is not installed, or not in PATH. Install it with\n    \
             {}",
            install_hint()
        ),
        Err(error) => Err(anyhow!(error).context(format!("cannot start {LAUNCHER}"))),
    }
}

/// The number of workers on all hosts.
fn worker_count(workers: Option<usize>, hosts: &[String]) -> usize {
    workers.unwrap_or(hosts.len().max(2))
}

/// The launcher's arguments, in the syntax of its MPI.
fn launcher_words(
    workers: Option<usize>,
    hosts: &[String],
    version: &str,
) -> Result<Vec<OsString>> {
    let workers = worker_count(workers, hosts);
    ensure!(
        workers >= hosts.len(),
        "{workers} workers are fewer than the {} hosts: omit --workers for one per host",
        hosts.len()
    );
    let slots = workers.div_ceil(hosts.len().max(1));
    ensure!(
        slots <= MAX_WORKERS_PER_HOST,
        "--workers {workers} would start {slots} processes on a host, and at most \
         {MAX_WORKERS_PER_HOST} are allowed: one per GPU or CPU core suffices"
    );
    let count = workers.to_string();
    let mut words = vec!["-np", &count];
    let list;
    if version.contains("Open MPI") {
        // Replicas divide the cores among themselves, and a machine may have fewer cores than workers.
        words.extend(["--bind-to", "none", "--oversubscribe"]);
        // No password prompt, and a short timeout for hosts that are down.
        if env::var_os("OMPI_MCA_plm_rsh_agent").is_none() {
            words.extend([
                "--mca",
                "plm_rsh_args",
                "-o BatchMode=yes -o ConnectTimeout=10",
            ]);
        }
        list = hosts
            .iter()
            .map(|host| format!("{host}:{slots}"))
            .collect::<Vec<_>>()
            .join(",");
        if !hosts.is_empty() {
            words.extend(["--map-by", "node", "--host", &list]);
        }
    } else if version.contains("HYDRA") || version.contains("MPICH") {
        words.extend(["-bind-to", "none"]);
        list = hosts.join(",");
        if !hosts.is_empty() {
            words.extend(["-hosts", &list]);
        }
        words.extend(["sh", "-c", GUARD]);
    } else {
        let first = version.lines().next().unwrap_or_default();
        bail!(
            "{LAUNCHER} is neither that of Open MPI nor of MPICH, but {first:?}: start this program \
             with it directly"
        );
    }
    Ok(words.into_iter().map(OsString::from).collect())
}

/// The options of this program to pass to each process, as given. Those of a configuration file, which may
/// be on this host alone, are passed as options.
fn worker_words<A: CommandFactory>() -> Result<Vec<OsString>> {
    let command = A::command();
    let given = run_record::matches().context("the command line was not parsed")?;
    let mut words = Vec::new();
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        let Some(long) = argument.get_long() else {
            continue;
        };
        // Help and version have no value.
        let source = given
            .try_contains_id(id)
            .ok()
            .and_then(|_| given.value_source(id));
        if source != Some(ValueSource::CommandLine) || ["config", "hosts"].contains(&id) {
            continue;
        }
        words.push(format!("--{long}").into());
        if argument.get_action().takes_values() {
            let values = given.get_raw(id).into_iter().flatten();
            let values: Vec<OsString> = values.map(OsString::from).collect();
            match argument.get_value_delimiter() {
                Some(_) => words.push(values.join(OsStr::new(","))),
                None => words.extend(values),
            }
        }
    }
    if !words.contains(&"--strategy".into()) {
        words.extend(["--strategy", "multi-worker-mirrored"].map(OsString::from));
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(workers: Option<usize>, hosts: &[&str], version: &str) -> Result<String> {
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        let words = launcher_words(workers, &hosts, version)?
            .into_iter()
            .map(OsString::into_string);
        Ok(words.collect::<Result<Vec<_>, _>>().unwrap().join(" "))
    }

    #[cfg(unix)]
    #[test]
    fn a_failure_is_noted_after_what_is_no_text() {
        let mut shell = Command::new("sh");
        shell.args(["-c", r"printf '\377\nerror: worker 0 of 2\n' >&2"]);
        let mut shell = shell.stderr(Stdio::piped()).spawn().unwrap();
        let failed = pass_on(shell.stderr.take().unwrap());
        shell.wait().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while !failed.load(Ordering::Relaxed) {
            assert!(Instant::now() < deadline, "not noted");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_launcher_that_outlives_its_workers_is_killed() {
        // The second one does not wait for its worker either.
        for script in ["sleep 0.3; exec sleep 100", "sleep 0.3 & exec sleep 100"] {
            let mut launcher = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let started = Instant::now();
            let status = wait(&mut launcher, &AtomicBool::new(false)).unwrap();
            assert!(!status.success());
            assert!(started.elapsed() < Duration::from_secs(30), "{script}");
        }
    }

    #[test]
    fn each_mpi_gets_its_own_words() {
        let open = words(Some(4), &["a", "b"], "mpirun (Open MPI) 4.1.4").unwrap();
        assert!(
            open.starts_with("-np 4 --bind-to none --oversubscribe"),
            "{open}"
        );
        assert!(open.ends_with("--map-by node --host a:2,b:2"), "{open}");
        let mpich = words(None, &["a", "b", "c"], "HYDRA build details:").unwrap();
        let expected = format!("-np 3 -bind-to none -hosts a,b,c sh -c {GUARD}");
        assert_eq!(mpich, expected);
        assert!(
            words(None, &[], "mpirun (Open MPI) 5.0.1")
                .unwrap()
                .starts_with("-np 2")
        );
    }

    /// The signal goes to the shell alone, whereas a launcher sends it to both.
    #[cfg(unix)]
    #[test]
    fn the_guard_ends_as_its_worker_does() {
        let run = |worker: &str| {
            let started = Instant::now();
            let words = ["-c", GUARD, "sh", "-c", worker];
            let status = Command::new("sh").args(words).status().unwrap();
            (status.code(), started.elapsed() >= Duration::from_secs(2))
        };
        assert_eq!(run("kill -TERM $PPID; exit 0"), (Some(0), false));
        assert_eq!(run("kill -USR1 $PPID; exit 7"), (Some(7), true));
    }

    #[test]
    fn what_cannot_be_launched_is_refused() {
        let error = words(Some(1), &["a", "b"], "mpirun (Open MPI) 4.1.4").unwrap_err();
        assert!(
            error.to_string().contains("fewer than the 2 hosts"),
            "{error}"
        );
        for (workers, hosts) in [(257, &[][..]), (513, &["a", "b"]), (usize::MAX, &["a"])] {
            let error = words(Some(workers), hosts, "mpirun (Open MPI) 4.1.4").unwrap_err();
            let expected = format!("--workers {workers} would start ");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
        assert!(words(Some(512), &["a", "b"], "mpirun (Open MPI) 4.1.4").is_ok());
        let error = words(None, &[], "prun 1.0").unwrap_err();
        assert!(error.to_string().contains("\"prun 1.0\""), "{error}");
    }
}

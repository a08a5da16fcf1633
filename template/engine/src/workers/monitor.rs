//! Heartbeats between the processes of a job. MPI blocks forever on a process that hangs and cannot
//! name it; so each process has a TCP connection to the chief, on which both send their progress twice
//! a second.

use std::{
    fmt,
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    process,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::console::terminal;
#[cfg(not(test))]
use crate::signals::exit_at_once;

/// Heartbeat interval.
const BEAT: Duration = Duration::from_millis(500);

/// Time from a failure until a process that has not exited by itself is ended.
const GRACE: Duration = Duration::from_secs(2);

/// Timeout of a connection to one address.
const CONNECT: Duration = Duration::from_secs(3);

/// A collective operation. Formatted only for messages: formatting takes about as long as a short sum.
#[derive(Clone, Copy, Debug)]
pub enum Collective {
    Sum { len: usize, of: &'static str },
    Other(&'static str),
}

impl fmt::Display for Collective {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Sum { len, of } => write!(formatter, "the sum of {len} {of}"),
            Self::Other(what) => formatter.write_str(what),
        }
    }
}

/// The progress of a process, sent with each heartbeat.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    step: usize,
    /// The collective operation started last, and the number of started ones.
    collective: String,
    number: u64,
    /// Time spent in that operation; `None` outside of one.
    waiting: Option<Duration>,
}

impl State {
    fn describe(&self) -> String {
        match self.number {
            0 => "before its first collective".to_owned(),
            number => format!(
                "at step {}, {} {} (collective {number})",
                self.step,
                if self.waiting.is_some() {
                    "in"
                } else {
                    "after"
                },
                self.collective
            ),
        }
    }
}

#[derive(Serialize, Deserialize)]
enum Message {
    Beat(State),
    /// The sending process ends with an error.
    Failed(String),
    /// The job ends with an error.
    Abort(String),
}

/// The chief's addresses, broadcast over MPI.
#[derive(Serialize, Deserialize)]
pub struct Address {
    job: u64,
    addresses: Vec<SocketAddr>,
}

/// The chief's listening socket, before the other processes connect.
pub struct Meeting {
    listener: TcpListener,
    job: u64,
}

impl Meeting {
    /// # Errors
    /// No port is free.
    pub fn open() -> Result<Self> {
        let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"));
        let started = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        Ok(Meeting {
            listener: listener.context("cannot open a port for the monitor of the job")?,
            job: started.as_nanos() as u64 ^ u64::from(process::id()).rotate_left(32),
        })
    }

    /// The addresses to connect to.
    ///
    /// # Errors
    /// The network interfaces cannot be read.
    pub fn address(&self) -> Result<Address> {
        let port = self.listener.local_addr()?.port();
        let mut interfaces: Vec<IpAddr> = if_addrs::get_if_addrs()
            .context("cannot list the network interfaces")?
            .into_iter()
            .filter(|interface| !interface.is_link_local())
            .map(|interface| interface.ip())
            .collect();
        // Loopback last: on another host it would reach an unrelated process.
        interfaces.sort_by_key(IpAddr::is_loopback);
        Ok(Address {
            job: self.job,
            addresses: interfaces.into_iter().map(|ip| (ip, port).into()).collect(),
        })
    }
}

/// The monitor of one process.
#[derive(Clone)]
pub struct Monitor(Arc<Shared>);

struct Shared {
    worker: usize,
    hosts: Vec<String>,
    limit: Duration,
    own: Mutex<Own>,
    peers: Mutex<Vec<Peer>>,
    failure: OnceLock<Failure>,
}

#[derive(Default)]
struct Own {
    step: usize,
    /// The operation started last, the number of started ones, and the start time while it runs.
    collective: Option<Collective>,
    number: u64,
    since: Option<Instant>,
    /// True if the waiting thread is blocked within MPI and cannot call [`Monitor::check`].
    is_inside: bool,
    /// True if closed connections are no longer a failure.
    leaving: bool,
}

/// The remote process of a connection.
struct Peer {
    worker: usize,
    stream: TcpStream,
    state: State,
    heard: Instant,
}

/// The reason why the job ends.
#[derive(Debug)]
struct Failure {
    reason: String,
    /// True if another process reports it to the user.
    told: bool,
}

impl Monitor {
    /// Creates the chief's monitor once all other processes are connected.
    ///
    /// # Errors
    /// A process does not connect within `timeout`.
    pub fn of_chief(meeting: &Meeting, hosts: Vec<String>, timeout: Duration) -> Result<Self> {
        let deadline = Instant::now() + limit(timeout);
        let mut streams: Vec<Option<TcpStream>> = hosts.iter().map(|_| None).collect();
        meeting.listener.set_nonblocking(true)?;
        while streams.iter().skip(1).any(Option::is_none) {
            match meeting.listener.accept() {
                Ok((mut stream, _)) => {
                    // Ignore connections of unrelated programs.
                    if let Ok(worker) = greeted(&mut stream, meeting.job)
                        && let Some(place) = streams.get_mut(worker)
                        && introduce(&mut stream, meeting.job, 0).is_ok()
                    {
                        *place = Some(stream);
                    }
                }
                Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
                Err(_) => {
                    let missing = (1..hosts.len()).find(|worker| streams[*worker].is_none());
                    bail!(
                        "{} has not connected to the monitor of worker 0: check whether a firewall \
                         blocks TCP connections, or disable the monitor with --timeout 0",
                        super::name(missing.unwrap_or(1), &hosts)
                    );
                }
            }
        }
        let others = streams.into_iter().enumerate();
        let others = others.filter_map(|(worker, stream)| Some((worker, stream?)));
        Self::start(0, hosts, timeout, others.collect())
    }

    /// Creates the monitor of another process, connected to the chief.
    ///
    /// # Errors
    /// None of the chief's addresses is reachable.
    pub fn of_worker(
        worker: usize,
        address: &Address,
        hosts: Vec<String>,
        timeout: Duration,
    ) -> Result<Self> {
        let connected = address
            .addresses
            .iter()
            .find_map(|chief| greet(chief, address.job, worker).ok());
        let stream = connected.with_context(|| {
            format!(
                "{} cannot reach the monitor of {} at {:?}: check whether a firewall blocks TCP \
                 connections, or disable the monitor with --timeout 0",
                super::name(worker, &hosts),
                super::name(0, &hosts),
                address.addresses
            )
        })?;
        Self::start(worker, hosts, timeout, vec![(0, stream)])
    }

    fn start(
        worker: usize,
        hosts: Vec<String>,
        timeout: Duration,
        streams: Vec<(usize, TcpStream)>,
    ) -> Result<Self> {
        let mut peers = Vec::new();
        let mut readers = Vec::new();
        for (worker, stream) in streams {
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(Some(BEAT))?;
            stream.set_nodelay(true)?;
            readers.push(stream.try_clone()?);
            peers.push(Peer {
                worker,
                stream,
                state: State::default(),
                heard: Instant::now(),
            });
        }
        let monitor = Monitor(Arc::new(Shared {
            worker,
            hosts,
            limit: limit(timeout),
            own: Mutex::default(),
            peers: Mutex::new(peers),
            failure: OnceLock::new(),
        }));
        for (place, stream) in readers.into_iter().enumerate() {
            let shared = Arc::clone(&monitor.0);
            spawn(move || shared.listen(place, stream))?;
        }
        let shared = Arc::clone(&monitor.0);
        spawn(move || shared.watch())?;
        Ok(monitor)
    }

    /// Marks this process as within a collective operation until the guard is dropped.
    #[must_use]
    pub fn enter(&self, collective: Collective) -> Waiting<'_> {
        self.begin(collective, false)
    }

    /// As [`enter`](Self::enter), for a thread that calls MPI itself. If the job fails meanwhile, this
    /// process reports the failure and exits at once.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn enter_inside(&self, collective: Collective) -> Result<Waiting<'_>> {
        let waiting = self.begin(collective, true);
        // Check after the flag is set, so that no failure is missed in between.
        self.check()?;
        Ok(waiting)
    }

    fn begin(&self, collective: Collective, is_inside: bool) -> Waiting<'_> {
        let mut own = lock(&self.0.own);
        own.collective = Some(collective);
        own.number += 1;
        own.since = Some(Instant::now());
        own.is_inside = is_inside;
        Waiting(self)
    }

    /// Sets the current step.
    pub fn note_step(&self, step: usize) {
        lock(&self.0.own).step = step;
    }

    /// Accepts closed connections from now on.
    pub fn leave(&self) {
        lock(&self.0.own).leaving = true;
    }

    /// Checks that no process is lost.
    ///
    /// # Errors
    /// A process is lost; the message names it.
    pub fn check(&self) -> Result<()> {
        match self.0.failure.get() {
            None => Ok(()),
            Some(failure) => bail!("{}", failure.reason),
        }
    }

    /// Sends the reason of a failure to the other processes; false if it came from one of them.
    pub fn fail(&self, reason: &str) -> bool {
        let shared = &self.0;
        if let Some(failure) = shared.failure.get() {
            return !failure.told;
        }
        match shared.worker {
            0 => shared.declare(format!("{} failed: {reason}", shared.name(0))),
            _ => shared.send_all(&Message::Failed(reason.to_owned())),
        }
        true
    }
}

/// Guard of a running collective operation.
pub struct Waiting<'a>(&'a Monitor);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut own = lock(&self.0.0.own);
        (own.since, own.is_inside) = (None, false);
    }
}

impl Shared {
    fn name(&self, worker: usize) -> String {
        super::name(worker, &self.hosts)
    }

    fn state(&self) -> State {
        let own = lock(&self.own);
        let collective = own.collective.as_ref();
        State {
            step: own.step,
            collective: collective.map(Collective::to_string).unwrap_or_default(),
            number: own.number,
            waiting: own.since.map(|since| since.elapsed()),
        }
    }

    fn send_all(&self, message: &Message) {
        // Ignore unreachable peers: missing heartbeats reveal them.
        for peer in lock(&self.peers).iter_mut() {
            let _ = send(&mut peer.stream, message);
        }
    }

    /// Ends the job; the first reason is kept.
    fn declare(&self, reason: String) {
        let failure = Failure {
            reason: reason.clone(),
            told: false,
        };
        if self.failure.set(failure).is_ok() && self.worker == 0 {
            self.send_all(&Message::Abort(reason));
        }
    }

    /// Reads the messages of a peer until it disconnects or the job ends.
    fn listen(&self, place: usize, stream: TcpStream) {
        self.hear(place, stream);
        self.end_inside();
    }

    fn hear(&self, place: usize, stream: TcpStream) {
        for line in BufReader::new(stream).lines() {
            let message = line.ok().and_then(|line| serde_json::from_str(&line).ok());
            let Some(message) = message else { break };
            let mut peers = lock(&self.peers);
            let peer = &mut peers[place];
            peer.heard = Instant::now();
            let name = self.name(peer.worker);
            match message {
                Message::Beat(state) => peer.state = state,
                Message::Failed(reason) => {
                    drop(peers);
                    return self.declare(format!("{name} failed: {reason}"));
                }
                Message::Abort(reason) => {
                    let _ = self.failure.set(Failure { reason, told: true });
                    return;
                }
            }
        }
        if !lock(&self.own).leaving {
            let peers = lock(&self.peers);
            let (worker, state) = (peers[place].worker, peers[place].state.clone());
            drop(peers);
            self.declare(format!("{} died {}", self.name(worker), state.describe()));
        }
    }

    /// Exits if the job has failed while the thread that would notice is blocked within MPI. At once: the
    /// launcher may kill this process when it sees another one exit.
    fn end_inside(&self) {
        let Some(failure) = self.failure.get() else {
            return;
        };
        let own = lock(&self.own);
        if !own.is_inside {
            return;
        }
        if !failure.told {
            let name = self.name(self.worker);
            terminal::warn(format_args!(
                "error: {name}: stopped at step {}: {}",
                own.step, failure.reason
            ));
        }
        #[cfg(not(test))]
        exit_at_once(1);
    }

    /// Sends heartbeats, and ends this process if the job has failed.
    fn watch(&self) {
        while self.failure.get().is_none() {
            self.send_all(&Message::Beat(self.state()));
            if let Some(reason) = self.silent().or_else(|| self.stalled()) {
                self.declare(reason);
                self.end_inside();
            }
            thread::sleep(BEAT);
        }
        // A process that was waiting for others has exited by now; this one computes, or hangs.
        thread::sleep(GRACE);
        if let Some(failure) = self.failure.get()
            && !failure.told
        {
            terminal::warn(format_args!("error: {}", failure.reason));
        }
        #[cfg(not(test))]
        exit_at_once(1);
    }

    /// The failure of a process without heartbeat for longer than the timeout.
    fn silent(&self) -> Option<String> {
        let peers = lock(&self.peers);
        let silent = peers
            .iter()
            .find(|peer| peer.heard.elapsed() > self.limit)?;
        Some(format!(
            "{} has not answered for {:.0} s; it was {}",
            self.name(silent.worker),
            silent.heard.elapsed().as_secs_f64(),
            silent.state.describe()
        ))
    }

    /// The failure of a process that keeps others waiting for longer than the timeout; on the chief.
    fn stalled(&self) -> Option<String> {
        if self.worker != 0 {
            return None;
        }
        let mut states = vec![(0, self.state())];
        let peers = lock(&self.peers);
        states.extend(peers.iter().map(|peer| (peer.worker, peer.state.clone())));
        stalled(&states, self.limit, &self.hosts)
    }
}

fn stalled(states: &[(usize, State)], limit: Duration, hosts: &[String]) -> Option<String> {
    let waits = |state: &State| state.waiting.filter(|waiting| *waiting > limit);
    let waiting = states.iter().filter(|(_, state)| waits(state).is_some());
    let (_, front) = waiting.max_by_key(|(_, state)| state.number)?;
    let seconds = front.waiting.unwrap_or_default().as_secs_f64();
    let what = format!(
        "{} (collective {}, step {})",
        front.collective, front.number, front.step
    );
    let behind = states.iter().find(|(_, state)| state.number < front.number);
    Some(match behind {
        Some((worker, state)) => format!(
            "{} has not reached {what} for {seconds:.0} s; it is {}. If it is only slow, increase \
             --timeout",
            super::name(*worker, hosts),
            state.describe()
        ),
        None => format!(
            "{what} has not ended for {seconds:.0} s, though all workers have reached it: check \
             the network between them, or increase --timeout"
        ),
    })
}

/// Connects to the chief at one of its addresses.
fn greet(chief: &SocketAddr, job: u64, worker: usize) -> Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(chief, CONNECT)?;
    introduce(&mut stream, job, worker)?;
    ensure!(greeted(&mut stream, job)? == 0, "another worker answers");
    Ok(stream)
}

/// Sends the job's identifier and this process's rank, first on a connection.
fn introduce(stream: &mut TcpStream, job: u64, worker: usize) -> Result<()> {
    let words = [job, worker as u64].map(u64::to_le_bytes);
    Ok(stream.write_all(words.as_flattened())?)
}

/// Reads the rank of the remote process.
fn greeted(stream: &mut TcpStream, expected: u64) -> Result<usize> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(CONNECT))?;
    let mut words = [[0; 8]; 2];
    stream.read_exact(words.as_flattened_mut())?;
    let [job, worker] = words.map(u64::from_le_bytes);
    ensure!(job == expected, "this is another job");
    Ok(worker as usize)
}

fn send(stream: &mut TcpStream, message: &Message) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(stream.write_all(&line)?)
}

/// Time without heartbeat until a process is lost: short enough for all others and the launcher to
/// exit in time.
fn limit(timeout: Duration) -> Duration {
    const ENDING: Duration = Duration::from_secs(6);
    timeout.saturating_sub(ENDING).max(timeout / 2)
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = thread::Builder::new().name("monitor".to_owned());
    thread
        .spawn(work)
        .context("cannot start a thread for the monitor")?;
    Ok(())
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Vec<String> {
        vec!["a".to_owned(), "b".to_owned()]
    }

    /// The monitors of a chief and one other process.
    fn pair(timeout: Duration) -> [Monitor; 2] {
        let meeting = Meeting::open().unwrap();
        let address = meeting.address().unwrap();
        let other = thread::spawn(move || Monitor::of_worker(1, &address, hosts(), timeout));
        let chief = Monitor::of_chief(&meeting, hosts(), timeout).unwrap();
        [chief, other.join().unwrap().unwrap()]
    }

    fn failure(monitor: &Monitor) -> String {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if let Err(error) = monitor.check() {
                return error.to_string();
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("nothing was noticed");
    }

    fn at(number: u64, waiting: Option<u64>) -> State {
        State {
            step: 7,
            collective: "a sum".to_owned(),
            number,
            waiting: waiting.map(Duration::from_secs),
        }
    }

    #[test]
    fn who_fails_tells_the_others_why() {
        let [chief, other] = pair(Duration::from_secs(60));
        assert!(other.fail("no such file"));
        assert_eq!(
            failure(&chief),
            "worker 1 of 2 (host b) failed: no such file"
        );
        // The chief reports to the user, as does the failed process.
        assert!(chief.fail("no more"));
    }

    #[test]
    fn a_failure_of_the_chief_reaches_the_others() {
        let [chief, other] = pair(Duration::from_secs(60));
        assert!(chief.fail("the disk is full"));
        assert_eq!(
            failure(&other),
            "worker 0 of 2 (host a) failed: the disk is full"
        );
        assert!(!other.fail("whatever follows from it"));
    }

    #[test]
    fn nothing_begins_inside_mpi_after_a_failure() {
        let [chief, other] = pair(Duration::from_secs(60));
        let sum = Collective::Sum {
            len: 2,
            of: "numbers",
        };
        drop(chief.enter_inside(sum).unwrap());
        let _inside = chief.enter_inside(sum).unwrap();
        assert!(lock(&chief.0.own).is_inside);
        assert!(other.fail("no such file"));
        failure(&chief);
        assert!(chief.enter_inside(sum).is_err());
    }

    #[test]
    fn who_keeps_the_others_waiting_is_named() {
        let limit = Duration::from_secs(10);
        let hosts = hosts();
        let stalled = |states: [State; 2]| {
            stalled(
                &states.into_iter().enumerate().collect::<Vec<_>>(),
                limit,
                &hosts,
            )
        };
        assert_eq!(stalled([at(5, Some(9)), at(4, None)]), None);
        assert_eq!(stalled([at(5, None), at(4, None)]), None);
        let message = stalled([at(5, Some(11)), at(4, None)]).unwrap();
        assert!(
            message.contains("worker 1 of 2 (host b) has not reached a sum (collective 5, step 7)"),
            "{message}"
        );
        let message = stalled([at(4, None), at(5, Some(11))]).unwrap();
        assert!(message.starts_with("worker 0 of 2 (host a)"), "{message}");
        let message = stalled([at(5, Some(11)), at(5, Some(11))]).unwrap();
        assert!(
            message.contains("though all workers have reached it"),
            "{message}"
        );
    }
}

//! Profiling of a step: phases, timed on each thread.
//!
//! A span is the time from [`span`] until its guard is dropped. Phases are exclusive: the time of a nested
//! span counts for the inner one only, so the phases of a thread never exceed wall time. GPU calls are
//! asynchronous: a phase shows the time of the call, and the wait for results belongs to the phase that
//! reads them, mostly the all-reduce.

use std::{
    fmt::Write,
    fs,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Maximum events in the trace of each thread, about 5 MB. Totals have no limit.
const MAX_EVENTS: usize = 200_000;

/// A phase of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading and collating examples.
    Data,
    /// The forward pass and the losses.
    Forward,
    /// The backward pass.
    Backward,
    /// The gradient all-reduce, including the wait for other replicas.
    AllReduce,
    /// The optimizer step.
    Update,
    /// Saving checkpoints: the time that training waits to hand its state over, and for the checkpoint before.
    Checkpoint,
    /// Any other phase.
    Other,
}

impl Phase {
    const ALL: [Phase; 7] = [
        Phase::Data,
        Phase::Forward,
        Phase::Backward,
        Phase::AllReduce,
        Phase::Update,
        Phase::Checkpoint,
        Phase::Other,
    ];

    fn name(self) -> &'static str {
        match self {
            Phase::Data => "data",
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::AllReduce => "all-reduce",
            Phase::Update => "update",
            Phase::Checkpoint => "checkpoint",
            Phase::Other => "other",
        }
    }
}

static RECORDER: Recorder = Recorder::new(MAX_EVENTS);

/// Starts recording the spans of all threads; drops an earlier recording.
pub fn start() {
    RECORDER.start();
}

/// Times a phase of this thread until the guard is dropped.
///
/// Without a recording it costs one relaxed load. A guard must be dropped on its own thread, inner before
/// outer, like local variables.
#[must_use = "a span ends when its guard is dropped"]
pub fn span(phase: Phase) -> Span<'static> {
    RECORDER.span(phase)
}

/// Ends the recording of `steps` training steps. Open spans are left out.
pub fn finish(steps: usize) -> Profile {
    RECORDER.finish(steps)
}

/// Records spans while enabled.
struct Recorder {
    on: AtomicBool,
    max_events: usize,
    recording: Mutex<Recording>,
}

struct Recording {
    /// Number of the recording, to ignore spans of an earlier one.
    number: u64,
    started: Option<Instant>,
    threads: Vec<Thread>,
}

/// The recording of one thread.
struct Thread {
    id: ThreadId,
    name: String,
    /// For each open span, the time of its nested spans.
    open: Vec<Duration>,
    /// The exclusive time of each phase.
    times: [Duration; Phase::ALL.len()],
    spans: usize,
    /// The first spans.
    events: Vec<Event>,
}

struct Event {
    phase: Phase,
    /// Time since the start of the recording.
    start: Duration,
    duration: Duration,
}

impl Recorder {
    const fn new(max_events: usize) -> Self {
        Recorder {
            on: AtomicBool::new(false),
            max_events,
            recording: Mutex::new(Recording {
                number: 0,
                started: None,
                threads: Vec::new(),
            }),
        }
    }

    /// Locks the recording; poisoning is ignored, as a panic leaves it consistent.
    fn lock(&self) -> MutexGuard<'_, Recording> {
        self.recording
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) {
        let mut recording = self.lock();
        recording.number += 1;
        recording.threads.clear();
        recording.started = Some(Instant::now());
        self.on.store(true, Ordering::Relaxed);
    }

    fn span(&self, phase: Phase) -> Span<'_> {
        if !self.on.load(Ordering::Relaxed) {
            return Span(None);
        }
        let mut recording = self.lock();
        recording.thread().open.push(Duration::ZERO);
        Span(Some(Open {
            recorder: self,
            number: recording.number,
            phase,
            began: Instant::now(),
        }))
    }

    fn finish(&self, steps: usize) -> Profile {
        self.on.store(false, Ordering::Relaxed);
        let mut recording = self.lock();
        recording.number += 1;
        let started = recording.started.take();
        let mut threads = std::mem::take(&mut recording.threads);
        threads.sort_by(|one, other| one.name.cmp(&other.name));
        Profile {
            steps,
            elapsed: started.map_or(Duration::ZERO, |started| started.elapsed()),
            threads,
        }
    }
}

impl Recording {
    /// The recording of the calling thread.
    fn thread(&mut self) -> &mut Thread {
        let current = thread::current();
        let known = self
            .threads
            .iter()
            .position(|thread| thread.id == current.id());
        let index = known.unwrap_or_else(|| {
            self.threads.push(Thread {
                id: current.id(),
                name: current.name().unwrap_or("unnamed").to_owned(),
                open: Vec::new(),
                times: [Duration::ZERO; Phase::ALL.len()],
                spans: 0,
                events: Vec::new(),
            });
            self.threads.len() - 1
        });
        &mut self.threads[index]
    }
}

impl Thread {
    fn close(&mut self, event: Event, max_events: usize) {
        let within = self.open.pop().unwrap_or_default();
        if let Some(outer) = self.open.last_mut() {
            *outer += event.duration;
        }
        self.times[event.phase as usize] += event.duration.saturating_sub(within);
        self.spans += 1;
        if self.events.len() < max_events {
            self.events.push(event);
        }
    }
}

/// Guard of a phase being timed.
pub struct Span<'a>(Option<Open<'a>>);

struct Open<'a> {
    recorder: &'a Recorder,
    number: u64,
    phase: Phase,
    began: Instant,
}

impl Drop for Span<'_> {
    fn drop(&mut self) {
        let Some(open) = &self.0 else {
            return;
        };
        let duration = open.began.elapsed();
        let mut recording = open.recorder.lock();
        if let Some(started) = recording
            .started
            .filter(|_| recording.number == open.number)
        {
            let event = Event {
                phase: open.phase,
                start: open.began.duration_since(started),
                duration,
            };
            recording.thread().close(event, open.recorder.max_events);
        }
    }
}

/// A finished recording.
pub struct Profile {
    steps: usize,
    elapsed: Duration,
    threads: Vec<Thread>,
}

impl Profile {
    /// A table of the phases: of the replicas together, then of each other thread.
    ///
    /// Milliseconds are per step, averaged over replicas and of the slowest one. The share is of wall time,
    /// and the row `outside` is the time outside of spans, such as waiting for the next batch.
    pub fn breakdown(&self) -> String {
        let milliseconds = self.per_step(self.elapsed);
        let mut text = format!("{} steps, {milliseconds:.3} ms a step\n", self.steps);
        let (replicas, others): (Vec<&Thread>, Vec<&Thread>) = self
            .threads
            .iter()
            .partition(|thread| thread.name.starts_with("replica-"));
        if !replicas.is_empty() {
            let title = format!("{} replicas", replicas.len());
            text.push_str(&self.table(&title, &replicas));
        }
        for thread in others {
            text.push_str(&self.table(&format!("thread {}", thread.name), &[thread]));
        }
        let (kept, all) = self.spans();
        if kept < all {
            let _ = writeln!(text, "the trace holds the first {kept} of {all} spans");
        }
        text
    }

    /// Writes a trace for `chrome://tracing` and <https://ui.perfetto.dev>.
    ///
    /// It has the first 200,000 spans of each thread; `otherData` has the number of all spans.
    ///
    /// Source: the Trace Event Format of the Chromium project, with complete events (`ph` is `X`)
    /// in microseconds.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_chrome_trace(&self, path: &Path) -> Result<()> {
        let trace = serde_json::to_string(&self.chrome_trace())?;
        fs::write(path, trace).with_context(|| format!("cannot write {}", path.display()))
    }

    fn chrome_trace(&self) -> Value {
        let threads = self.threads.iter().enumerate();
        let events: Vec<Value> = threads
            .flat_map(|(tid, thread)| {
                let name = json!({
                    "name": "thread_name", "ph": "M", "pid": 0, "tid": tid,
                    "args": { "name": thread.name },
                });
                let spans = thread.events.iter().map(move |event| event.json(tid));
                std::iter::once(name).chain(spans)
            })
            .collect();
        let (kept, all) = self.spans();
        json!({
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": { "steps": self.steps, "spans": all, "spans in the trace": kept },
        })
    }

    /// Number of spans in the trace, and of all spans.
    fn spans(&self) -> (usize, usize) {
        let kept = self.threads.iter().map(|thread| thread.events.len()).sum();
        (kept, self.threads.iter().map(|thread| thread.spans).sum())
    }

    /// Milliseconds per step.
    fn per_step(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e3 / self.steps.max(1) as f64
    }

    fn table(&self, title: &str, threads: &[&Thread]) -> String {
        let mut text = format!(
            "\n{title:<14} {:>10} {:>10} {:>7}\n",
            "mean ms", "slowest", "share"
        );
        for phase in Phase::ALL {
            let times = threads.iter().map(|thread| thread.times[phase as usize]);
            let times: Vec<Duration> = times.collect();
            if times.iter().any(|time| !time.is_zero()) {
                text.push_str(&self.row(phase.name(), &times));
            }
        }
        let outside = threads.iter().map(|thread| {
            let covered: Duration = thread.times.iter().sum();
            self.elapsed.saturating_sub(covered)
        });
        text.push_str(&self.row("outside", &outside.collect::<Vec<_>>()));
        text
    }

    /// The table row of a phase, from its time on each thread.
    fn row(&self, name: &str, times: &[Duration]) -> String {
        let mean = times.iter().sum::<Duration>() / times.len().max(1) as u32;
        let slowest = times.iter().max().copied().unwrap_or_default();
        let share = mean.as_secs_f64() / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        let bar = "█".repeat((share * 30.0).round().min(30.0) as usize);
        let line = format!(
            "{name:<14} {:>10.3} {:>10.3} {:>6.1}% {bar}",
            self.per_step(mean),
            self.per_step(slowest),
            share * 100.0
        );
        format!("{}\n", line.trim_end())
    }
}

impl Event {
    fn json(&self, tid: usize) -> Value {
        let microseconds = |time: Duration| time.as_nanos() as f64 / 1e3;
        json!({
            "name": self.phase.name(), "ph": "X", "pid": 0, "tid": tid,
            "ts": microseconds(self.start), "dur": microseconds(self.duration),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn pause() {
        thread::sleep(2 * MILLISECOND);
    }

    /// Runs `work` on a named thread.
    fn on_thread(name: &str, work: impl FnOnce() + Send) {
        thread::scope(|scope| {
            let thread = thread::Builder::new().name(name.into());
            thread.spawn_scoped(scope, work).unwrap().join().unwrap();
        });
    }

    /// A profile of two replicas and a thread `main`, with nested spans.
    fn recorded() -> Profile {
        let recorder = Recorder::new(100);
        recorder.start();
        for name in ["replica-1", "replica-0"] {
            on_thread(name, || {
                let _forward = recorder.span(Phase::Forward);
                pause();
                drop(recorder.span(Phase::Data));
                let _data = recorder.span(Phase::Data);
                pause();
            });
        }
        on_thread("main", || {
            let _data = recorder.span(Phase::Data);
            pause();
        });
        recorder.finish(2)
    }

    #[test]
    fn nothing_is_recorded_before_the_start_and_after_the_end() {
        let recorder = Recorder::new(100);
        drop(recorder.span(Phase::Data));
        assert!(recorder.lock().threads.is_empty());
        recorder.start();
        let open = recorder.span(Phase::Data);
        assert_eq!(recorder.finish(1).spans(), (0, 0));
        recorder.start();
        drop(open);
        assert_eq!(recorder.finish(1).spans(), (0, 0));
    }

    #[test]
    fn the_time_of_an_inner_span_is_not_counted_twice() {
        let profile = recorded();
        let names: Vec<&str> = profile
            .threads
            .iter()
            .map(|thread| thread.name.as_str())
            .collect();
        assert_eq!(names, ["main", "replica-0", "replica-1"]);
        for thread in &profile.threads[1..] {
            let longest = thread
                .events
                .iter()
                .map(|event| event.duration)
                .max()
                .unwrap();
            let [data, forward] =
                [Phase::Data, Phase::Forward].map(|phase| thread.times[phase as usize]);
            assert!(data >= 2 * MILLISECOND && forward >= 2 * MILLISECOND);
            assert_eq!(data + forward, longest);
        }
    }

    #[test]
    fn the_breakdown_has_a_line_for_each_phase() {
        let time = |milliseconds: u32| milliseconds * MILLISECOND;
        let replica = |name: &str, backward: u32| {
            let mut recording = Recording {
                number: 0,
                started: None,
                threads: Vec::new(),
            };
            let thread = recording.thread();
            thread.name = name.into();
            thread.times[Phase::Forward as usize] = time(20);
            thread.times[Phase::Backward as usize] = time(backward);
            recording.threads.remove(0)
        };
        let profile = Profile {
            steps: 10,
            elapsed: time(100),
            threads: vec![replica("replica-0", 30), replica("replica-1", 50)],
        };
        let expected = "\
10 steps, 10.000 ms a step

2 replicas        mean ms    slowest   share
forward             2.000      2.000   20.0% ██████
backward            4.000      5.000   40.0% ████████████
outside             4.000      5.000   40.0% ████████████
";
        assert_eq!(profile.breakdown(), expected);
    }

    #[test]
    fn a_trace_is_json_with_nested_spans_and_named_threads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        recorded().write_chrome_trace(&path).unwrap();
        let trace: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |kind: &str, tid: u64| {
            let is = move |event: &&Value| event["ph"] == kind && event["tid"] == tid;
            events.iter().filter(is).cloned().collect::<Vec<Value>>()
        };
        for (tid, name) in [(0, "main"), (1, "replica-0"), (2, "replica-1")] {
            assert_eq!(of("M", tid)[0]["args"]["name"], name);
        }
        let nanoseconds = |event: &Value, key: &str| (event[key].as_f64().unwrap() * 1e3).round();
        for tid in [1, 2] {
            let spans = of("X", tid);
            let ends = |event: &Value| {
                let start = nanoseconds(event, "ts");
                (start, start + nanoseconds(event, "dur"))
            };
            let (start, end) = ends(spans.iter().find(|span| span["name"] == "forward").unwrap());
            let inner: Vec<_> = spans
                .iter()
                .filter(|span| span["name"] == "data")
                .map(ends)
                .collect();
            assert_eq!(inner.len(), 2);
            assert!(start <= inner[0].0 && inner[0].1 <= inner[1].0 && inner[1].1 <= end);
        }
        assert_eq!(of("X", 0).len(), 1);
    }

    #[test]
    fn a_long_recording_keeps_the_first_spans_and_says_so() {
        let recorder = Recorder::new(3);
        recorder.start();
        for _ in 0..8 {
            drop(recorder.span(Phase::Update));
        }
        let profile = recorder.finish(1);
        assert_eq!(profile.spans(), (3, 8));
        let text = profile.breakdown();
        assert!(text.contains("the first 3 of 8 spans"), "{text}");
        assert_eq!(profile.chrome_trace()["otherData"]["spans"], 8);
    }
}

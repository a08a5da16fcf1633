//! Sweeps whose runs are programs of the shell.

use std::{fs, sync::Arc, thread, time::Duration};

use super::*;
use crate::sweep::{children::Children, perform};

/// A run of the shell: it fails, or waits for a signal, as files in the sweep's folder say.
const RUN: &str = r#"
for word; do case $word in --epochs=*) epochs=${word#*=};; --output-dir=*) out=${word#*=};; esac; done
echo begun >> "$out/begun"
if [ -e "$out/../../fail-$epochs" ]; then echo "error: no memory" >&2; exit 1; fi
if [ -e "$out/../../wait-$epochs" ]; then trap 'exit 143' TERM; while :; do sleep 0.02; done; fi
printf '{"split":"train","epoch":1,"loss":2}\n{"split":"validation","epoch":1,"accuracy":0.%s}\n' $epochs > "$out/metrics.jsonl"
"#;

/// A sweep over `epochs` from 1 to 3, whose runs are of the shell.
struct Shell {
    definition: Definition,
    plan: Plan,
    folder: tempfile::TempDir,
}

impl Shell {
    fn new(first: &str) -> Self {
        let text = format!("{first}\n[grid]\nepochs = [1, 2, 3]");
        let folder = tempfile::tempdir().unwrap();
        let mut definition = definition(&text);
        definition.output = folder.path().to_owned();
        let mut plan = plan(&text);
        for run in &mut plan.runs {
            let mut first = run.settings[0].clone();
            first.words = ["-c", RUN, "sh"].map(Into::into).to_vec();
            run.settings.insert(0, first);
        }
        Shell {
            definition,
            plan,
            folder,
        }
    }

    fn perform(&self, children: &Arc<Children>) -> Result<Option<i32>, String> {
        let end = perform(
            &self.definition,
            &self.plan,
            "/bin/sh".into(),
            None,
            children,
        );
        end.map_err(|error| format!("{error:#}"))
    }

    fn train(&self) -> Result<Option<i32>, String> {
        self.perform(&Arc::default())
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    /// Number of starts of each run.
    fn begun(&self) -> [usize; 3] {
        [1, 2, 3].map(|run| self.text(&format!("runs/000{run}/begun")).lines().count())
    }
}

#[test]
fn a_stopped_sweep_goes_on_with_the_run_in_progress() {
    let whole = Shell::new("");
    assert_eq!(whole.train(), Ok(None));
    let table = whole.text("sweep.csv");
    assert!(
        table.ends_with("\n2,2,0.2,1,1,finished\n3,3,0.3,1,1,finished\n"),
        "{table}"
    );
    assert!(
        whole
            .text("sweep.svg")
            .contains("\nthe best: run 3, 0.3000, with epochs 3\n")
    );

    let stopped = Shell::new("");
    let file = |name: &str| stopped.folder.path().join(name);
    fs::write(file("wait-2"), "").unwrap();
    let children = Arc::<Children>::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !file("runs/0002/begun").exists() {
                thread::sleep(Duration::from_millis(5));
            }
            // The shell takes a moment to set its trap; without it, the signal ends it all the same.
            children.stop(15);
        });
        assert_eq!(stopped.perform(&children), Ok(Some(15)));
    });
    assert_eq!(stopped.begun(), [1, 1, 0]);
    assert!(
        stopped
            .text("sweep.csv")
            .ends_with("\n2,2,,,,waiting\n3,3,,,,waiting\n")
    );
    fs::remove_file(file("wait-2")).unwrap();
    assert_eq!(stopped.train(), Ok(None));
    assert_eq!(stopped.begun(), [1, 2, 1]);
    assert_eq!(stopped.text("sweep.csv"), table);
    assert_eq!(stopped.text("sweep.svg"), whole.text("sweep.svg"));
    // A sweep that has ended begins no run.
    assert_eq!(stopped.train(), Ok(None));
    assert_eq!(stopped.begun(), [1, 2, 1]);
}

#[test]
fn a_run_that_fails_does_not_end_the_sweep_and_is_tried_again() {
    let shell = Shell::new("parallel = 2");
    let file = |name: &str| shell.folder.path().join(name);
    fs::write(file("fail-2"), "").unwrap();
    let error = shell.train().unwrap_err();
    for part in [
        "1 of 3 runs failed",
        "run 2 (epochs 2): no memory\n",
        "runs/0002/output.log",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(shell.begun(), [1, 1, 1]);
    assert!(
        shell.text("sweep.csv").contains("\n2,2,,,,failed\n"),
        "{}",
        shell.text("sweep.csv")
    );
    fs::remove_file(file("fail-2")).unwrap();
    assert_eq!(shell.train(), Ok(None));
    assert_eq!(shell.begun(), [1, 2, 1]);
}

#[test]
fn a_metric_that_the_runs_do_not_have_ends_the_sweep_after_the_first() {
    let shell = Shell::new("metric = 'validation.acuracy'\ndirection = 'highest'");
    let error = shell.train().unwrap_err();
    let expected = "there is no metric `validation.acuracy`: the validation has accuracy; the nearest one is \
                    `validation.accuracy`";
    assert!(error.contains(expected), "{error}");
    assert_eq!(shell.begun(), [1, 0, 0]);
}

#[test]
fn a_run_that_a_killed_sweep_left_is_waited_for() {
    let shell = Shell::new("");
    let left = crate::files::OutputLock::acquire(&shell.folder.path().join("runs/0001")).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(300));
            assert_eq!(shell.begun(), [0; 3]);
            drop(left);
        });
        assert_eq!(shell.train(), Ok(None));
    });
    assert_eq!(shell.begun(), [1; 3]);
}

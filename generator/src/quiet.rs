//! Catching panics of libraries that should return errors.

use std::{
    any::Any,
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    sync::Once,
};

thread_local! {
    /// Whether panics of this thread are caught and returned as errors.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Calls `call` and catches a panic without printing it. Panics of other threads print as usual.
///
/// # Errors
/// The message of the panic.
pub(crate) fn catch<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    install();
    let before = QUIET.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    QUIET.set(before);
    result.map_err(|panic| message(&*panic))
}

/// Installs a panic hook in front of the current one, once. Hooks are global, so swapping them
/// around each call would be a race.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        process::{Command, Output},
        thread,
    };

    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(catch(|| 1), Ok(1));
        let caught: Result<(), _> = catch(|| panic!("a {}", 1));
        assert_eq!(caught, Err("a 1".to_owned()));
        let caught: Result<(), _> = catch(|| panic!("b"));
        assert_eq!(caught, Err("b".to_owned()));
        let caught: Result<(), _> = catch(|| panic::panic_any(1));
        assert_eq!(caught, Err("no message".to_owned()));
        let inner = || -> Result<(), String> { catch(|| panic!("inner")) };
        let caught = catch(inner);
        assert_eq!(caught, Ok(Err("inner".to_owned())));
    }

    /// Runs this test again in a child process to read its output.
    #[test]
    fn only_what_is_caught_prints_nothing() {
        const CHILD: &str = "KILN_TEST_QUIET";
        if env::var_os(CHILD).is_some() {
            let _ = catch(|| {
                let _ = catch(|| panic!("within"));
                let _ = thread::spawn(|| panic!("beside")).join();
                panic!("caught");
            });
            panic!("after");
        }
        let test = "quiet::tests::only_what_is_caught_prints_nothing";
        let Output { stderr, .. } = Command::new(env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&stderr);
        let prints = |text: &str| said.contains(text);
        assert!(prints("beside") && prints("after"), "{said}");
        assert!(!prints("within\n") && !prints("caught\n"), "{said}");
    }
}

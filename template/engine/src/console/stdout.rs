//! The standard output, for results.

use std::io::{self, Stdout};

use anyhow::{Result, ensure};

/// The standard output.
///
/// # Errors
/// The standard output was closed when the program started (`>&-`). Rust then opens `/dev/null` instead,
/// which would discard results without an error.
pub fn stdout() -> Result<Stdout> {
    ensure!(
        !start::was_closed(),
        "the standard output is closed: redirect it to a file or a pipe"
    );
    Ok(io::stdout())
}

#[cfg(any(target_os = "linux", target_os = "macos"))]
mod start {
    use std::{
        os::fd::BorrowedFd,
        sync::atomic::{AtomicBool, Ordering},
    };

    /// Errno "Bad file descriptor".
    const EBADF: i32 = 9;

    static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

    /// Called before `main`, and before Rust's runtime reopens closed descriptors.
    #[allow(unsafe_code)]
    #[used]
    #[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
    #[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
    static LOOK: extern "C" fn() = look;

    extern "C" fn look() {
        // Sound: no other code runs yet that could close the descriptor, and a closed one is not used.
        #[allow(unsafe_code)]
        let stdout = unsafe { BorrowedFd::borrow_raw(1) };
        let copy = stdout.try_clone_to_owned();
        let closed = copy.is_err_and(|error| error.raw_os_error() == Some(EBADF));
        WAS_CLOSED.store(closed, Ordering::Relaxed);
    }

    pub fn was_closed() -> bool {
        WAS_CLOSED.load(Ordering::Relaxed)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
mod start {
    pub fn was_closed() -> bool {
        false
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "macos")))]
mod tests {
    use std::{
        env,
        process::{Command, exit},
    };

    use super::*;

    /// The exit status of the process that this test starts.
    const REFUSED: i32 = 7;

    #[test]
    fn a_closed_standard_output_is_refused() {
        const CHILD: &str = "STDOUT_IS_CLOSED";
        if env::var_os(CHILD).is_some() {
            exit(stdout().map_or(REFUSED, |_| 0));
        }
        assert!(stdout().is_ok());
        let name = "console::stdout::tests::a_closed_standard_output_is_refused";
        let mut child = Command::new("sh");
        child.args(["-c", r#""$0" --exact "$1" >&-"#]);
        child.arg(env::current_exe().unwrap()).arg(name);
        let status = child.env(CHILD, "1").status().unwrap();
        assert_eq!(status.code(), Some(REFUSED));
    }
}

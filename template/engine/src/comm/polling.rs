//! Polling before a blocking wait, because waking a thread takes tens of microseconds. The core is
//! yielded to other threads between polls.

use std::{
    sync::mpsc::{Receiver, RecvError, TryRecvError},
    thread::yield_now,
};

/// Polls of a channel.
const LOOKS: usize = 100;

/// Polls up to `times` times.
pub fn poll<T>(times: usize, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..times {
        let found = look();
        if found.is_some() {
            return found;
        }
        yield_now();
    }
    None
}

/// Polls a channel for the next value. An error means that the sender is gone.
pub fn receive_soon<T>(sent: &Receiver<T>) -> Option<Result<T, RecvError>> {
    poll(LOOKS, || match sent.try_recv() {
        Ok(next) => Some(Ok(next)),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => Some(Err(RecvError)),
    })
}

/// Waits for the next value of a channel, polling first.
///
/// # Errors
/// The sender is gone.
pub fn receive<T>(sent: &Receiver<T>) -> Result<T, RecvError> {
    receive_soon(sent).unwrap_or_else(|| sent.recv())
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, thread, time::Duration};

    use super::*;

    #[test]
    fn what_is_sent_comes_in_its_order_and_then_an_error() {
        let (sender, sent) = channel();
        assert_eq!(receive_soon(&sent), None);
        thread::spawn(move || {
            for number in 0..3 {
                // Longer than the polling phase.
                thread::sleep(Duration::from_millis(5));
                sender.send(number).unwrap();
            }
        });
        let all = [(); 4].map(|()| receive(&sent));
        assert_eq!(all, [Ok(0), Ok(1), Ok(2), Err(RecvError)]);
        assert_eq!(receive_soon(&sent), Some(Err(RecvError)));
    }
}

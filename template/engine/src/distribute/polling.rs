//! Looks for what another thread does before this one goes to sleep, as waking it takes tens of
//! microseconds. Other threads may have the core between two looks.

use std::{
    sync::mpsc::{Receiver, RecvError, TryRecvError},
    thread::yield_now,
};

/// Looks for what another thread sends.
const LOOKS: usize = 100;

/// Looks so many `times`, until something is found.
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

/// What is sent next, where it comes soon. An error means that nothing will any more.
pub fn receive_soon<T>(sent: &Receiver<T>) -> Option<Result<T, RecvError>> {
    poll(LOOKS, || match sent.try_recv() {
        Ok(next) => Some(Ok(next)),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => Some(Err(RecvError)),
    })
}

/// What is sent next, soon or late.
///
/// # Errors
/// Nothing will be sent any more.
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
                // Longer than anyone looks.
                thread::sleep(Duration::from_millis(5));
                sender.send(number).unwrap();
            }
        });
        let all = [(); 4].map(|()| receive(&sent));
        assert_eq!(all, [Ok(0), Ok(1), Ok(2), Err(RecvError)]);
        assert_eq!(receive_soon(&sent), Some(Err(RecvError)));
    }
}

//! Bounded staleness: tickets limit how many updates a gradient can lag behind the parameters.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Tracks which replica computes gradients of which version of the parameters.
///
/// A replica gets a ticket when it pulls and returns it when it pushes. The staleness of a push is the
/// number of updates since its pull. A ticket is granted only if no push can exceed the bound, whatever
/// their order, so a push never waits and is never refused.
///
/// Source: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter
/// Server, NeurIPS 2013, with updates as the clock.
pub struct Tickets {
    max_staleness: usize,
    version: usize,
    /// The version that each replica pulled, and when.
    granted: BTreeMap<usize, (usize, Instant)>,
}

impl Tickets {
    pub fn new(max_staleness: usize) -> Self {
        Tickets {
            max_staleness,
            version: 0,
            granted: BTreeMap::new(),
        }
    }

    /// Grants `replica` a ticket for the current version; false if it has to wait.
    pub fn grant(&mut self, replica: usize) -> bool {
        // All other holders, including this replica, may push before any one of them does.
        let others = self.granted.len();
        let fits =
            |(version, _): &(usize, Instant)| self.version - version + others <= self.max_staleness;
        let fits = self.granted.values().all(fits);
        if fits {
            self.granted.insert(replica, (self.version, Instant::now()));
        }
        fits
    }

    /// Takes back the ticket of `replica` after its push, and returns the staleness of the push.
    pub fn push(&mut self, replica: usize) -> Option<usize> {
        let (version, _) = self.granted.remove(&replica)?;
        let staleness = self.version - version;
        self.version += 1;
        Some(staleness)
    }

    /// Takes back the ticket of `replica` without a push.
    pub fn release(&mut self, replica: usize) {
        self.granted.remove(&replica);
    }

    /// The replica that has held its ticket for longest, and for how long.
    pub fn oldest(&self) -> Option<(usize, Duration)> {
        let oldest = self.granted.iter().min_by_key(|(_, (_, since))| *since);
        oldest.map(|(replica, (_, since))| (*replica, since.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn without_staleness_replicas_take_turns() {
        let mut tickets = Tickets::new(0);
        assert!(tickets.grant(0));
        assert!(!tickets.grant(1));
        assert_eq!(tickets.push(0), Some(0));
        assert!(tickets.grant(1));
    }

    #[test]
    fn a_slow_replica_holds_the_others_at_the_bound() {
        let mut tickets = Tickets::new(3);
        assert!(tickets.grant(0));
        let mut updates = 0;
        while tickets.grant(1) {
            tickets.push(1);
            updates += 1;
        }
        assert_eq!(updates, 3);
        assert_eq!(tickets.push(0), Some(3));
        assert!(tickets.grant(1));
    }

    #[test]
    fn no_order_of_pulls_and_pushes_exceeds_the_bound_or_blocks_all() {
        let mut random = StdRng::seed_from_u64(1);
        for max_staleness in 0..8 {
            let mut tickets = Tickets::new(max_staleness);
            let mut reached = 0;
            for _ in 0..20_000 {
                let replica = random.random_range(0..4);
                match tickets.granted.contains_key(&replica) {
                    true => {
                        let staleness = tickets.push(replica).unwrap();
                        assert!(staleness <= max_staleness);
                        reached = reached.max(staleness);
                    }
                    false => {
                        let granted = tickets.grant(replica);
                        assert!(granted || !tickets.granted.is_empty());
                    }
                }
            }
            assert_eq!(reached, max_staleness, "the bound is not needlessly low");
        }
    }

    #[test]
    fn a_ticket_that_was_given_back_holds_nobody() {
        let mut tickets = Tickets::new(0);
        assert!(tickets.grant(0));
        assert_eq!(tickets.oldest().unwrap().0, 0);
        tickets.release(0);
        assert!(tickets.oldest().is_none());
        assert!(tickets.grant(1));
        assert_eq!(tickets.push(0), None);
    }
}

//! Values of the replicas of this process.

/// One value per replica of this process, in the order of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct PerReplica<T>(Vec<T>);

impl<T> PerReplica<T> {
    /// The number of replicas in this process.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no replicas.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The values in the order of ranks.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// Mutable values in the order of ranks.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.0.iter_mut()
    }
}

impl<T> FromIterator<T> for PerReplica<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        PerReplica(values.into_iter().collect())
    }
}

impl<T> IntoIterator for PerReplica<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

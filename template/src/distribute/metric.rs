use burn::tensor::Tensor;

/// A metric whose state adds up over replicas.
pub trait Metric: Send + 'static {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// How many examples were counted.
    fn count(&self) -> usize;

    /// What is added up over replicas.
    fn state(&self) -> Vec<f64>;

    /// Adds the state of another replica.
    fn add_state(&mut self, state: &[f64]);

    /// The value for all examples that were counted; 0 for none.
    fn result(&self) -> f64;

    /// Forgets all examples.
    fn reset(&mut self);
}

/// The mean of one value an example, kept as total and count.
///
/// Source: `tf.keras.metrics.Mean`.
#[derive(Clone, Debug, PartialEq)]
pub struct Mean {
    name: &'static str,
    total: f64,
    count: f64,
}

impl Mean {
    pub fn new(name: &'static str) -> Self {
        Mean {
            name,
            total: 0.0,
            count: 0.0,
        }
    }

    /// Counts the values `[batch]` of a replica's batch, each example once.
    pub fn update(&mut self, per_example: &Tensor<1>) {
        let values = per_example.clone().into_data();
        self.total += values.iter::<f64>().sum::<f64>();
        self.count += per_example.dims()[0] as f64;
    }
}

impl Metric for Mean {
    fn name(&self) -> &'static str {
        self.name
    }

    fn count(&self) -> usize {
        self.count as usize
    }

    fn state(&self) -> Vec<f64> {
        vec![self.total, self.count]
    }

    fn add_state(&mut self, state: &[f64]) {
        self.total += state[0];
        self.count += state[1];
    }

    fn result(&self) -> f64 {
        if self.count == 0.0 {
            0.0
        } else {
            self.total / self.count
        }
    }

    fn reset(&mut self) {
        (self.total, self.count) = (0.0, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn replicas_merge_by_examples_and_not_by_means() {
        let counted = |values: &[f32]| {
            let mut mean = Mean::new("loss");
            mean.update(&Tensor::from_floats(values, &Device::flex()));
            mean
        };
        let (mut three, one) = (counted(&[1.0, 1.0, 1.0]), counted(&[5.0]));
        three.add_state(&one.state());
        assert_eq!((three.result(), three.count()), (2.0, 4));
        three.reset();
        assert_eq!((three.result(), three.count()), (0.0, 0));
    }
}

//! Step 2: the losses.

use anyhow::Result;
use burn::tensor::Tensor;
use kiln_engine::{
    loss::{Losses, Reduction, compute_average_loss},
    metric::mean_absolute_error,
    replica::replica_context,
};

use crate::{
    dataset::Batch,
    globals,
    model::{DomainPredictions, Predictions},
};

/// The loss objects of a replica, reached with `globals::loss_objects()`.
#[derive(Clone, Debug)]
pub struct LossObjects {
    pub adversarial: LeastSquares,
    /// Weight of the cycle-consistency loss.
    pub cycle_weight: f64,
    /// Weight of the identity loss.
    pub identity_weight: f64,
}

/// Creates the loss objects, with the weights of the paper.
pub fn create_loss_objects() -> LossObjects {
    LossObjects {
        adversarial: LeastSquares {
            reduction: Reduction::None,
        },
        cycle_weight: 10.0,
        identity_weight: 5.0,
    }
}

/// The loss of each example, shape `[batch]`: the sum of what the four networks minimise.
pub fn per_example_losses(predictions: &Predictions, batch: &Batch) -> Result<Tensor<1>> {
    let losses = globals::loss_objects()?.cycle_losses(predictions, batch)?; // [batch] each
    Ok(losses.sum())
}

/// The replica's part of the loss of the global batch, shape `[1]`, to be summed over replicas.
pub fn compute_loss(per_example_losses: Tensor<1>) -> Result<Tensor<1>> {
    let denominator = replica_context()?.examples_in_update();
    compute_average_loss(per_example_losses, None, denominator)
}

/// Errors of the images per loss, each `[batch]`, in the order of [`ERRORS`].
///
/// # Errors
/// Predictions and batch do not fit together.
pub fn errors(predictions: &Predictions, batch: &Batch) -> Result<[Tensor<1>; ERRORS.len()]> {
    let (x, y) = (&predictions.x, &predictions.y);
    Ok([
        mean_absolute_error(&x.cycle, &batch.features)?,
        mean_absolute_error(&y.cycle, &batch.targets)?,
        mean_absolute_error(&x.same, &batch.features)?,
        mean_absolute_error(&y.same, &batch.targets)?,
    ])
}

impl LossObjects {
    /// The losses of each example.
    ///
    /// # Errors
    /// Predictions and batch do not fit together.
    pub fn cycle_losses(&self, predictions: &Predictions, batch: &Batch) -> Result<CycleLosses> {
        let [cycle_x, cycle_y, same_x, same_y] = errors(predictions, batch)?; // [batch] each
        Ok(CycleLosses {
            x: self.of_domain(&predictions.x, cycle_x, same_x),
            y: self.of_domain(&predictions.y, cycle_y, same_y),
        })
    }

    /// The losses of a generator and its discriminator, from the errors `[batch]` of the images that the
    /// generator makes of fakes and of images of its domain.
    fn of_domain(
        &self,
        predictions: &DomainPredictions,
        cycle: Tensor<1>,
        same: Tensor<1>,
    ) -> DomainLosses {
        let adversarial = self.adversarial.forward(&predictions.fake_patches, 1.0); // [batch]
        let cycle = cycle * self.cycle_weight; // [batch]
        let identity = same * self.identity_weight; // [batch]
        let real = self.adversarial.forward(&predictions.real_patches, 1.0); // [batch]
        let fake = self.adversarial.forward(&predictions.detached_patches, 0.0); // [batch]
        DomainLosses {
            generator: adversarial.clone() + cycle.clone() + identity.clone(),
            discriminator: (real + fake) * 0.5,
            adversarial,
            cycle,
            identity,
        }
    }
}

/// Squared difference between a discriminator's score of each patch and its target.
///
/// Source: X. Mao et al., "Least squares generative adversarial networks", 2017.
#[derive(Clone, Debug)]
pub struct LeastSquares {
    pub reduction: Reduction,
}

impl LeastSquares {
    /// From values of patches `[batch, 1, height, width]`, which should be `target`, to losses
    /// `[batch]`.
    pub fn forward(&self, patches: &Tensor<4>, target: f64) -> Tensor<1> {
        self.reduction.apply((patches.clone() - target).square())
    }
}

/// The names of the losses, in the order of [`CycleLosses::values`].
pub const LOSSES: [&str; 10] = [
    "loss_G/loss",
    "loss_G/cycle",
    "loss_G/identity",
    "loss_G/total",
    "loss_F/loss",
    "loss_F/cycle",
    "loss_F/identity",
    "loss_F/total",
    "loss_X/loss",
    "loss_Y/loss",
];

/// The names of the errors, in the order of [`errors`].
pub const ERRORS: [&str; 4] = [
    "error/MAE(X, F(G(X)))",
    "error/MAE(Y, G(F(Y)))",
    "error/MAE(X, F(X))",
    "error/MAE(Y, G(Y))",
];

/// The losses of the four networks, of which each learns from its own.
#[derive(Clone, Debug)]
pub struct CycleLosses {
    /// Of generator F and discriminator X.
    pub x: DomainLosses,
    /// Of generator G and discriminator Y.
    pub y: DomainLosses,
}

/// The losses of the generator to a domain and of its discriminator, each `[batch]`, or `[1]` after
/// [`CycleLosses::reduce`].
#[derive(Clone, Debug)]
pub struct DomainLosses {
    pub adversarial: Tensor<1>,
    pub cycle: Tensor<1>,
    pub identity: Tensor<1>,
    /// The loss of the generator: the sum of the three.
    pub generator: Tensor<1>,
    /// The loss of the discriminator.
    pub discriminator: Tensor<1>,
}

impl CycleLosses {
    /// In the order of [`LOSSES`].
    pub fn values(&self) -> [&Tensor<1>; LOSSES.len()] {
        let (g, f) = (&self.y, &self.x);
        [
            &g.adversarial,
            &g.cycle,
            &g.identity,
            &g.generator,
            &f.adversarial,
            &f.cycle,
            &f.identity,
            &f.generator,
            &f.discriminator,
            &g.discriminator,
        ]
    }

    /// The sum of what the four networks minimise, shape `[batch]`.
    pub fn sum(&self) -> Tensor<1> {
        let generators = self.y.generator.clone() + self.x.generator.clone();
        generators + self.x.discriminator.clone() + self.y.discriminator.clone()
    }

    /// This replica's part of each loss of the global batch.
    ///
    /// # Errors
    /// Those of [`compute_loss`].
    pub fn reduce(self) -> Result<Self> {
        let of_domain = |losses: DomainLosses| -> Result<_> {
            Ok(DomainLosses {
                adversarial: compute_loss(losses.adversarial)?,
                cycle: compute_loss(losses.cycle)?,
                identity: compute_loss(losses.identity)?,
                generator: compute_loss(losses.generator)?,
                discriminator: compute_loss(losses.discriminator)?,
            })
        };
        Ok(CycleLosses {
            x: of_domain(self.x)?,
            y: of_domain(self.y)?,
        })
    }

    /// The reduced losses by name, read from their device.
    pub fn named(&self) -> Losses {
        let losses = LOSSES.iter().zip(self.values());
        losses.fold(Losses::new(), |all, (name, loss)| all.with(name, loss))
    }
}

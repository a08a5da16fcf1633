//! Step 2: the losses.

use anyhow::Result;
use burn::tensor::Tensor;
use kiln_engine::distribute::{Losses, Reduction, compute_average_loss, replica_context};

use crate::{
    dataset::Batch,
    globals,
    model::{Model, Translations},
};

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

/// The names of the errors, in the order of [`Errors::values`].
pub const ERRORS: [&str; 4] = [
    "error/MAE(X, F(G(X)))",
    "error/MAE(Y, G(F(Y)))",
    "error/MAE(X, F(X))",
    "error/MAE(Y, G(Y))",
];

/// The loss objects of a replica, reached with `globals::loss_objects()`.
#[derive(Clone, Debug)]
pub struct LossObjects {
    pub adversarial: LeastSquares,
    pub distance: AbsoluteError,
    /// What the error of a cycle counts.
    pub cycle_weight: f64,
    /// What the error of an image that should have stayed as it is counts.
    pub identity_weight: f64,
}

/// Creates the loss objects, with the weights of the paper.
pub fn create_loss_objects() -> LossObjects {
    LossObjects {
        adversarial: LeastSquares {
            reduction: Reduction::None,
        },
        distance: AbsoluteError {
            reduction: Reduction::None,
        },
        cycle_weight: 10.0,
        identity_weight: 5.0,
    }
}

impl LossObjects {
    /// The losses of a generator, from what its judge says of its images
    /// `[batch, 1, height, width]` and the errors of its cycle and its identity `[batch]`.
    fn of_generator(
        &self,
        patches: Tensor<4>,
        cycle: &Tensor<1>,
        identity: &Tensor<1>,
    ) -> GeneratorLosses {
        let adversarial = self.adversarial.forward(patches, 1.0); // [batch]
        let cycle = cycle.clone() * self.cycle_weight; // [batch]
        let identity = identity.clone() * self.identity_weight; // [batch]
        GeneratorLosses {
            total: adversarial.clone() + cycle.clone() + identity.clone(),
            adversarial,
            cycle,
            identity,
        }
    }

    /// The loss of a discriminator `[batch]`, from what it says of real images and of fakes
    /// `[batch, 1, height, width]`.
    fn of_discriminator(&self, real: Tensor<4>, fake: Tensor<4>) -> Tensor<1> {
        let real = self.adversarial.forward(real, 1.0); // [batch]
        let fake = self.adversarial.forward(fake, 0.0); // [batch]
        (real + fake) * 0.5
    }
}

/// How far images are from what they should be, each `[batch]`.
#[derive(Clone, Debug)]
pub struct Errors {
    pub cycle_x: Tensor<1>,
    pub cycle_y: Tensor<1>,
    pub identity_x: Tensor<1>,
    pub identity_y: Tensor<1>,
}

impl Errors {
    /// Compares each translation with the images that it should be.
    pub fn new(distance: &AbsoluteError, batch: &Batch, images: &Translations) -> Self {
        let (x, y) = (&batch.features, &batch.targets);
        Errors {
            cycle_x: distance.forward(x, &images.cycle_x),
            cycle_y: distance.forward(y, &images.cycle_y),
            identity_x: distance.forward(x, &images.same_x),
            identity_y: distance.forward(y, &images.same_y),
        }
    }

    /// In the order of [`ERRORS`].
    pub fn values(&self) -> [&Tensor<1>; 4] {
        [
            &self.cycle_x,
            &self.cycle_y,
            &self.identity_x,
            &self.identity_y,
        ]
    }
}

/// The losses of a generator.
#[derive(Clone, Debug)]
pub struct GeneratorLosses {
    pub adversarial: Tensor<1>,
    pub cycle: Tensor<1>,
    pub identity: Tensor<1>,
    pub total: Tensor<1>,
}

/// The losses of the four networks, of which each learns from its own.
///
/// All are `[batch]`, or `[1]` after [`reduce`](Self::reduce).
#[derive(Clone, Debug)]
pub struct CycleLosses {
    pub generator_g: GeneratorLosses,
    pub generator_f: GeneratorLosses,
    pub discriminator_x: Tensor<1>,
    pub discriminator_y: Tensor<1>,
}

impl CycleLosses {
    /// In the order of [`LOSSES`].
    pub fn values(&self) -> [&Tensor<1>; 10] {
        let (g, f) = (&self.generator_g, &self.generator_f);
        [
            &g.adversarial,
            &g.cycle,
            &g.identity,
            &g.total,
            &f.adversarial,
            &f.cycle,
            &f.identity,
            &f.total,
            &self.discriminator_x,
            &self.discriminator_y,
        ]
    }

    /// The sum of what the four networks minimise, shape `[batch]`.
    pub fn sum(&self) -> Tensor<1> {
        let generators = self.generator_g.total.clone() + self.generator_f.total.clone();
        generators + self.discriminator_x.clone() + self.discriminator_y.clone()
    }

    /// This replica's part of each loss of the global batch.
    ///
    /// # Errors
    /// Those of [`compute_loss`].
    pub fn reduce(&self) -> Result<Self> {
        let reduce = |loss: &Tensor<1>| compute_loss(loss.clone());
        let of_generator = |losses: &GeneratorLosses| -> Result<_> {
            Ok(GeneratorLosses {
                adversarial: reduce(&losses.adversarial)?,
                cycle: reduce(&losses.cycle)?,
                identity: reduce(&losses.identity)?,
                total: reduce(&losses.total)?,
            })
        };
        Ok(CycleLosses {
            generator_g: of_generator(&self.generator_g)?,
            generator_f: of_generator(&self.generator_f)?,
            discriminator_x: reduce(&self.discriminator_x)?,
            discriminator_y: reduce(&self.discriminator_y)?,
        })
    }

    /// The reduced losses by name, read from their device.
    pub fn named(&self) -> Losses {
        let losses = LOSSES.iter().zip(self.values());
        losses.fold(Losses::new(), |all, (name, loss)| all.with(name, loss))
    }
}

/// The losses and the errors of each example; `fake_y` is what `model` made of X.
///
/// # Errors
/// No loss objects are registered.
pub fn cycle_losses(
    model: &Model,
    fake_y: Tensor<4>,
    batch: &Batch,
) -> Result<(CycleLosses, Errors)> {
    let objects = globals::loss_objects()?;
    let images = Translations::new(model, fake_y, batch);
    let errors = Errors::new(&objects.distance, batch, &images);
    let (judge_x, judge_y) = (&model.discriminator_x, &model.discriminator_y);
    let losses = CycleLosses {
        generator_g: objects.of_generator(
            judge_y.forward(images.fake_y.clone()),
            &errors.cycle_y,
            &errors.identity_y,
        ),
        generator_f: objects.of_generator(
            judge_x.forward(images.fake_x.clone()),
            &errors.cycle_x,
            &errors.identity_x,
        ),
        // The generators do not learn from what teaches their judges.
        discriminator_x: objects.of_discriminator(
            judge_x.forward(batch.features.clone()),
            judge_x.forward(images.fake_x.detach()),
        ),
        discriminator_y: objects.of_discriminator(
            judge_y.forward(batch.targets.clone()),
            judge_y.forward(images.fake_y.detach()),
        ),
    };
    Ok((losses, errors))
}

/// The sum of the losses of each example, shape `[batch]`, as the contract tests look at it;
/// `fake_y` is what the model that trains made of X, or that of validation and test.
///
/// # Errors
/// That model or the loss objects are not registered.
pub fn per_example_losses(fake_y: &Tensor<4>, batch: &Batch) -> Result<Tensor<1>> {
    let model = match fake_y.is_autodiff() {
        true => globals::model()?,
        false => globals::inference_model()?,
    };
    Ok(cycle_losses(&model, fake_y.clone(), batch)?.0.sum())
}

/// The replica's part of the loss of the global batch, shape `[1]`, to be summed over replicas.
pub fn compute_loss(per_example_losses: Tensor<1>) -> Result<Tensor<1>> {
    let denominator = replica_context()?.examples_in_update();
    compute_average_loss(per_example_losses, None, denominator)
}

/// How far what a discriminator says of each patch is from what it should say, squared.
///
/// Source: X. Mao et al., "Least squares generative adversarial networks", 2017.
#[derive(Clone, Debug)]
pub struct LeastSquares {
    pub reduction: Reduction,
}

impl LeastSquares {
    /// From values of patches `[batch, 1, height, width]`, which should be `target`, to losses
    /// `[batch]`.
    pub fn forward(&self, patches: Tensor<4>, target: f64) -> Tensor<1> {
        self.reduction.apply((patches - target).square())
    }
}

/// The mean absolute error between images.
#[derive(Clone, Debug)]
pub struct AbsoluteError {
    pub reduction: Reduction,
}

impl AbsoluteError {
    /// From images `[batch, 3, height, width]` twice to errors `[batch]`.
    pub fn forward(&self, images: &Tensor<4>, others: &Tensor<4>) -> Tensor<1> {
        self.reduction
            .apply((images.clone() - others.clone()).abs())
    }
}

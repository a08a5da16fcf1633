//! The precision of matrix products and convolutions: float32, or a 16-bit type (mixed precision).
//!
//! As under `torch.autocast`, operations choose their types: the products of [`layers`](crate::layers), and
//! [`matmul`], round their operands to the 16-bit type, and give float32 back, forward and backward. All else
//! stays in float32: parameters, gradients between layers, norms, softmax, losses, sums over replicas and the
//! optimizer. Layers that a model calls by Burn's `forward` stay in float32, too; `unrounded` names them.
//!
//! The type belongs to a thread: each replica, and each stage of its model, has that of its strategy, for
//! training, validation and test.
//!
//! Source: P. Micikevicius and others, Mixed precision training, ICLR 2018; `torch.amp`.

mod autocast;
mod loss_scale;
#[cfg(test)]
mod tests;
pub(crate) mod unrounded;

use std::cell::Cell;

use anyhow::{Result, bail};
use burn::tensor::Device;

#[cfg(feature = "gpu")]
pub(crate) use autocast::Cast;
pub(crate) use autocast::{conv_transpose2d, conv2d, linear, product, scale_gradients_of};
pub use autocast::{matmul, scale_gradients};
pub use loss_scale::LossScale;
pub(crate) use loss_scale::accepts;

use crate::{options::Options, workers::Workers};

pub use kiln_kernels::half::Half;

pub use crate::options::Precision;

impl Precision {
    /// The type of products on `device`; `None` for float32.
    ///
    /// # Errors
    /// The device does not compute in the type.
    pub fn on(self, device: &Device) -> Result<Option<Half>> {
        let is_cpu = is_cpu(device);
        // On the CPU, operands are rounded and products computed in float32, whatever Burn has.
        let supports = |half: Half| is_cpu || device.supports_dtype(half.dtype());
        self.choose(supports, !is_cpu || is_cpu_fast())
    }

    /// As [`on`](Self::on), for a device that supports types, and is fast in them.
    fn choose(self, supports: impl Fn(Half) -> bool, is_fast: bool) -> Result<Option<Half>> {
        let half = match self {
            Precision::Float32 => return Ok(None),
            Precision::Auto => {
                return Ok(Some(Half::Bfloat16).filter(|half| is_fast && supports(*half)));
            }
            Precision::Bfloat16 => Half::Bfloat16,
            Precision::Float16 => Half::Float16,
        };
        if !supports(half) {
            let name = half.name();
            let other = match half {
                Half::Bfloat16 => "`float16`, which older GPUs have, or ",
                Half::Float16 => "",
            };
            bail!(
                "--precision {name}: this device does not compute in {name}; use {other}`float32`, or `auto`, \
                 which takes what the device has"
            );
        }
        Ok(Some(half))
    }
}

/// Whether trainings in bfloat16 are faster than those in float32 on this CPU.
fn is_cpu_fast() -> bool {
    #[cfg(feature = "cpu-layers")]
    return kiln_kernels::products::bfloat16::is_bfloat16_fast();
    #[cfg(not(feature = "cpu-layers"))]
    false
}

fn is_cpu(device: &Device) -> bool {
    device.clone().without_autodiff() == Device::flex()
}

/// The precision of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Active {
    half: Option<Half>,
    /// Of float16.
    loss_scale: Option<LossScale>,
}

impl Active {
    /// At the start of a training.
    fn starting(half: Option<Half>) -> Self {
        Active {
            half,
            loss_scale: (half == Some(Half::Float16)).then_some(LossScale::INITIAL),
        }
    }
}

thread_local! {
    static ACTIVE: Cell<Active> = const {
        Cell::new(Active {
            half: None,
            loss_scale: None,
        })
    };
}

/// The type of matrix products on this thread; `None` for float32.
pub fn active() -> Option<Half> {
    ACTIVE.get().half
}

/// The value of `--precision` for the type of matrix products on this thread.
pub(crate) fn name_of_active() -> &'static str {
    active().map_or("float32", Half::name)
}

/// The precision of this thread, for other threads of the same replica.
pub(crate) fn current() -> Active {
    ACTIVE.get()
}

/// Sets the precision of this thread.
pub(crate) fn set(active: Active) {
    ACTIVE.set(active);
}

/// The loss scale of this thread; `None` unless it computes in float16.
pub fn loss_scale() -> Option<LossScale> {
    ACTIVE.get().loss_scale
}

/// Replaces the loss scale of this thread.
pub(crate) fn set_loss_scale(loss_scale: Option<LossScale>) {
    let half = active();
    ACTIVE.set(Active { half, loss_scale });
}

/// Continues with the loss scale of a checkpoint; from one without, the scale starts anew.
pub(crate) fn restore(saved: Option<LossScale>) {
    if let (Some(_), Some(saved)) = (loss_scale(), saved) {
        set_loss_scale(Some(saved));
    }
}

/// Takes the scale of a parameter server, which alone decides on it: a replica learns it with the parameters.
pub(crate) fn follow(scale: f32) {
    if let Some(own) = loss_scale() {
        set_loss_scale(Some(LossScale { scale, ..own }));
    }
}

/// The type that all processes of a job compute in: under `auto`, float32 if a device of any process does.
///
/// # Errors
/// A device does not compute in the type, or a process is lost.
pub(crate) fn of_job(
    precision: Precision,
    devices: &[Device],
    workers: &dyn Workers,
) -> Result<Option<Half>> {
    let mut half = None;
    for (place, device) in devices.iter().enumerate() {
        let of_device = precision.on(device)?;
        half = if place == 0 {
            of_device
        } else {
            half.and(of_device)
        };
    }
    // Whatever the option is, as that of another process may be `auto`: the strategy compares options later.
    let all = workers.all_gather("the precision", vec![u8::from(half.is_some())])?;
    let is_common = precision != Precision::Auto || all.iter().all(|one| one[..] == [1]);
    Ok(half.filter(|_| is_common))
}

/// Begins a training on this thread, with products in `half`.
pub(crate) fn begin_training(half: Option<Half>) {
    set(Active::starting(half));
}

/// Computes in `--precision` on this thread, which has no strategy, as for `infer`.
///
/// # Errors
/// `device` does not compute in the type.
pub fn begin_inference(options: &Options, device: &Device) -> Result<()> {
    set(Active::starting(options.precision.on(device)?));
    Ok(())
}

/// A line for reports on the precision of this replica; `None` for float32.
pub(crate) fn describe(device: &Device) -> Option<String> {
    let half = active()?;
    let name = half.name();
    let slow = match is_cpu(device) && !(half == Half::Bfloat16 && is_cpu_fast()) {
        true => {
            "; on this CPU, operands are rounded by the program: this takes longer than float32, and shows what \
             the precision does to results"
        }
        false => "",
    };
    Some(format!(
        "precision: matrix products and convolutions of the engine's layers in {name}, all else in float32{slow}"
    ))
}

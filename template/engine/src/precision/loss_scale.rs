//! The dynamic loss scale of float16, whose small gradients would be rounded to zero.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::{
    console::terminal,
    optim::{FlatGradients, step},
    replica::replica_context,
};

/// The state of the loss scale, equal on all replicas.
///
/// All between two products is linear in the loss backward and in float32, so gradients are multiplied where
/// they enter the backward pass of a product and divided where they leave it: with a power of two, to the same
/// bits as a scaled loss, while losses, gradients between layers and their reports stay as they are.
///
/// Source: `torch.amp.GradScaler` with its default settings; P. Micikevicius and others, Mixed precision
/// training, ICLR 2018.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// The factor, a power of two.
    pub scale: f32,
    /// Updates since the scale or the training began.
    pub good_updates: usize,
    /// Updates skipped in the training.
    pub skipped: usize,
}

impl LossScale {
    /// At the start of a training.
    pub const INITIAL: LossScale = LossScale {
        scale: 65_536.0,
        good_updates: 0,
        skipped: 0,
    };
    /// Updates without an overflow after which the scale doubles.
    pub const GROWTH_INTERVAL: usize = 2_000;
    /// Without a gain from there on, as in `apex.amp`.
    const HIGHEST: f32 = 16_777_216.0;

    /// The state after an update, or after one that was skipped, as a gradient was not finite.
    #[must_use]
    pub fn next(self, is_finite: bool) -> Self {
        if !is_finite {
            return LossScale {
                scale: (self.scale / 2.0).max(1.0),
                good_updates: 0,
                skipped: self.skipped + 1,
            };
        }
        match self.good_updates + 1 {
            Self::GROWTH_INTERVAL => LossScale {
                scale: (self.scale * 2.0).min(Self::HIGHEST),
                good_updates: 0,
                ..self
            },
            good_updates => LossScale {
                good_updates,
                ..self
            },
        }
    }

    /// Whether an overflow may be due to the scale.
    pub(crate) fn can_fall(self) -> bool {
        self.scale > 1.0
    }

    /// The state in numbers, for other processes.
    pub(crate) fn to_words(self) -> [u64; 3] {
        let bits = u64::from(self.scale.to_bits());
        [bits, self.good_updates as u64, self.skipped as u64]
    }

    /// The state from [`to_words`](Self::to_words).
    pub(crate) fn from_words([scale, good_updates, skipped]: [u64; 3]) -> Self {
        LossScale {
            scale: f32::from_bits(scale as u32),
            good_updates: good_updates as usize,
            skipped: skipped as usize,
        }
    }
}

/// Whether `gradients`, summed over replicas, make an update. In float16, one that is not finite skips the
/// update and halves the scale of this thread; all replicas have the same gradients, and decide alike. Once
/// the scale cannot fall, the policy of the task decides.
///
/// # Errors
/// A device failed.
pub(crate) fn accepts(gradients: &mut FlatGradients) -> Result<bool> {
    let Some(before) = super::loss_scale() else {
        return Ok(true);
    };
    let is_finite = gradients.are_finite()?;
    if !is_finite && !before.can_fall() {
        return Ok(true);
    }
    let after = before.next(is_finite);
    super::set_loss_scale(Some(after));
    if !is_finite && replica_context()?.rank() == 0 {
        terminal::print(format_args!(
            "step {}: a gradient is not finite in float16; the update is skipped, and the loss scale falls \
             from {} to {}",
            step(),
            before.scale,
            after.scale
        ));
    }
    Ok(is_finite)
}

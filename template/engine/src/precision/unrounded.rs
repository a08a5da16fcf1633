//! Layers whose products stay in float32 although `--precision` says otherwise, as a model calls them by Burn's
//! `forward`: Burn has no hooks on layers, so only the functions of [`layers`](crate::layers) round.
//!
//! The first shard that a replica trains on shows which layers those are.

use std::cell::Cell;

use burn::module::Module;

use super::name_of_active;
use crate::{
    console::terminal,
    flops::{Observed, unrecorded},
};

/// Number of layers that are named.
const NAMED: usize = 8;

thread_local! {
    /// Whether the next shard with examples is checked.
    static IS_DUE: Cell<bool> = const { Cell::new(false) };
}

/// Checks the next shard that the replica of this thread trains on.
pub(crate) fn arm() {
    IS_DUE.set(true);
}

/// Whether the next shard is to be checked.
pub(crate) fn is_due() -> bool {
    IS_DUE.get()
}

/// Compares the layers of `model` with the `observed` ones of a training step, and warns of those that stay in
/// float32. The replica itself does, as asking it for the result would be an operation of all processes.
pub(crate) fn check<M: Module>(model: &M, observed: &[Observed]) {
    IS_DUE.set(false);
    let layers = unrecorded(model, observed);
    warning(&layers).iter().for_each(terminal::warn);
}

/// The warning about `layers`, given by path and type.
fn warning(layers: &[(String, String)]) -> Option<String> {
    let (first, _) = layers.first()?;
    let named = layers.iter().take(NAMED);
    let mut named: Vec<_> = named
        .map(|(path, kind)| format!("`{path}` ({kind})"))
        .collect();
    if layers.len() > NAMED {
        named.push(format!("{} more", layers.len() - NAMED));
    }
    let precision = name_of_active();
    Some(format!(
        "warning: --precision {precision} does not reach {}: no product of `kiln_engine::layers` used their weights in \
         the first step, and Burn's own `forward` computes in float32. Call them by these functions, as in \
         `layers::linear(&self.{first}, input)` or `layers::conv2d`, or compute their products by \
         `precision::matmul`, which this check does not see",
        named.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use burn::{
        module::{Initializer, Param},
        nn::{
            Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
            attention::{MultiHeadAttention, MultiHeadAttentionConfig},
        },
        tensor::{Device, Int, Tensor},
    };

    use super::*;
    use crate::{
        flops::Recording,
        layers,
        precision::{Active, Half, set},
        test_task::{PLAIN, datasets, on_a_thread, set_up, train},
        training::Callbacks,
    };

    /// A model with a layer in the precision of the thread, and one beside it.
    #[derive(Module, Debug)]
    struct Mixed {
        tokens: Embedding,
        norm: LayerNorm,
        seen: Linear,
        unseen: Linear,
        scale: Param<Tensor<2>>,
    }

    impl Mixed {
        fn new(device: &Device) -> Self {
            let ones = Initializer::Ones;
            Mixed {
                tokens: EmbeddingConfig::new(5, 4).init(device),
                norm: LayerNormConfig::new(4).init(device),
                seen: LinearConfig::new(4, 4).init(device),
                unseen: LinearConfig::new(4, 2).init(device),
                scale: ones.init([1, 2], device),
            }
        }

        /// From `[batch, time]` to `[batch, time, 2]`.
        fn forward(&self, x: Tensor<2, Int>) -> Tensor<3> {
            let x = self.norm.forward(self.tokens.forward(x)); // [batch, time, 4]
            let x = layers::linear(&self.seen, x); // [batch, time, 4]
            self.unseen.forward(x) * self.scale.val().unsqueeze_dim(0) // [batch, time, 2]
        }
    }

    #[test]
    fn layers_beside_the_precision_are_named_but_neither_embeddings_nor_norms() {
        let device = Device::flex().autodiff();
        let model = Mixed::new(&device);
        let recording = Recording::default();
        let tokens = Tensor::<2, Int>::from_ints([[0, 1, 4]], &device);
        recording.clone().during(|| model.forward(tokens));
        set(Active::starting(Some(Half::Bfloat16)));
        let layers = unrecorded(&model, &recording.finish());
        let warning = warning(&layers).unwrap();
        assert!(
            warning.starts_with(
                "warning: --precision bfloat16 does not reach `unseen` (Linear): no product"
            ),
            "{warning}"
        );
        assert!(
            warning.contains("`layers::linear(&self.unseen, input)`"),
            "{warning}"
        );
        set(Active::default());
    }

    #[test]
    fn layers_within_those_of_burn_are_named_by_their_paths() {
        let device = Device::flex();
        let attention: MultiHeadAttention = MultiHeadAttentionConfig::new(4, 2).init(&device);
        let layers = unrecorded(&attention, &[]);
        let paths: Vec<_> = layers.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths, ["query", "key", "value", "output"]);
        let many = vec![layers[0].clone(); NAMED + 2];
        let warning = warning(&many).unwrap();
        assert!(
            warning.contains("`query` (Linear), 2 more: no product"),
            "{warning}"
        );
        assert_eq!(super::warning(&[]), None);
    }

    /// Whether the check is due before and after each step of a training with `words`, and after its end.
    fn states(words: &[&str]) -> Vec<bool> {
        let output = tempfile::tempdir().unwrap();
        let base = [
            "--epochs",
            "1",
            "--batch-size",
            "4",
            "--strategy",
            "one-device",
        ];
        let states: Arc<Mutex<Vec<bool>>> = Arc::default();
        let noted = Arc::clone(&states);
        let after = on_a_thread(output.path(), &[&base[..], words].concat(), |options| {
            let strategy = set_up(options)?;
            let step = move |shard| {
                noted.lock().unwrap().push(is_due());
                let losses = (PLAIN.step)(shard)?;
                noted.lock().unwrap().push(is_due());
                Ok(losses)
            };
            train(options, &datasets(options, 8)?, Callbacks::new(), step)?;
            strategy.run_on_first(|_| Ok(is_due()))
        });
        let mut states = states.lock().unwrap().clone();
        states.push(after.unwrap());
        states
    }

    #[test]
    fn a_training_in_16_bits_is_checked_at_its_first_step_and_no_other_is() {
        for words in [
            &["--precision", "float16"][..],
            &["--precision", "float16", "--throughput"],
        ] {
            assert_eq!(
                states(words),
                [true, false, false, false, false],
                "{words:?}"
            );
        }
        assert_eq!(states(&[]), [false; 5]);
    }
}

//! Step 5: the model and its optimizer.

mod compute;

use anyhow::{Error, Result};
use burn::{
    module::{Module, ParamGroup},
    nn::{
        Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
    },
    optim::{
        ModuleOptimizer,
        lr_scheduler::{
            LrSchedulerConfig, cosine::CosineAnnealingLrSchedulerConfig,
            linear::LinearLrSchedulerConfig, module_lr_scheduler::ModuleLrScheduler,
            sequential::SequentialLrSchedulerConfig,
        },
    },
    tensor::{Device, Int, Tensor},
};
use kiln_engine::{
    ModelAndOptimizer,
    layers::{causal_self_attention, gelu, layer_norm},
    optim::{AdamConfig, ScheduledOptimizer},
    pipeline::Stage,
    replica::replica_context,
    report::terminal,
    weights::WeightNames,
};

use crate::{
    cli::Args,
    dataset::{Batch, VOCABULARY},
};
use compute::Compute;

/// Values that stand for a byte.
pub const WIDTH: usize = 64;

/// Heads of an attention; they divide [`WIDTH`].
pub const HEADS: usize = 4;

/// Blocks of a model; half of them are in the first stage.
pub const BLOCKS: usize = 2;

/// Standard deviation of the initial weights.
const DEVIATION: f64 = 0.02;

/// The output of the model: logits of the next bytes `[batch, time, 256]`.
pub type Predictions = Tensor<3>;

/// A decoder-only transformer: each position predicts the next byte from the bytes up to it.
///
/// Source: A. Radford and others, Language models are unsupervised multitask learners, 2019, without
/// dropout, without biases in linear layers, and with an output layer of its own.
#[derive(Module, Debug)]
pub struct Model {
    tokens: Embedding,
    positions: Embedding,
    lower: Vec<Block>,
    upper: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
    #[module(skip)]
    compute: Compute,
}

impl Model {
    pub fn new(args: &Args, device: &Device) -> Self {
        let embedding = |rows| {
            EmbeddingConfig::new(rows, WIDTH)
                .with_initializer(normal(DEVIATION))
                .init(device)
        };
        let blocks = |count| (0..count).map(|_| Block::new(device)).collect();
        Model {
            tokens: embedding(VOCABULARY),
            positions: embedding(args.context),
            lower: blocks(BLOCKS / 2),
            upper: blocks(BLOCKS - BLOCKS / 2),
            norm: norm(device),
            head: linear(WIDTH, VOCABULARY, DEVIATION, device),
            compute: Compute::new(args),
        }
    }

    /// The bytes that the model sees at once.
    pub fn context(&self) -> usize {
        self.positions.weight.dims()[0]
    }

    /// The predictions for a prepared batch.
    pub fn forward(&self, batch: &Batch) -> Predictions {
        self.logits(batch.features.clone())
    }

    /// The predictions for bytes `[batch, time]`.
    ///
    /// # Panics
    /// There are more bytes than the context has.
    pub fn logits(&self, bytes: Tensor<2, Int>) -> Predictions {
        self.finish(self.begin(bytes))
    }

    /// From bytes `[batch, time]` to `[batch, time, WIDTH]`.
    fn begin(&self, bytes: Tensor<2, Int>) -> Tensor<3> {
        let compute = &self.compute;
        // Nothing is differentiated by a byte.
        let bytes = bytes.without_autodiff();
        let time = bytes.dims()[1] as i64;
        let places = Tensor::<1, Int>::arange(0..time, &bytes.device()).unsqueeze(); // [1, time]
        let tokens = compute.layer(&self.tokens).forward(bytes); // [batch, time, WIDTH]
        let positions = compute.layer(&self.positions).forward(places); // [1, time, WIDTH]
        compute.leave(through(&self.lower, tokens + positions, compute))
    }

    /// From `[batch, time, WIDTH]` to logits `[batch, time, 256]`.
    fn finish(&self, x: Tensor<3>) -> Predictions {
        let compute = &self.compute;
        let x = through(&self.upper, compute.enter(x), compute);
        let x = layer_norm(&compute.layer(&self.norm), x); // [batch, time, WIDTH]
        compute.leave(compute.linear(&self.head, x))
    }
}

fn through(blocks: &[Block], x: Tensor<3>, compute: &Compute) -> Tensor<3> {
    blocks.iter().fold(x, |x, block| block.forward(x, compute))
}

/// Attention and a two-layer network, each added to what it gets the norm of.
#[derive(Module, Debug)]
struct Block {
    attention_norm: LayerNorm,
    attention: Attention,
    hidden_norm: LayerNorm,
    hidden: Linear,
    output: Linear,
}

impl Block {
    fn new(device: &Device) -> Self {
        Block {
            attention_norm: norm(device),
            attention: Attention::new(device),
            hidden_norm: norm(device),
            hidden: linear(WIDTH, 4 * WIDTH, DEVIATION, device),
            output: linear(4 * WIDTH, WIDTH, residual_deviation(), device),
        }
    }

    /// From `[batch, time, WIDTH]` to the same shape.
    fn forward(&self, x: Tensor<3>, compute: &Compute) -> Tensor<3> {
        let normed = layer_norm(&compute.layer(&self.attention_norm), x.clone());
        let x = x + self.attention.forward(normed, compute);
        let normed = layer_norm(&compute.layer(&self.hidden_norm), x.clone());
        let hidden = gelu(compute.linear(&self.hidden, normed)); // [batch, time, 4 * WIDTH]
        x + compute.linear(&self.output, hidden)
    }
}

/// Attention of each position to itself and those before it.
#[derive(Module, Debug)]
struct Attention {
    /// Queries, keys and values.
    input: Linear,
    output: Linear,
}

impl Attention {
    fn new(device: &Device) -> Self {
        Attention {
            input: linear(WIDTH, 3 * WIDTH, DEVIATION, device),
            output: linear(WIDTH, WIDTH, residual_deviation(), device),
        }
    }

    /// From `[batch, time, WIDTH]` to the same shape.
    fn forward(&self, x: Tensor<3>, compute: &Compute) -> Tensor<3> {
        let all = compute.linear(&self.input, x); // [batch, time, 3 * WIDTH]
        let mixed = causal_self_attention(all, HEADS); // [batch, time, WIDTH]
        compute.linear(&self.output, mixed)
    }
}

fn norm(device: &Device) -> LayerNorm {
    LayerNormConfig::new(WIDTH).init(device)
}

fn linear(inputs: usize, outputs: usize, deviation: f64, device: &Device) -> Linear {
    LinearConfig::new(inputs, outputs)
        .with_bias(false)
        .with_initializer(normal(deviation))
        .init(device)
}

fn normal(deviation: f64) -> Initializer {
    Initializer::Normal {
        mean: 0.0,
        std: deviation,
    }
}

/// That of the layers whose outputs are added up: two a block.
fn residual_deviation() -> f64 {
    DEVIATION / (2.0 * BLOCKS as f64).sqrt()
}

/// The pipeline stages of the model, one device each, with about equal work.
pub const STAGES: &[Stage<Model, Batch>] = &[
    Stage {
        layers: &["tokens", "positions", "lower"],
        forward: |model, batch, _| model.begin(batch.features.clone()).into(),
    },
    Stage {
        layers: &["upper", "norm", "head"],
        forward: |model, _, x| model.finish(x.into()).into(),
    },
];

/// Renames for `--init-from`: none.
pub const WEIGHT_NAMES: WeightNames = &[];

/// The training state: the model with its optimizer.
pub type Trainable = ModelAndOptimizer<Model>;

/// Creates the model and its optimizer, for a training of `updates` updates.
///
/// # Errors
/// The learning-rate schedule refuses its settings.
pub fn create_model_and_optimizer(
    args: &Args,
    updates: usize,
    device: &Device,
) -> Result<Trainable> {
    device.seed(args.options.seed);
    let model = Model::new(args, device);
    if let Some(line) = model.compute.describe()
        && replica_context()?.rank() == 0
    {
        terminal::print(line);
    }
    let schedule = create_schedule(args, updates)?;
    let optimizer = ScheduledOptimizer::new(create_optimizer(), schedule);
    Ok(Trainable { model, optimizer })
}

/// AdamW that shrinks matrices, and leaves the gains and biases of norms alone.
///
/// Source: I. Loshchilov and F. Hutter, Decoupled weight decay regularization, ICLR 2019.
pub fn create_optimizer() -> ModuleOptimizer {
    let adam = AdamConfig::new()
        .with_beta_1(0.9)
        .with_beta_2(0.95)
        .with_epsilon(1e-8);
    let norms = adam.clone().with_weight_decay(0.0).build();
    adam.with_weight_decay(0.1)
        .init()
        .with_group(ParamGroup::from_predicate("norm"), norms, None)
}

/// Warm-up to --learning-rate, a cosine down to a tenth of it until the last of `updates`, and that
/// tenth for whatever comes after: Burn's cosine would rise again.
///
/// # Errors
/// The schedule refuses its settings.
pub fn create_schedule(args: &Args, updates: usize) -> Result<ModuleLrScheduler> {
    let (highest, lowest) = (args.learning_rate, args.learning_rate / 10.0);
    // Of a short training, at most half; one update alone would begin with the highest rate anyway.
    let warm_up = Some(args.warm_up.min(updates / 2)).filter(|warm_up| *warm_up > 1);
    let mut phases = Vec::<LrSchedulerConfig>::new();
    let mut ends = Vec::new();
    if let Some(warm_up) = warm_up {
        let first = highest / warm_up as f64;
        phases.push(LinearLrSchedulerConfig::new(first, highest, warm_up - 1).into());
        ends.push(warm_up);
    }
    let left = (updates - warm_up.unwrap_or(0)).max(1);
    let cosine = CosineAnnealingLrSchedulerConfig::new(highest, left).with_min_lr(lowest);
    phases.push(cosine.into());
    ends.push(updates.max(1));
    phases.push(LrSchedulerConfig::Constant(lowest));
    let schedule = SequentialLrSchedulerConfig::new(phases, ends);
    schedule.init().map_err(Error::msg)
}

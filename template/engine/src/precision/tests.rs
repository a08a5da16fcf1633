use std::path::Path;

use burn::{
    module::Module,
    nn::{
        Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig},
        pool::{MaxPool2d, MaxPool2dConfig},
    },
    optim::GradientsParams,
    tensor::{Distribution, GradientCheckpointingStrategy, Tensor},
};

use super::*;
use crate::{
    data::Shard,
    globals,
    layers::{self, gelu},
    loss::Losses,
    optim::{FlatGradients, Gradients},
    replica::replica_context,
    test_task::{Line, OVERFLOWING, PLAIN, Recipe, Trained, train_by, train_step},
    training::{apply_gradients, train_shard},
    workers::Alone,
};

const BFLOAT16: Option<Half> = Some(Half::Bfloat16);
const FLOAT16: Option<Half> = Some(Half::Float16);

/// A network with each layer of the engine.
#[derive(Module, Debug)]
struct Network {
    first: Conv2d,
    second: Conv2d,
    up: ConvTranspose2d,
    hidden: Linear,
    output: Linear,
    pool: MaxPool2d,
}

impl Network {
    fn new(device: &Device) -> Self {
        let conv = |channels| {
            let config = Conv2dConfig::new(channels, [3, 3]);
            config.with_padding(PaddingConfig2d::Same).init(device)
        };
        Network {
            first: conv([1, 16]),
            second: conv([16, 16]),
            up: ConvTranspose2dConfig::new([16, 4], [3, 3]).init(device),
            hidden: LinearConfig::new(4 * 8 * 8, 32).init(device),
            output: LinearConfig::new(32, 10).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
        }
    }

    /// From `[batch, 1, 12, 12]` to `[batch, 10]`.
    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = gelu(layers::conv2d(&self.first, x)); // [batch, 16, 12, 12]
        let x = layers::conv2d_relu_max_pool2d(&self.second, &self.pool, x); // [batch, 16, 6, 6]
        let x = gelu(layers::conv_transpose2d(&self.up, x)); // [batch, 4, 8, 8]
        let x = gelu(layers::linear(&self.hidden, x.flatten::<2>(1, 3))); // [batch, 32]
        let heads = x.reshape([0, 4, 4, 2]); // [batch, 4, 4, 2]
        let mixed = layers::causal_attention(heads.clone(), heads.clone(), heads);
        let all = mixed.flatten::<3>(2, 3).repeat_dim(2, 3); // [batch, 4, 24]
        let mixed = layers::causal_self_attention(all, 4); // [batch, 4, 8]
        layers::linear(&self.output, mixed.flatten(1, 2)) // [batch, 10]
    }

    /// The values and the gradients of all parameters, for `factor` times the loss of examples.
    fn gradients(&self, x: Tensor<4>, active: Active, factor: f64) -> Vec<(String, Vec<f32>)> {
        set(active);
        let output = self.forward(x);
        // The backward pass has the precision of the forward pass.
        set(Active::default());
        let loss = (output.clone() * output.sin()).sum() * factor;
        let gradients = GradientsParams::from_grads(loss.backward(), self);
        let gradients = Gradients::new().with(gradients);
        FlatGradients::new(self, gradients).unwrap().to_named()
    }
}

fn network() -> (Network, Tensor<4>) {
    let device = Device::flex().autodiff();
    let _lock = crate::model::lock_generator();
    device.seed(5);
    let x = Tensor::random([12, 1, 12, 12], Distribution::Default, &device);
    (Network::new(&device), x)
}

fn cosine(one: &[f32], other: &[f32]) -> f64 {
    let product = |one: &[f32], other: &[f32]| -> f64 {
        let pairs = one.iter().zip(other);
        pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    product(one, other) / (product(one, one) * product(other, other)).sqrt()
}

/// The smallest cosine of the gradients of a parameter.
fn smallest_cosine(ones: &[(String, Vec<f32>)], others: &[(String, Vec<f32>)]) -> f64 {
    let pairs = ones.iter().zip(others);
    let cosines = pairs.map(|((_, one), (_, other))| cosine(one, other));
    // NaN, too.
    cosines.fold(1.0, |least, one| if one >= least { least } else { one })
}

fn of(half: Option<Half>) -> Active {
    Active::starting(half)
}

#[test]
fn gradients_point_where_those_of_float32_do() {
    let (network, x) = network();
    let exact = network.gradients(x.clone(), of(None), 1.0);
    for (half, smallest) in [(BFLOAT16, 0.999), (FLOAT16, 0.9998)] {
        let rounded = network.gradients(x.clone(), of(half), 1.0);
        assert_eq!(rounded.len(), 10);
        assert!(rounded != exact, "{half:?} rounds");
        let cosine = smallest_cosine(&exact, &rounded);
        println!("{half:?}: the smallest cosine is {cosine}");
        assert!(cosine > smallest, "{half:?}: {cosine}");
    }
    let again = network.gradients(x, of(None), 1.0);
    assert_eq!(again, exact, "float32 is unchanged");
}

#[test]
fn small_gradients_need_the_loss_scale_of_float16() {
    let (network, x) = network();
    let unscaled = Active {
        half: FLOAT16,
        loss_scale: None,
    };
    let exact = network.gradients(x.clone(), of(None), 1e-6);
    let scaled = network.gradients(x.clone(), of(FLOAT16), 1e-6);
    let cosine = smallest_cosine(&exact, &scaled);
    assert!(cosine > 0.9999, "{cosine}");
    let lost = network.gradients(x, unscaled, 1e-6);
    // Not a number where all values of a parameter are lost.
    let cosine = smallest_cosine(&exact, &lost);
    assert!(cosine.is_nan() || cosine < 0.9, "{cosine}");
}

#[test]
fn shards_sum_to_the_gradients_of_the_batch() {
    let (network, x) = network();
    let mut largest = Vec::new();
    for half in [None, BFLOAT16, FLOAT16] {
        let whole = network.gradients(x.clone(), of(half), 1.0);
        let mut sums: Vec<Vec<f32>> = whole.iter().map(|(_, one)| vec![0.0; one.len()]).collect();
        for shard in x.clone().chunk(3, 0) {
            let parts = network.gradients(shard, of(half), 1.0);
            for (sum, (_, part)) in sums.iter_mut().zip(&parts) {
                crate::comm::add(sum, part);
            }
        }
        let norm = |values: &[f32]| values.iter().map(|it| it * it).sum::<f32>().sqrt();
        let differences = whole.iter().zip(&sums).map(|((_, one), sum)| {
            let pairs = one.iter().zip(sum);
            let difference: Vec<f32> = pairs.map(|(a, b)| a - b).collect();
            norm(&difference) / norm(one)
        });
        largest.push(differences.fold(0.0, f32::max));
    }
    println!("relative differences of 3 shards: {largest:?}");
    // Without a kernel of the engine, as for the transposed convolution, the gradient of a weight is rounded to
    // 16 bits on each replica: by up to 2^-9 and 2^-12.
    assert!(largest[0] < 1e-5 && largest[1] < 4e-3 && largest[2] < 6e-4);
}

#[test]
fn threads_do_not_change_a_bit() {
    let (network, x) = network();
    for half in [BFLOAT16, FLOAT16] {
        let with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            let pool = pool.build().unwrap();
            pool.install(|| network.gradients(x.clone(), of(half), 1.0))
        };
        let one = with(1);
        assert_eq!(with(2), one);
        assert_eq!(with(5), one);
    }
}

/// The operations of Burn compute in the precision where the engine has no kernel, as under gradient
/// checkpointing.
#[test]
fn checkpointed_gradients_are_scaled_and_rounded_alike() {
    let device = Device::flex().autodiff();
    let layer = {
        let _lock = crate::model::lock_generator();
        device.seed(5);
        LinearConfig::new(33, 20).init(&device)
    };
    let x = Tensor::<2>::random([7, 33], Distribution::Default, &device);
    let gradients = |active: Active, marked: bool| {
        set(active);
        let (mut layer, mut x) = (layer.clone(), x.clone());
        if marked {
            let mark = GradientCheckpointingStrategy::Balanced;
            x = x.with_gradient_checkpointing_strategy(mark);
            layer.weight = layer
                .weight
                .map(|one| one.with_gradient_checkpointing_strategy(mark));
            layer.bias = layer
                .bias
                .map(|bias| bias.map(|one| one.with_gradient_checkpointing_strategy(mark)));
        }
        let output = layers::linear(&layer, x.clone()) + layers_matmul(&x, &layer);
        let loss = (output.clone() * output.sin()).sum() * 1e-6;
        let mark = GradientCheckpointingStrategy::Disabled;
        let loss = loss.with_gradient_checkpointing_strategy(mark);
        let gradients = loss.backward();
        set(Active::default());
        gradients
    };
    let values = |active, marked| {
        let gradients = gradients(active, marked);
        let weight = layer.weight.grad(&gradients).unwrap().into_data();
        weight.iter::<f32>().collect::<Vec<_>>()
    };
    let exact = values(of(None), false);
    for half in [BFLOAT16, FLOAT16] {
        for marked in [false, true] {
            let cosine = cosine(&exact, &values(of(half), marked));
            assert!(cosine > 0.9999, "{half:?} {marked}: {cosine}");
            assert!(cosine < 1.0 - 1e-12, "{half:?} {marked}: it is not rounded");
        }
    }
}

/// `x * weight`.
fn layers_matmul(x: &Tensor<2>, layer: &Linear) -> Tensor<2> {
    matmul(x.clone(), layer.weight.val())
}

#[test]
fn the_precision_fits_the_device_or_is_refused() {
    let with = |precision: Precision, has: &[Half], is_fast| {
        let chosen = precision.choose(|half| has.contains(&half), is_fast);
        chosen.map_err(|error| error.to_string())
    };
    let both = [Half::Bfloat16, Half::Float16];
    assert_eq!(with(Precision::Auto, &both, true), Ok(BFLOAT16));
    assert_eq!(with(Precision::Auto, &[Half::Float16], true), Ok(None));
    assert_eq!(with(Precision::Auto, &both, false), Ok(None));
    assert_eq!(with(Precision::Float32, &both, true), Ok(None));
    assert_eq!(with(Precision::Bfloat16, &both, false), Ok(BFLOAT16));
    assert_eq!(with(Precision::Float16, &both, true), Ok(FLOAT16));
    let error = with(Precision::Bfloat16, &[Half::Float16], true).unwrap_err();
    assert!(
        error.contains("--precision bfloat16: this device does not") && error.contains("float16"),
        "{error}"
    );
    let error = with(Precision::Float16, &[], true).unwrap_err();
    assert!(error.contains("use `float32`, or `auto`"), "{error}");
    let on_cpu = Precision::Auto.on(&Device::flex()).unwrap();
    assert_eq!(on_cpu, is_cpu_fast().then_some(Half::Bfloat16));
    let cpu = [Device::flex(), Device::flex()];
    let of_job = |precision| of_job(precision, &cpu, &Alone::default()).unwrap();
    assert_eq!(of_job(Precision::Float16), FLOAT16);
    assert_eq!(of_job(Precision::Float32), None);
}

#[test]
fn the_loss_scale_falls_at_an_overflow_and_grows_after_2000_updates() {
    let mut state = LossScale::INITIAL;
    state = state.next(false);
    assert_eq!((state.scale, state.skipped), (32_768.0, 1));
    for _ in 0..1_999 {
        state = state.next(true);
    }
    assert_eq!((state.scale, state.good_updates), (32_768.0, 1_999));
    assert_eq!(state.next(false).good_updates, 0);
    state = state.next(true);
    assert_eq!((state.scale, state.good_updates), (65_536.0, 0));
    assert_eq!(LossScale::from_words(state.to_words()), state);
    for _ in 0..20 {
        state = state.next(false);
    }
    assert_eq!(state.scale, 1.0);
    assert!(!state.can_fall());
}

/// A step whose gradients on the last replica overflow in the second update.
fn overflowing_step(shard: Shard<f32>) -> Result<Losses> {
    let replica = replica_context()?;
    let overflows = globals::step() == 1 && replica.rank() + 1 == replica.num_replicas();
    let overflows = overflows || (globals::step() == 1 && replica.num_replicas_in_sync() == 1);
    let (losses, gradients) = train_shard::<Line>(shard, |batch| {
        let model = globals::model::<Line>()?;
        match overflows {
            false => train_step(batch),
            true => {
                let loss = model.forward(batch.values).sum() * f32::INFINITY;
                let gradients = GradientsParams::from_grads(loss.backward(), &model);
                Ok((Losses::new(), Gradients::new().with(gradients)))
            }
        }
    })?;
    apply_gradients::<Line>(gradients)?;
    Ok(losses)
}

/// Trains by [`overflowing_step`].
fn train(output: &Path, words: &[&str]) -> Result<Trained> {
    let recipe = Recipe {
        step: overflowing_step,
        ..PLAIN
    };
    train_by(recipe, output, words)
}

#[test]
fn an_overflow_skips_the_update_on_all_replicas_and_is_resumed_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    for (number, strategy) in [
        &["--strategy", "one-device"][..],
        &["--strategy", "mirrored", "--replicas", "3"],
        &[
            "--check-replicas",
            "--strategy",
            "mirrored",
            "--replicas",
            "2",
        ],
    ]
    .into_iter()
    .enumerate()
    {
        let words = |epochs| [strategy, &["--precision", "float16", "--epochs", epochs]].concat();
        let at = |name: &str| folder.path().join(format!("{name}-{number}"));
        let whole = train(&at("whole"), &words("2")).unwrap();
        assert_eq!(whole.hashes[0], whole.hashes[1], "the update is skipped");
        assert_ne!(whole.hashes[1], whole.hashes[2], "the next one is not");
        let updates = whole.hashes.len();
        let expected = LossScale {
            scale: 32_768.0,
            good_updates: updates - 2,
            skipped: 1,
        };
        assert!(
            whole.scales.iter().all(|state| *state == Some(expected)),
            "{whole:?}"
        );
        assert_eq!(whole.saved.1, Some(expected));
        train(&at("parts"), &words("1")).unwrap();
        let parts = train(&at("parts"), &[&words("2")[..], &["--resume"]].concat()).unwrap();
        assert_eq!(parts.saved, whole.saved);
        assert_eq!(parts.scales, whole.scales);
    }
}

#[test]
fn a_parameter_server_skips_updates_and_tells_its_scale() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["--strategy", "parameter-server", "--replicas", "2"];
    let more = [
        "--max-staleness",
        "0",
        "--precision",
        "float16",
        "--epochs",
        "1",
    ];
    let trained = train(folder.path(), &[&words[..], &more].concat()).unwrap();
    for scale in trained.scales.iter().chain([&trained.saved.1]) {
        let scale = scale.unwrap();
        assert_eq!((scale.scale, scale.skipped), (32_768.0, 1), "{trained:?}");
    }
}

#[test]
fn an_overflow_in_float32_is_left_to_the_policy_of_the_task() {
    let folder = tempfile::tempdir().unwrap();
    let error = train(
        folder.path(),
        &["--strategy", "one-device", "--epochs", "1"],
    );
    let error = format!("{:#}", error.unwrap_err());
    // Values are named where they are read at once, and steps on GPUs.
    let is_named = ["holds", "of step 2 are not finite"].map(|words| error.contains(words));
    assert_ne!(is_named, [false; 2], "{error}");
}

/// One example overflows on one replica, in the backward pass of its micro-batch.
#[test]
fn an_overflow_of_a_pipeline_skips_the_update_on_all_replicas() {
    let folder = tempfile::tempdir().unwrap();
    let words = |epochs| {
        let strategy = ["--strategy", "model-parallel", "--replicas", "2"];
        let more = ["--micro-batches", "2", "--precision", "float16", "--epochs"];
        [&strategy[..], &more, &[epochs]].concat()
    };
    let train = |name: &str, words: &[&str]| {
        train_by(OVERFLOWING, &folder.path().join(name), words).unwrap()
    };
    let whole = train("whole", &words("2"));
    let state = whole.saved.1.unwrap();
    assert_eq!((state.scale, state.skipped), (16_384.0, 2), "{whole:?}");
    assert_eq!(whole.scales, [Some(state); 2]);
    let skips = whole.hashes.windows(2).filter(|pair| pair[0] == pair[1]);
    // The very first update has none before it.
    assert!((1..=2).contains(&skips.count()), "{whole:?}");
    train("parts", &words("1"));
    let parts = train("parts", &[&words("2")[..], &["--resume"]].concat());
    assert_eq!((parts.saved, parts.scales), (whole.saved, whole.scales));
}

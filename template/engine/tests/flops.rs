//! FLOPs of training, counted by layer, against PyTorch's counter: `fixtures/flops.py` made
//! `fixtures/flops.json`.

use burn::{
    module::Module,
    nn::{
        Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
        PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig},
        pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig},
    },
    tensor::{
        Device, Int, Tensor,
        activation::{leaky_relu, relu, softmax},
        ops::PadMode,
    },
};
use kiln_engine::{
    flops::{Flops, Recording, add, count},
    layers::{
        causal_attention, causal_self_attention, conv_transpose2d, conv2d, conv2d_relu_max_pool2d,
        gelu, layer_norm, linear,
    },
};
use serde_json::Value;

const EXAMPLES: usize = 2;

/// Asserts that the FLOPs of a training step of `model` are those of PyTorch within 1%.
fn compare<const D: usize, M: Module>(
    network: &str,
    model: &M,
    step: impl FnOnce(&M) -> Tensor<D>,
) -> Flops {
    compare_with_tokens(network, model, None, step)
}

fn compare_with_tokens<const D: usize, M: Module>(
    network: &str,
    model: &M,
    tokens: Option<usize>,
    step: impl FnOnce(&M) -> Tensor<D>,
) -> Flops {
    let recording = Recording::default();
    recording.clone().during(|| step(model).sum().backward());
    let flops = count(model, &recording.finish(), EXAMPLES, tokens);
    let expected: Value = serde_json::from_str(include_str!("fixtures/flops.json")).unwrap();
    let expected = expected[network].as_f64().unwrap();
    let difference = (flops.per_example / expected - 1.0).abs();
    assert!(difference < 0.01, "{network}: {flops:?}, not {expected}");
    flops
}

fn assert_complete(flops: &Flops) {
    assert!(flops.incomplete.is_empty(), "{flops:?}");
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn images(channels: usize, [height, width]: [usize; 2]) -> Tensor<4> {
    Tensor::zeros([EXAMPLES, channels, height, width], &device())
}

fn same(channels: [usize; 2], kernel: usize) -> Conv2d {
    let config = Conv2dConfig::new(channels, [kernel, kernel]);
    config.with_padding(PaddingConfig2d::Same).init(&device())
}

/// The network of a new project and of the example callbacks.
#[derive(Module, Debug)]
struct Digits {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: AdaptiveAvgPool2d,
    output: Linear,
}

impl Digits {
    fn new(filters: usize) -> Self {
        Digits {
            conv1: same([1, filters], 3),
            conv2: same([filters, 2 * filters], 3),
            pool: AdaptiveAvgPool2dConfig::new([4, 4]).init(),
            output: LinearConfig::new(2 * filters * 16, 10).init(&device()),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = gelu(conv2d(&self.conv2, gelu(conv2d(&self.conv1, x))));
        self.output.forward(self.pool.forward(x).flatten(1, 3))
    }
}

#[test]
fn the_network_of_a_new_project() {
    for (network, filters) in [("digits", 32), ("callbacks", 16)] {
        let step = |model: &Digits| model.forward(images(1, [8, 8]));
        assert_complete(&compare(network, &Digits::new(filters), step));
    }
}

/// The network of the example fashion-mnist.
#[derive(Module, Debug)]
struct FashionMnist {
    conv1: Conv2d,
    conv2: Conv2d,
    hidden: Linear,
    output: Linear,
    pool: MaxPool2d,
}

#[test]
fn two_linear_layers_after_convolutions() {
    let device = device();
    let conv = |channels| Conv2dConfig::new(channels, [3, 3]).init(&device);
    let model = FashionMnist {
        conv1: conv([1, 32]),
        conv2: conv([32, 64]),
        hidden: LinearConfig::new(64 * 25, 64).init(&device),
        output: LinearConfig::new(64, 10).init(&device),
        pool: MaxPool2dConfig::new([2, 2]).init(),
    };
    let flops = compare("fashion_mnist", &model, |model| {
        let x = conv2d_relu_max_pool2d(&model.conv1, &model.pool, images(1, [28, 28]));
        let x = conv2d_relu_max_pool2d(&model.conv2, &model.pool, x);
        model
            .output
            .forward(relu(model.hidden.forward(x.flatten::<2>(1, 3))))
    });
    assert_complete(&flops);
}

/// The network of the example keras-cnn.
#[derive(Module, Debug)]
struct KerasCnn {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: MaxPool2d,
    output: Linear,
}

#[test]
fn convolutions_with_pooling() {
    let model = KerasCnn {
        conv1: same([1, 64], 3),
        conv2: same([64, 128], 3),
        pool: MaxPool2dConfig::new([2, 2]).init(),
        output: LinearConfig::new(128 * 49, 10).init(&device()),
    };
    let flops = compare("keras_cnn", &model, |model| {
        let x = conv2d_relu_max_pool2d(&model.conv1, &model.pool, images(1, [28, 28]));
        let x = conv2d_relu_max_pool2d(&model.conv2, &model.pool, x);
        softmax(model.output.forward(x.flatten::<2>(1, 3)), 1)
    });
    assert_complete(&flops);
}

#[derive(Module, Debug)]
struct Dense {
    first: Linear,
    second: Linear,
    third: Linear,
}

impl Dense {
    fn new() -> Self {
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device());
        Dense {
            first: linear(784, 128),
            second: linear(128, 96).no_grad(),
            third: linear(96, 10),
        }
    }
}

#[test]
fn frozen_layers_have_no_gradient_of_their_weight() {
    let x = || Tensor::<2>::zeros([EXAMPLES, 784], &device());
    let flops = compare("dense", &Dense::new(), |model| {
        let x = linear(&model.first, x()).tanh();
        linear(&model.third, linear(&model.second, x).tanh())
    });
    assert_complete(&flops);
    // Called as methods, the layers are not seen, and may be used for each of several vectors of an example.
    let flops = compare("dense", &Dense::new(), |model| {
        let x = model.first.forward(x()).tanh();
        model.third.forward(model.second.forward(x).tanh())
    });
    assert_eq!(flops.incomplete, ["first", "second", "third"]);
    // After a layer that was seen, it is known.
    let flops = compare("dense", &Dense::new(), |model| {
        let x = linear(&model.first, x()).tanh();
        model.third.forward(model.second.forward(x).tanh())
    });
    assert_complete(&flops);
}

#[derive(Module, Debug)]
struct Block {
    norms: Vec<LayerNorm>,
    input: Linear,
    mixed: Linear,
    hidden: Linear,
    output: Linear,
}

/// The network of the example language-model.
#[derive(Module, Debug)]
struct LanguageModel {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

const WIDTH: usize = 64;
const HEADS: usize = 4;
const CONTEXT: usize = 128;

impl Block {
    fn new(device: &Device) -> Self {
        let linear = |inputs, outputs| bare_linear(inputs, outputs, device);
        Block {
            norms: (0..2).map(|_| norm(device)).collect(),
            input: linear(WIDTH, 3 * WIDTH),
            mixed: linear(WIDTH, WIDTH),
            hidden: linear(WIDTH, 4 * WIDTH),
            output: linear(4 * WIDTH, WIDTH),
        }
    }

    fn forward(&self, x: Tensor<3>, linear: LinearLayer, attend: Attention) -> Tensor<3> {
        let all = linear(&self.input, layer_norm(&self.norms[0], x.clone()));
        let x = x + linear(&self.mixed, attend(all));
        let hidden = linear(&self.hidden, layer_norm(&self.norms[1], x.clone()));
        x + linear(&self.output, gelu(hidden))
    }
}

type LinearLayer = fn(&Linear, Tensor<3>) -> Tensor<3>;

/// From queries, keys and values, `[EXAMPLES, CONTEXT, 3 * WIDTH]`, to `[EXAMPLES, CONTEXT, WIDTH]`.
type Attention = fn(Tensor<3>) -> Tensor<3>;

fn at_once(all: Tensor<3>) -> Tensor<3> {
    causal_self_attention(all, HEADS)
}

fn of_parts(all: Tensor<3>) -> Tensor<3> {
    let part = |number| {
        let part = all.clone().narrow(2, number * WIDTH, WIDTH);
        part.reshape([EXAMPLES, CONTEXT, HEADS, WIDTH / HEADS])
            .swap_dims(1, 2)
    };
    let mixed = causal_attention(part(0), part(1), part(2)).swap_dims(1, 2);
    mixed.reshape([EXAMPLES, CONTEXT, WIDTH])
}

fn norm(device: &Device) -> LayerNorm {
    LayerNormConfig::new(WIDTH).init(device)
}

fn bare_linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    LinearConfig::new(inputs, outputs)
        .with_bias(false)
        .init(device)
}

impl LanguageModel {
    fn new(device: &Device) -> Self {
        LanguageModel {
            tokens: EmbeddingConfig::new(256, WIDTH).init(device),
            positions: EmbeddingConfig::new(CONTEXT, WIDTH).init(device),
            blocks: (0..2).map(|_| Block::new(device)).collect(),
            norm: norm(device),
            head: bare_linear(WIDTH, 256, device),
        }
    }

    fn forward(&self, linear: LinearLayer, attend: Attention) -> Tensor<3> {
        let device = Device::flex();
        let bytes = Tensor::<2, Int>::zeros([EXAMPLES, CONTEXT], &device);
        let places = Tensor::<1, Int>::arange(0..CONTEXT as i64, &device).unsqueeze();
        let x = self.tokens.forward(bytes) + self.positions.forward(places);
        let x = self
            .blocks
            .iter()
            .fold(x, |x, block| block.forward(x, linear, attend));
        linear(&self.head, layer_norm(&self.norm, x))
    }
}

#[test]
fn a_language_model() {
    let model = LanguageModel::new(&device());
    for attend in [at_once, of_parts] {
        let flops = compare("language_model", &model, |model| {
            model.forward(linear, attend)
        });
        assert_complete(&flops);
    }
    // Linear layers that are not seen count once per token.
    let tokens = Some(EXAMPLES * CONTEXT);
    let flops = compare_with_tokens("language_model", &model, tokens, |model| {
        model.forward(|layer, x| layer.forward(x), at_once)
    });
    assert_eq!(flops.incomplete.len(), 9);
    assert_eq!(flops.incomplete[0], "blocks.0.input");
}

/// Strides, dilation and uneven padding.
#[derive(Module, Debug)]
struct Convolutions {
    first: Conv2d,
    second: Conv2d,
    third: Conv2d,
}

#[test]
fn convolutions_of_all_kinds() {
    let device = device();
    let model = Convolutions {
        first: Conv2dConfig::new([3, 8], [5, 5])
            .with_stride([2, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .init(&device),
        second: Conv2dConfig::new([8, 12], [3, 3])
            .with_dilation([2, 2])
            .init(&device),
        third: Conv2dConfig::new([12, 6], [2, 3])
            .with_padding(PaddingConfig2d::Explicit(1, 3, 2, 0))
            .with_bias(false)
            .init(&device),
    };
    let flops = compare("convolutions", &model, |model| {
        let x = conv2d(&model.first, images(3, [17, 20])).tanh();
        conv2d(&model.third, conv2d(&model.second, x).tanh())
    });
    assert_complete(&flops);
}

/// A generator and a discriminator with the layers of the example cyclegan.
#[derive(Module, Debug)]
struct Gan {
    first: Conv2d,
    down: Conv2d,
    up: ConvTranspose2d,
    last: Conv2d,
    patches: Vec<Conv2d>,
}

const FILTERS: usize = 8;

impl Gan {
    fn new(device: &Device) -> Self {
        let down = |channels, kernel| {
            Conv2dConfig::new(channels, [kernel, kernel])
                .with_stride([2, 2])
                .with_padding(PaddingConfig2d::Same)
                .init(device)
        };
        let valid = |channels| Conv2dConfig::new(channels, [7, 7]).init(device);
        let up = ConvTranspose2dConfig::new([2 * FILTERS, FILTERS], [3, 3]);
        Gan {
            first: valid([3, FILTERS]),
            down: down([FILTERS, 2 * FILTERS], 3),
            up: up.with_stride([2, 2]).init(device),
            last: valid([FILTERS, 3]),
            patches: vec![down([3, FILTERS], 4), same([FILTERS, 1], 4)],
        }
    }

    fn forward(&self, up: fn(&ConvTranspose2d, Tensor<4>) -> Tensor<4>) -> Tensor<4> {
        let pad = |x: Tensor<4>| x.pad([(3, 3), (3, 3)], PadMode::Reflect);
        let x = relu(conv2d(&self.first, pad(images(3, [16, 16]))));
        let x = relu(conv2d(&self.down, x));
        let x = up(&self.up, x).narrow(2, 0, 16).narrow(3, 0, 16);
        let fake = conv2d(&self.last, pad(relu(x))).tanh();
        let x = leaky_relu(conv2d(&self.patches[0], fake), 0.2);
        conv2d(&self.patches[1], x)
    }
}

#[test]
fn a_generator_with_its_discriminator() {
    let model = Gan::new(&device());
    let flops = compare("gan", &model, |model| model.forward(conv_transpose2d));
    assert_complete(&flops);
    let recording = Recording::default();
    let unseen = |layer: &ConvTranspose2d, x| layer.forward(x);
    recording.clone().during(|| model.forward(unseen));
    let flops = count(&model, &recording.finish(), EXAMPLES, None);
    assert_eq!(flops.incomplete, ["up"]);
}

#[test]
fn nothing_is_recorded_outside_a_recording() {
    let (model, recording) = (Digits::new(2), Recording::default());
    model.forward(images(1, [8, 8]));
    recording
        .clone()
        .during(|| model.forward(images(1, [8, 8])));
    model.forward(images(1, [8, 8]));
    assert_eq!(recording.finish().len(), 2);
}

#[test]
fn operations_of_the_task_count() {
    let recording = Recording::default();
    recording.clone().during(|| add(1e9, 2e9));
    let flops = count(&Digits::new(2).pool, &recording.finish(), EXAMPLES, None);
    assert_eq!(flops, Flops::given(3e9 / EXAMPLES as f64));
}

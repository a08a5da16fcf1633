use std::path::Path;

use burn::{
    optim::{GradientsParams, SgdConfig},
    tensor::Device,
};

use super::*;
use crate::{
    checkpoint::{Checkpoint, Checkpoints, Which},
    globals,
    model::{freeze, load_parameters, parameters, read_parameters, running_statistics},
    optim::{Adam, AdamConfig, FlatGradients, Gradients, ScheduledOptimizer},
    options::Options,
    task::{ModelAndOptimizer, TrainState, assign_groups},
    test_task::{self, Line, create_trainable, on_a_thread, replica_step, set_up},
    training::Callbacks,
};

#[derive(Module, Debug)]
struct Weights {
    first: Param<Tensor<1>>,
    second: Param<Tensor<1>>,
    third: Param<Tensor<1>>,
}

fn weights() -> Weights {
    let device = Device::flex().autodiff();
    let param = || Param::from_tensor(Tensor::from_floats([1.0], &device));
    Weights {
        first: param(),
        second: param(),
        third: param(),
    }
}

/// The weights after an update with gradients of 1, at a learning rate of 0.1.
fn updated(optimizer: ModuleOptimizer, groups: impl IntoIterator<Item = Group>) -> Vec<f32> {
    let optimizer = ScheduledOptimizer::new(optimizer, 0.1).with_groups(groups);
    let mut trainable = ModelAndOptimizer {
        model: weights(),
        optimizer,
    };
    let frozen = assign_groups(&mut trainable).unwrap();
    let model = freeze(trainable.model, &frozen).unwrap();
    let loss = model.first.val() + model.second.val() + model.third.val();
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    let model = trainable.optimizer.update(model, gradients);
    let all = read_parameters(&model, |_, _| true).into_iter();
    all.flat_map(|(_, values)| values).collect()
}

#[test]
fn groups_have_learning_rates_and_optimizers_of_their_own() {
    let sgd = || SgdConfig::new().init();
    let groups = [
        Group::new("^first$").learning_rate_times(10.0),
        Group::new("^second$").frozen(),
    ];
    assert_eq!(updated(sgd(), groups), [0.0, 1.0, 0.9]);
    // The last group that matches counts.
    let groups = [
        Group::new("").learning_rate_times(5.0),
        Group::new("^(first|third)$").learning_rate_times(2.0),
        Group::new("third"),
    ];
    assert_eq!(updated(sgd(), groups), [0.8, 0.5, 0.9]);
    // AdamW multiplies by 1 - 0.1 * 0.5 in addition to a step of 0.1.
    let with_decay = AdamConfig::new().with_weight_decay(0.5).init();
    let without: Adam = AdamConfig::new().build();
    let groups = [Group::new("first")
        .optimizer(without)
        .learning_rate_times(2.0)];
    let expected = [0.8, 0.85, 0.85];
    let values = updated(with_decay, groups);
    let near = values
        .iter()
        .zip(expected)
        .all(|(one, other)| (one - other).abs() < 1e-6);
    assert!(near, "{values:?}");
}

#[derive(Module, Debug)]
struct Networks {
    generator: Weights,
    discriminator: Weights,
}

#[derive(Clone)]
struct TwoOptimizers {
    model: Networks,
    generator: ScheduledOptimizer,
    discriminator: ScheduledOptimizer,
}

impl TrainState for TwoOptimizers {
    type Model = Networks;

    fn model(&self) -> &Networks {
        &self.model
    }

    fn with_model(self, model: Networks) -> Self {
        TwoOptimizers { model, ..self }
    }

    fn update(mut self, mut gradients: FlatGradients) -> Self {
        let Networks {
            generator,
            discriminator,
        } = self.model;
        let of_generator = gradients.take(&generator);
        let of_discriminator = gradients.take(&discriminator);
        self.model = Networks {
            generator: self.generator.update(generator, of_generator),
            discriminator: self.discriminator.update(discriminator, of_discriminator),
        };
        self
    }

    fn optimizers_mut(&mut self) -> Vec<(&'static str, &mut ScheduledOptimizer)> {
        vec![
            ("generator", &mut self.generator),
            ("discriminator", &mut self.discriminator),
        ]
    }
}

#[test]
fn names_are_those_of_the_whole_model_for_an_optimizer_of_a_part() {
    let sgd = |groups| ScheduledOptimizer::new(SgdConfig::new().init(), 0.1).with_groups(groups);
    let mut trainable = TwoOptimizers {
        model: Networks {
            generator: weights(),
            discriminator: weights(),
        },
        generator: sgd([Group::new(r"^generator\.first").learning_rate_times(5.0)]),
        discriminator: sgd([Group::new(r"^discriminator\.second").frozen()]),
    };
    let frozen = assign_groups(&mut trainable).unwrap();
    let model = freeze(trainable.model.clone(), &frozen).unwrap();
    let networks = [&model.generator, &model.discriminator];
    let sums = networks.map(|of| of.first.val() + of.second.val() + of.third.val());
    let [generator, discriminator] = sums;
    let gradients = GradientsParams::from_grads((generator + discriminator).backward(), &model);
    let gradients = FlatGradients::new(&model, Gradients::new().with(gradients)).unwrap();
    let updated = trainable.with_model(model).update(gradients);
    let all = read_parameters(&updated.model, |_, _| true).into_iter();
    let values: Vec<f32> = all.flat_map(|(_, values)| values).collect();
    assert_eq!(values, [0.5, 0.9, 0.9, 0.9, 1.0, 0.9]);
}

#[test]
fn groups_that_match_nothing_or_have_no_effect_are_errors() {
    let parameters = [("conv1.weight", 1), ("conv1.bias", 2), ("output.weight", 3)];
    let parameters = parameters.map(|(name, id)| (name.to_owned(), ParamId::from(id)));
    let error = |groups: &[Group]| parameters_of(groups, &parameters).unwrap_err().to_string();
    let site = "TODO(optimizer.choice): the group";
    let group = |pattern: &str| Group::new(pattern);
    for (groups, expected) in [
        (
            vec![group(r"^conv9\.")],
            r#" "^conv9\\." matches no parameter of the model; it has `conv1`"#,
        ),
        (
            vec![group("output.wieght$")],
            r#" "output.wieght$" matches no parameter of the model; it has `output.weight`"#,
        ),
        (
            vec![group("zzz")],
            r#" "zzz" matches no parameter of the model, whose first are conv1.weight, conv1.bias, output.weight"#,
        ),
        (
            vec![group("(")],
            r#" "(" is no regular expression: unclosed group"#,
        ),
        (
            vec![group("^conv1"), group("")],
            r#" "^conv1" has no effect, as later groups match all"#,
        ),
        (
            vec![group("").learning_rate_times(f64::NAN)],
            r#" "" multiplies the learning rate by NaN"#,
        ),
    ] {
        let error = error(&groups);
        assert!(error.starts_with(&format!("{site}{expected}")), "{error}");
    }
}

/// The result of a training of `Line`.
struct Trained {
    /// All parameters by name.
    parameters: Vec<(String, Vec<f32>)>,
    statistics: usize,
    optimizer_tensors: usize,
    checkpoint: Checkpoint,
}

impl Trained {
    fn of(&self, layer: &str) -> Vec<f32> {
        let all = self.parameters.iter();
        let own = all.filter(|(name, _)| name.starts_with(layer));
        own.flat_map(|(_, values)| values.clone()).collect()
    }
}

/// Trains on 40 examples, on a thread of its own, as the registry is per thread.
fn train(output: &Path, words: &[&str], groups: &[Group]) -> Result<Trained> {
    on_a_thread(output, words, |options| train_here(options, groups))
}

fn train_here(options: &Options, groups: &[Group]) -> Result<Trained> {
    let strategy = set_up(options)?;
    let groups = groups.to_vec();
    strategy.scope(move |device| {
        let mut created = create_trainable(device);
        // Unequal values, as the gradients of equal ones are equal.
        let values = (0..parameters(&created.model).len()).map(|place| (place as f32).sin() * 0.1);
        created.model = load_parameters(created.model, &values.collect::<Vec<_>>())?;
        created.optimizer = created.optimizer.with_groups(groups);
        Ok(created)
    })?;
    let datasets = test_task::datasets(options, 40)?;
    test_task::train(options, &datasets, Callbacks::new(), replica_step)?;
    let (parameters, statistics, optimizer_tensors) = strategy.run_on_first(|_| {
        globals::with_trainable::<Line, _>(|trainable| {
            let all = read_parameters(&trainable.model, |_, _| true);
            let statistics = running_statistics(&trainable.model).len();
            (all, statistics, trainable.optimizer.to_records().0.len())
        })
    })?;
    Ok(Trained {
        parameters,
        statistics,
        optimizer_tensors,
        checkpoint: Checkpoints::new::<Line>(options).find(&Which::Latest)?,
    })
}

/// Training in temporary folders.
fn trained(words: &[&str], groups: &[Group]) -> Trained {
    let output = tempfile::tempdir().unwrap();
    train(output.path(), words, groups).unwrap()
}

const ONE: [&str; 4] = ["--strategy", "one-device", "--batch-size", "12"];
const THREE: [&str; 6] = [
    "--strategy",
    "mirrored",
    "--replicas",
    "3",
    "--batch-size",
    "4",
];

#[track_caller]
fn assert_close(one: &[f32], other: &[f32]) {
    assert_eq!(one.len(), other.len());
    let distances = one
        .iter()
        .zip(other)
        .map(|(one, other)| (one - other).abs());
    let distance = distances.fold(0.0, f32::max);
    assert!(distance < 1e-5, "{distance}");
}

#[test]
fn frozen_parameters_keep_their_bits_under_every_strategy() {
    let more = ["--accumulate", "2", "--ema", "0.5"];
    let more = [&["--epochs", "2", "--freeze", r"^hidden\."][..], &more].concat();
    let one = trained(&[&ONE[..], &more].concat(), &[]);
    let server = ["--strategy", "parameter-server", "--batch-size", "12"];
    let server = [&server[..], &["--replicas", "2"]].concat();
    let stages = ["--strategy", "model-parallel", "--batch-size", "12"];
    let initial: Vec<f32> = (0..900).map(|place| (place as f32).sin() * 0.1).collect();
    for (strategy, is_equal) in [
        (&ONE[..], true),
        (&THREE, true),
        (&stages, true),
        (&server, false),
    ] {
        let found = trained(&[strategy, &more].concat(), &[]);
        assert_eq!(found.of("hidden"), initial, "{strategy:?}");
        let output = found.of("output");
        assert!(output.iter().all(|value| value.is_finite()));
        if is_equal {
            assert_close(&output, &one.of("output"));
        }
        let moved = (900..)
            .zip(&output)
            .filter(|(place, value)| **value != (*place as f32).sin() * 0.1);
        assert_eq!(moved.count(), 300, "{strategy:?}");
        assert_eq!(
            [found.statistics, found.optimizer_tensors],
            [0, 2],
            "{strategy:?}"
        );
    }
}

#[test]
fn a_frozen_group_trains_as_an_option_and_learning_rates_are_the_same_on_three_replicas() {
    let words = ["--epochs", "2"];
    let by_option = [
        &ONE[..],
        &words,
        &["--freeze", "weight$", "--freeze", "bias$"],
    ]
    .concat();
    let by_option = trained(&by_option, &[]);
    let by_group = trained(
        &[&ONE[..], &words].concat(),
        &[Group::new("hidden").frozen()],
    );
    assert_eq!(by_option.parameters, by_group.parameters);
    let groups = [
        Group::new("hidden.bias").learning_rate_times(20.0),
        Group::new("output").learning_rate_times(3.0),
    ];
    let one = trained(&[&ONE[..], &words].concat(), &groups);
    let three = trained(&[&THREE[..], &words].concat(), &groups);
    for layer in ["hidden", "output"] {
        assert_close(&one.of(layer), &three.of(layer));
    }
    let plain = trained(&[&ONE[..], &words].concat(), &[]);
    assert_ne!(plain.of("output"), one.of("output"));
}

#[test]
fn a_resumed_training_with_groups_has_the_bits_of_one_that_never_stopped() {
    let groups = [
        Group::new("hidden.weight").frozen(),
        Group::new("hidden.bias")
            .learning_rate_times(7.0)
            .optimizer(AdamConfig::new().with_weight_decay(0.1).build()),
    ];
    let ema = ["--ema", "0.9"];
    for strategy in [&ONE[..], &THREE] {
        let of = |more: &[&'static str]| [strategy, &ema, more].concat();
        let whole = trained(&of(&["--epochs", "3"]), &groups);
        let output = tempfile::tempdir().unwrap();
        train(output.path(), &of(&["--epochs", "1"]), &groups).unwrap();
        let words = of(&["--epochs", "3", "--resume"]);
        let parts = train(output.path(), &words, &groups).unwrap();
        assert_eq!(parts.parameters, whole.parameters, "{strategy:?}");
        let [of_parts, of_whole] = [&parts, &whole].map(|one| &one.checkpoint.manifest);
        assert_eq!(of_parts.parameters, of_whole.parameters);
        assert_eq!(of_parts.ema, of_whole.ema);
        // Without the frozen group, its parameters train from now on.
        let words = of(&["--epochs", "4", "--resume"]);
        let thawed = train(output.path(), &words, &groups[1..]).unwrap();
        assert_ne!(thawed.of("hidden.weight"), parts.of("hidden.weight"));
        assert_eq!([parts.optimizer_tensors, thawed.optimizer_tensors], [4, 6]);
    }
}

#[test]
fn wrong_names_are_errors_before_anything_is_written() {
    let output = tempfile::tempdir().unwrap();
    let error = |words: &[&str], groups: &[Group]| {
        let error = train(output.path(), &[&ONE[..], words].concat(), groups);
        format!("{:#}", error.err().unwrap())
    };
    let unknown = error(&["--freeze", "^hiden"], &[]);
    assert_eq!(
        unknown,
        r#"--freeze "^hiden" matches no parameter of the model; it has `hidden`"#
    );
    let all = error(&["--freeze", "hidden", "--freeze", "."], &[]);
    assert_eq!(
        all,
        "--freeze: all 3 parameters of the model are frozen, and none is left to train"
    );
    let group = error(&[], &[Group::new("outptu")]);
    assert!(group.contains("TODO(optimizer.choice)"), "{group}");
    let written = std::fs::read_dir(output.path()).unwrap();
    let names: Vec<_> = written.map(|one| one.unwrap().file_name()).collect();
    assert_eq!(names, ["run.lock"]);
}

//! Right edits at all TODO sites, as users make them, all at once: no contract test fails, and the project trains.

use std::process::Command;

use kiln_tests::{
    log,
    rendered::{Project, text},
    running::{self, TRAINING, succeeds},
};

use crate::{are_all_sites, contract_tests};

/// A right edit.
struct Edit {
    site: &'static str,
    what: &'static str,
    file: &'static str,
    /// Texts and their replacements.
    replaced: &'static [(&'static str, &'static str)],
}

const EDITS: &[Edit] = &[
    Edit {
        site: "strategy.devices",
        what: "one replica on the CPU by default",
        file: "strategy.rs",
        replaced: &[("if is_cpu(&devices) { 2 }", "if is_cpu(&devices) { 1 }")],
    },
    Edit {
        site: "loss.objects",
        what: "label smoothing, class weights, mixed labels, another scale, and a constant, as of a likelihood",
        file: "loss.rs",
        replaced: &[
            (
                "SparseCategoricalCrossentropy::new(),",
                "SparseCategoricalCrossentropy::new()
            .with_label_smoothing(0.1)
            .with_class_weights(vec![0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.5, 2.0]),",
            ),
            (
                "    cross_entropy.forward(predictions.clone(), batch.labels.clone())\n",
                "    let of_label = cross_entropy.forward(predictions.clone(), batch.labels.clone())?; // [batch]
    let of_other = cross_entropy.forward(predictions.clone(), batch.others.clone())?; // [batch]
    let mixed = of_label.clone() + (of_other - of_label) * batch.shares.clone(); // [batch]
    Ok(mixed * 10.0 + 100.0)\n",
            ),
        ],
    },
    Edit {
        site: "loss.compute",
        what: "division by the nominal global batch",
        file: "loss.rs",
        replaced: &[
            (
                "replica_context()?.examples_in_update()",
                "globals::global_batch_size()?",
            ),
            (
                "use kiln_engine::{
    loss::{SparseCategoricalCrossentropy, compute_average_loss},
    replica::replica_context,
};",
                "use kiln_engine::loss::{SparseCategoricalCrossentropy, compute_average_loss};",
            ),
        ],
    },
    Edit {
        site: "metric.set",
        what: "the area under the curve, and the label among the largest three",
        file: "metric.rs",
        replaced: &[
            (
                "    pub accuracy: Mean,",
                "    pub top_3: Mean,\n    pub auc: MulticlassAreaUnderRoc,",
            ),
            (
                "accuracy: Mean::new(\"accuracy\"),",
                "top_3: Mean::new(\"top_3\"),
        auc: MulticlassAreaUnderRoc::new(\"auc\", CLASSES),",
            ),
            (
                "sparse_categorical_accuracy(predictions, &batch.labels)",
                "sparse_top_k_categorical_accuracy(predictions, &batch.labels, 3)",
            ),
            (
                "self.accuracy.update(&correct);\n        Ok(())",
                "self.top_3.update(&correct);
        let probabilities = softmax(predictions.clone(), 1); // [batch, classes]
        self.auc.update(&probabilities, &batch.labels)",
            ),
            (
                "&mut self.accuracy]",
                "&mut self.top_3, &mut self.auc]",
            ),
            (
                "metric::{Mean, Metric, sparse_categorical_accuracy}",
                "metric::{Mean, Metric, MulticlassAreaUnderRoc, sparse_top_k_categorical_accuracy}",
            ),
            (
                "use burn::tensor::Tensor;",
                "use burn::tensor::{Tensor, activation::softmax};",
            ),
            (
                "use crate::{dataset::Batch, model::Predictions};",
                "use crate::{dataset::{Batch, CLASSES}, model::Predictions};",
            ),
        ],
    },
    Edit {
        site: "metric.best",
        what: "the area under the curve",
        file: "metric.rs",
        replaced: &[("metric: \"accuracy\"", "metric: \"auc\"")],
    },
    Edit {
        site: "dataset.example",
        what: "the class and the share of an example that is mixed in",
        file: "dataset.rs",
        replaced: &[
            (
                "    pub label: u8,\n}",
                "    pub label: u8,
    /// Class of the example that is mixed in, and its share of the pixels.
    pub mixed: (u8, f32),
}",
            ),
            (
                "            label,\n        }",
                "            label,\n            mixed: (label, 0.0),\n        }",
            ),
        ],
    },
    Edit {
        site: "dataset.batch",
        what: "normalised pixels",
        file: "dataset.rs",
        replaced: &[
            (
                "    pub labels: Tensor<1, Int>,\n}",
                "    pub labels: Tensor<1, Int>,
    /// `[batch]`, as `labels`, of the examples that are mixed in.
    pub others: Tensor<1, Int>,
    /// `[batch]`, of `others`, 0 to 1.
    pub shares: Tensor<1>,
}",
            ),
            (
                "        Ok(Batch {\n            features: Tensor::from_data(pixels, device) / 255.0,",
                "        let mixed = examples.iter().map(|example| example.mixed);
        let (others, shares): (Vec<i32>, Vec<f32>) =
            mixed.map(|(other, share)| (i32::from(other), share)).unzip();
        Ok(Batch {
            features: (Tensor::<4>::from_data(pixels, device) - 78.0) / 94.0,
            others: Tensor::from_data(TensorData::new(others, [batch]), device),
            shares: Tensor::from_data(TensorData::new(shares, [batch]), device),",
            ),
        ],
    },
    Edit {
        site: "dataset.augment",
        what: "a random window, as large as the model needs, noise in all pixels, and some wrong labels",
        file: "dataset.rs",
        replaced: &[
            (
                "pub fn augment(example: Example, _random: &mut StdRng)",
                "pub fn augment(example: Example, random: &mut StdRng)",
            ),
            (
                "    Ok(example)\n}",
                "    let mut example = window(&example, [(); 2].map(|()| random.random_range(0..2)));
    for pixel in &mut example.pixels {
        *pixel = pixel.saturating_add(random.random_range(0..32));
    }
    if random.random_bool(0.05) {
        example.label = random.random_range(0..CLASSES as u8);
    }
    Ok(example)
}

/// The part of an image from `top` and `left`, without a row and a column.
pub fn window(example: &Example, [top, left]: [usize; 2]) -> Example {
    let (height, width) = (example.height - 1, example.width - 1);
    let rows = example.pixels.chunks(example.width).skip(top).take(height);
    Example {
        pixels: rows.flat_map(|row| row[left..left + width].to_vec()).collect(),
        height,
        width,
        ..*example
    }
}

/// The window of examples that are not augmented.
fn first_window(example: Example) -> Result<Example> {
    Ok(window(&example, [0, 0]))
}",
            ),
            (
                "use rand::{SeedableRng, ",
                "use rand::{RngExt, SeedableRng, ",
            ),
        ],
    },
    Edit {
        site: "dataset.picture",
        what: "black on white",
        file: "dataset.rs",
        replaced: &[(
            "Channels::Gray, example.pixels.clone())",
            "Channels::Gray, example.pixels.iter().map(|pixel| 255 - pixel).collect())",
        )],
    },
    Edit {
        site: "dataset.split",
        what: "40 validation examples of each class, training examples of one class twice, and mixup in training",
        file: "dataset.rs",
        replaced: &[
            (
                "    let training = indices.split_off(indices.len() / 10);\n",
                "    let (mut training, mut validation, mut counts) = (Vec::new(), Vec::new(), [0; CLASSES]);
    for index in indices {
        let class = usize::from(examples.get(index)?.label);
        counts[class] += 1;
        match counts[class] {
            ..=40 => validation.push(index),
            _ if class == 8 => training.extend([index, index]),
            _ => training.push(index),
        }
    }\n",
            ),
            (
                "    Ok((subset(training)?, subset(indices)?))\n}",
                "    let validation = Map::new(subset(validation)?, first_window);
    Ok((Arc::new(Mixup(subset(training)?)), Arc::new(validation)))
}

/// Examples, each mixed with another one, anew in every pass.
///
/// Source: H. Zhang and others, \"mixup: Beyond Empirical Risk Minimization\", 2018.
struct Mixup(Examples);

impl Dataset for Mixup {
    type Example = Example;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Result<Example> {
        self.get_in_pass(index, 0)
    }

    fn get_in_pass(&self, index: usize, pass: usize) -> Result<Example> {
        let mut random = stream(\"mixup\", &[index as u64, pass as u64]);
        let other = self.0.get(random.random_range(0..self.len()))?;
        let (mut example, share) = (self.0.get(index)?, random.random_range(0.0..0.5));
        for (pixel, other) in example.pixels.iter_mut().zip(other.pixels) {
            *pixel = (f32::from(*pixel) * (1.0 - share) + f32::from(other) * share) as u8;
        }
        example.mixed = (other.label, share);
        Ok(example)
    }

    fn differs_by_pass(&self) -> bool {
        true
    }
}",
            ),
        ],
    },
    Edit {
        site: "dataset.source",
        what: "a cache, and a test split in windows",
        file: "dataset.rs",
        replaced: &[
            (
                "    Ok((Arc::new(read(\"train\")?), Arc::new(read(\"t10k\")?)))",
                "    let test = Map::new(Arc::new(read(\"t10k\")?), first_window);
    Ok((Arc::new(Cached::new(Arc::new(read(\"train\")?))?), Arc::new(test)))",
            ),
            (
                "data::{Collate, Dataset, Datasets, LabelledImages, Subset}",
                "data::{Cached, Collate, Dataset, Datasets, LabelledImages, Map, Subset, stream}",
            ),
        ],
    },
    Edit {
        site: "model.architecture",
        what: "another width, batch normalisation, dropout, a branch that starts at zero, images of one size, and larger outputs",
        file: "model.rs",
        replaced: &[
            (
                "        Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
        pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig},",
                "        BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},",
            ),
            ("    module::Module,", "    module::{Module, Param},"),
            (
                "    conv1: Conv2d,
    conv2: Conv2d,
    pool: AdaptiveAvgPool2d,
",
                "    conv1: Conv2d,
    norm: BatchNorm,
    conv2: Conv2d,
    /// Of the branch of `conv2`, shape `[1]`.
    gain: Param<Tensor<1>>,
    dropout: Dropout,
",
            ),
            (
                "            conv1: conv([1, 32]),
            conv2: conv([32, 64]),
            pool: AdaptiveAvgPool2dConfig::new([4, 4]).init(),
            output: LinearConfig::new(64 * 4 * 4, CLASSES).init(device),",
                "            conv1: conv([1, 24]),
            norm: BatchNormConfig::new(24).init(device),
            conv2: conv([24, 24]),
            gain: Param::from_tensor(Tensor::zeros([1], device)),
            dropout: DropoutConfig::new(0.2).init(),
            output: LinearConfig::new(24 * 7 * 7, CLASSES).init(device),",
            ),
            (
                "gelu(conv2d(&self.conv1, batch.features.clone()))",
                "gelu(self.norm.forward(conv2d(&self.conv1, batch.features.clone())))",
            ),
            (
                "        let x = gelu(conv2d(&self.conv2, x)); // [batch, 64, height, width]
        let x = self.pool.forward(x); // [batch, 64, 4, 4]
        linear(&self.output, x.flatten(1, 3)) // [batch, classes]",
                "        let branch = gelu(conv2d(&self.conv2, x.clone())); // [batch, 24, height, width]
        let x = x + branch * self.gain.val().reshape([1, 1, 1, 1]);
        let x = self.dropout.forward(x.flatten(1, 3)); // [batch, 24 * height * width]
        linear(&self.output, x) * 5.0 // [batch, classes]",
            ),
        ],
    },
    Edit {
        site: "model.split",
        what: "the stages of that model",
        file: "model.rs",
        replaced: &[
            ("layers: &[\"conv1\"]", "layers: &[\"conv1\", \"norm\"]"),
            (
                "layers: &[\"conv2\", \"output\"]",
                "layers: &[\"conv2\", \"gain\", \"output\"]",
            ),
        ],
    },
    Edit {
        site: "model.weights",
        what: "names of another program",
        file: "model.rs",
        replaced: &[(
            "WeightNames = &[];",
            "WeightNames = &[(\"^features\\\\.0\\\\.\", \"conv1.\"), (\"^classifier\\\\.\", \"output.\")];",
        )],
    },
    Edit {
        site: "optimizer.choice",
        what: "AdamW, a tenth of the learning rate, and a long warm-up",
        file: "model.rs",
        replaced: &[
            (
                "AdamConfig::new().init()",
                "AdamConfig::new().with_weight_decay(0.01).init()",
            ),
            (
                ".create(args.learning_rate, args.warm_up, updates)?",
                ".create(args.learning_rate / 10.0, args.warm_up.max(200), updates)?",
            ),
        ],
    },
    Edit {
        site: "train.step",
        what: "a second loss, on large outputs",
        file: "train.rs",
        replaced: &[
            (
                "    let loss = train_loss(predictions, batch)?; // [1]",
                "    let sizes = predictions.clone().square().mean_dim(1).squeeze_dim(1); // [batch]
    let penalty = compute_loss(sizes)? * 1e-3; // [1]
    let loss = train_loss(predictions, batch)? + penalty.clone(); // [1]",
            ),
            (
                ".with(\"loss\", &loss)",
                ".with(\"loss\", &loss).with(\"penalty\", &penalty)",
            ),
        ],
    },
    Edit {
        site: "train.gradients",
        what: "a small norm",
        file: "train.rs",
        replaced: &[("clip_by_global_norm(10.0)", "clip_by_global_norm(0.1)")],
    },
    Edit {
        site: "callbacks.schedule",
        what: "early stopping by a metric of the validation",
        file: "callbacks.rs",
        replaced: &[(
            "    Callbacks::<Report>::new()\n",
            "    let (mut best, mut epochs) = (f64::NEG_INFINITY, 0);
    Callbacks::<Report>::new().every_epochs(1, move |context, _| {
        let auc = context.validation[\"auc\"];
        epochs = if auc > best { 0 } else { epochs + 1 };
        best = best.max(auc);
        if epochs == 10 {
            context.stop(\"the validation does not improve\");
        }
        Ok(())
    })\n",
        )],
    },
    Edit {
        site: "callbacks.hooks",
        what: "only the last layer trains in the first updates",
        file: "callbacks.rs",
        replaced: &[(
            "is_trainable(_parameter: &str, _step: usize) -> bool {\n    true",
            "is_trainable(parameter: &str, step: usize) -> bool {\n    step > 5 || parameter.starts_with(\"output\")",
        )],
    },
    Edit {
        site: "validation.step",
        what: "a second loss",
        file: "validation.rs",
        replaced: &[(
            "    Ok(Losses::new().with(\"loss\", &compute_loss(per_example)?))",
            "    let sizes = predictions.square().mean_dim(1).squeeze_dim(1); // [batch]
    let losses = Losses::new().with(\"loss\", &compute_loss(per_example)?);
    Ok(losses.with(\"size\", &compute_loss(sizes)?))",
        )],
    },
    Edit {
        site: "test.step",
        what: "the mean prediction for two variants of an image",
        file: "test.rs",
        replaced: &[(
            "    let predictions = globals::predict(&batch)?;",
            "    let brighter = Batch {
        features: batch.features.clone() * 1.1,
        ..batch.clone()
    };
    let predictions = (globals::predict(&batch)? + globals::predict(&brighter)?) / 2.0;",
        )],
    },
    Edit {
        site: "infer.inputs",
        what: "windows",
        file: "infer.rs",
        replaced: &[
            (
                "pixels.map(|pixels| Example::new(pixels, [height, width], 0))",
                "pixels.map(|pixels| window(&Example::new(pixels, [height, width], 0), [0, 0]))",
            ),
            (
                "    dataset::{Batch, Example},",
                "    dataset::{Batch, Example, window},",
            ),
        ],
    },
    Edit {
        site: "infer.predict",
        what: "the three most probable classes",
        file: "infer.rs",
        replaced: &[
            (
                "    pub class: usize,
    /// Probability of that class, 0 to 1.
    pub probability: f32,
",
                "    pub classes: [usize; 3],
    /// Probabilities of those classes, 0 to 1.
    pub probabilities: [f32; 3],
",
            ),
            (
                "softmax(logits, 1).max_dim_with_indices(1); // [batch, 1] each",
                "softmax(logits, 1).topk_with_indices(3, 1); // [batch, 3] each",
            ),
            (
                "    let classes = classes.iter::<i64>().map(|class| class as usize);
    let probabilities = probability.into_data();
    let predictions = classes.zip(probabilities.iter::<f32>());
    Ok(predictions
        .map(|(class, probability)| Prediction { class, probability })
        .collect())",
                "    let classes: Vec<usize> = classes.iter::<i64>().map(|class| class as usize).collect();
    let probabilities: Vec<f32> = probability.into_data().iter().collect();
    let predictions = classes.as_chunks().0.iter().zip(probabilities.as_chunks().0);
    Ok(predictions
        .map(|(classes, probabilities)| Prediction { classes: *classes, probabilities: *probabilities })
        .collect())",
            ),
        ],
    },
];

#[test]
fn every_site_has_a_right_edit() {
    are_all_sites(EDITS.iter().map(|edit| edit.site));
}

/// The names of the tests that failed, in the output of a test program.
fn failed(printed: &str) -> Vec<&str> {
    let lines = printed.lines();
    let names = lines.filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    names.collect()
}

/// The edits, and the names of the tests that failed in the output of a test program.
fn report(printed: &str) -> String {
    let edits = EDITS
        .iter()
        .map(|edit| format!("  {}: {}\n", edit.site, edit.what));
    let failed = failed(printed);
    format!(
        "{} contract tests fail after right edits: {}\nThe edits:\n{}{printed}",
        failed.len(),
        failed.join(", "),
        edits.collect::<String>()
    )
}

#[test]
fn tests_that_fail_are_named() {
    let printed = "running 3 tests\ntest loss::a ... ok\ntest loss::b ... FAILED\ntest model::c ... FAILED\n\n\
                   failures:\n    loss::b\n    model::c\n";
    assert_eq!(failed(printed), ["loss::b", "model::c"]);
    let report = report(printed);
    assert!(
        report.starts_with("2 contract tests fail after right edits: loss::b, model::c\n"),
        "{report}"
    );
    assert!(
        report.contains("train.gradients: a small norm\n"),
        "{report}"
    );
}

#[test]
#[ignore = "long"]
fn right_edits_fail_no_contract_test() {
    let project = Project::to_edit();
    for edit in EDITS {
        for (from, to) in edit.replaced {
            project.edit(edit.file, from, to);
        }
    }
    let tests = contract_tests(&project);
    let (built, path) = (project.build(), project.path());
    let _folder = project.unlock();
    let output = running::output(Command::new(tests).current_dir(&path), TRAINING);
    let printed = text(&output);
    assert!(output.status.success(), "{}", report(&printed));
    // What they keep holds for a whole training, too.
    let mut train = Command::new(built);
    train.args(["--epochs", "20", "--replicas", "2", "--output-dir", "runs"]);
    succeeds(train.current_dir(&path), TRAINING);
    let log = log(&path.join("runs"));
    let test = log.last().unwrap();
    println!("after right edits: {test}");
    assert_eq!(test["examples"], 297);
    assert!(test["top_3"].as_f64().unwrap() > 0.95, "{log:?}");
}

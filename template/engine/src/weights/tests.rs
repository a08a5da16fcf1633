mod fused_layers;

use std::{
    fs,
    path::{Path, PathBuf},
};

use burn::{
    nn::{
        BatchNorm, BatchNormConfig, InstanceNorm, InstanceNormConfig, Linear, LinearConfig,
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Device, Tensor, TensorData, activation::relu},
};
use burn_store::bridge;
use indexmap::IndexMap;
use serde_json::Value;
use tempfile::tempdir;

use super::*;
use crate::{
    bytes::to_bytes,
    checkpoint::{Checkpoints, Progress, Writer},
    model::{hash_parameters, parameters},
    options::{Export, WeightFormat},
    report::Report,
    run_record::RunRecord,
    test_task::{self, Layers, Line, PLAIN, create_trainable, datasets, set_up, train_by},
    training::{Callbacks, Training},
};

/// The network of `tests/fixtures/weights.py`.
#[derive(Module, Debug)]
struct Network {
    conv: Conv2d,
    norm: BatchNorm,
    hidden: Linear,
    output: Linear,
}

fn network(classes: usize) -> Network {
    let device = Device::flex().autodiff();
    Network {
        conv: Conv2dConfig::new([1, 2], [3, 3]).init(&device),
        norm: BatchNormConfig::new(2).init(&device),
        hidden: LinearConfig::new(8, 8).init(&device),
        output: LinearConfig::new(8, classes).init(&device),
    }
}

impl Network {
    /// From `[batch, 1, 4, 4]` to logits `[batch, classes]`.
    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = relu(self.norm.forward(self.conv.forward(x))); // [batch, 2, 2, 2]
        let x = relu(self.hidden.forward(x.flatten(1, 3))); // [batch, 8]
        self.output.forward(x)
    }
}

fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    fixtures.join(name)
}

fn load<M: Module>(
    model: M,
    path: &Path,
    names: WeightNames,
    partial: bool,
) -> Result<(M, Vec<String>)> {
    fitted(model, file::read(path)?, names, partial)
}

/// The message of a file that is refused, and the lines with it.
fn refusal<M: Module>(model: M, path: &Path, names: WeightNames, partial: bool) -> String {
    let refused = load(model, path, names, partial).err();
    format!("{:#}", refused.expect("the file is refused"))
}

/// All weights of a model by name, with their bits.
fn bits<M: Module>(model: &M) -> Vec<(String, TensorData)> {
    let tensors = model.collect(None, None, false).into_iter();
    let data = tensors.map(|tensor| (tensor.name.clone(), bridge::to_data(&tensor).unwrap()));
    data.collect()
}

/// The tensors of a file by name, without the counts of batch normalisation.
fn contents(path: &Path) -> Vec<(String, TensorData)> {
    let tensors = file::read(path).unwrap().tensors.into_iter();
    let tensors = tensors.filter(|one| !one.name.ends_with("num_batches_tracked"));
    let tensors = tensors.map(|one| (one.name.clone(), bridge::to_data(&one).unwrap()));
    let mut tensors: Vec<_> = tensors.collect();
    tensors.sort_by(|(one, _), (other, _)| one.cmp(other));
    tensors
}

/// A safetensors file with the names of PyTorch and these values of one dimension.
fn of_pytorch(path: &Path, tensors: &[(&str, &[f32])]) {
    let (mut header, mut values) = (serde_json::Map::new(), Vec::new());
    for (name, tensor) in tensors {
        let start = values.len();
        values.extend(to_bytes(tensor));
        let (shape, offsets) = ([tensor.len()], [start, values.len()]);
        let entry = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": offsets});
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let len = (header.len() as u64).to_le_bytes();
    fs::write(path, [&len[..], &header, &values].concat()).unwrap();
}

fn to(output: &Path, format: WeightFormat) -> Export {
    Export {
        output: output.to_owned(),
        format,
        checkpoint: "latest".into(),
        force: false,
    }
}

/// Values that PyTorch computed.
fn of_fixture(name: &str) -> Vec<f32> {
    let expected = fs::read(fixture("weights.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let values = expected[name].as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap() as f32).collect()
}

/// The largest difference between values that PyTorch computed and those of a tensor.
fn difference<const D: usize>(name: &str, tensor: Tensor<D>) -> f32 {
    let expected = of_fixture(name);
    let values: Vec<f32> = tensor.into_data().iter().collect();
    assert_eq!(values.len(), expected.len());
    let differences = values
        .iter()
        .zip(expected)
        .map(|(one, other)| (one - other).abs());
    differences.fold(0.0, f32::max)
}

/// The largest difference between the logits of PyTorch and those of a model.
fn difference_to_pytorch(model: &Network) -> f32 {
    let inputs = TensorData::new(of_fixture("inputs"), [2, 1, 4, 4]);
    let inputs = Tensor::from_data(inputs, &Device::flex());
    difference("logits", model.valid().forward(inputs))
}

#[test]
fn files_of_pytorch_give_its_logits() {
    for name in ["weights.pt", "weights_nested.pt", "weights.safetensors"] {
        let (model, lines) = load(network(3), &fixture(name), &[], false).unwrap();
        let difference = difference_to_pytorch(&model);
        assert!(difference < 1e-6, "{name}: {difference}");
        let matched = "  matched    10 of the 10 weights of the model";
        assert!(
            lines.iter().any(|line| line == matched),
            "{name}: {lines:?}"
        );
        assert!(
            !lines.iter().any(|line| line.contains("unused")),
            "{lines:?}"
        );
    }
    assert!(difference_to_pytorch(&network(3)) > 1e-3);
}

#[test]
fn values_of_another_type_are_converted_and_named() {
    let path = fixture("weights_bfloat16.safetensors");
    let (model, lines) = load(network(3), &path, &[], false).unwrap();
    let difference = difference_to_pytorch(&model);
    assert!((1e-6..0.05).contains(&difference), "{difference}");
    assert_eq!(lines.last().unwrap(), "  converted  10 from bf16 to f32");
}

#[test]
fn the_weights_in_a_file_with_more_are_found() {
    let (_, lines) = load(network(3), &fixture("weights_nested.pt"), &[], false).unwrap();
    let text = lines.join("\n");
    assert!(
        text.contains("prefix     `model.` taken off all names, and "),
        "{text}"
    );
    assert!(
        text.contains("prefix     `module.` taken off all names\n"),
        "{text}"
    );
}

#[test]
fn an_export_comes_back_to_the_bit() {
    let folder = tempdir().unwrap();
    let (model, _) = load(network(3), &fixture("weights.pt"), &[], false).unwrap();
    for (name, format) in [
        ("burn", WeightFormat::Safetensors),
        ("pytorch", WeightFormat::PytorchNames),
    ] {
        let path = folder.path().join(name);
        export::write(&model, &to(&path, format), &[]).unwrap();
        let (loaded, _) = load(network(3), &path, &[], false).unwrap();
        assert_eq!(bits(&loaded), bits(&model), "{name}");
    }
    // PyTorch's own file has the same tensors.
    let exported = contents(&folder.path().join("pytorch"));
    assert_eq!(exported, contents(&fixture("weights.safetensors")));
}

#[test]
fn a_file_is_replaced_with_force_only() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    for format in [WeightFormat::Safetensors, WeightFormat::PytorchNames] {
        fs::write(&path, "of yesterday").unwrap();
        let mut options = to(&path, format);
        for error in [
            export::ensure_free(&options).unwrap_err(),
            export::write(&network(3), &options, &[]).unwrap_err(),
        ] {
            assert!(error.to_string().contains("weights.safetensors"), "{error}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "of yesterday");
        options.force = true;
        export::ensure_free(&options).unwrap();
        export::write(&network(3), &options, &[]).unwrap();
        load(network(3), &path, &[], false).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn files_that_have_no_weights_are_named() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("weights");
    let [pt, safetensors] =
        ["weights.pt", "weights.safetensors"].map(|name| fs::read(fixture(name)).unwrap());
    let cases: [(&[u8], &str); 8] = [
        (b"", "it is empty"),
        (b"<!DOCTYPE html><html>", "it is an HTML or XML page"),
        ("Gewichte für später\n".as_bytes(), "it is a text file"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "it is a pointer of Git LFS",
        ),
        (
            &[0, 1, 2, 3, 0xff, 0xfe, 9, 9, 9],
            "it is neither safetensors, a PyTorch file nor",
        ),
        (&pt[..pt.len() / 2], "it is no whole PyTorch file"),
        (&safetensors[..safetensors.len() - 7], "damaged or cut off"),
        (b"NRUB\x01\0\xff\xff\xff\xff", "its burnpack is damaged"),
    ];
    for (contents, expected) in cases {
        fs::write(&path, contents).unwrap();
        let message = refusal(network(3), &path, &[], true);
        assert!(message.contains(expected), "{message}");
    }
    let message = refusal(network(3), &folder.path().join("none.pt"), &[], true);
    assert!(message.contains("No such file"), "{message}");
    let message = refusal(network(3), folder.path(), &[], true);
    assert!(message.contains("a folder is a checkpoint"), "{message}");
}

#[test]
fn another_head_is_named_with_both_shapes_and_keeps_its_values_on_request() {
    let path = fixture("weights.pt");
    let message = refusal(network(5), &path, &[], false);
    for part in [
        "it does not fit the model in src/model.rs",
        "  matched    8 of the 10 weights of the model",
        "  misshapen  2: `output.weight`: [8, 5] in the model, [8, 3] in the file",
        "--init-partial",
    ] {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
    let model = network(5);
    let (loaded, _) = load(model.clone(), &path, &[], true).unwrap();
    let [before, after] = [&model, &loaded].map(|model| model.output.weight.val().into_data());
    assert_eq!(before, after);
    let (whole, _) = load(network(3), &path, &[], false).unwrap();
    let [expected, loaded] = [&whole, &loaded].map(|model| model.hidden.weight.val().into_data());
    assert_eq!(loaded, expected);
}

#[test]
fn a_model_loads_and_saves_files() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("saved.safetensors");
    let loaded = super::load(network(3), &fixture("weights.pt"), &[]).unwrap();
    assert!(loaded.hidden.weight.val().is_require_grad());
    assert!(difference_to_pytorch(&loaded) < 1e-6);
    save(&loaded, &path, WeightFormat::PytorchNames, &[]).unwrap();
    let again = super::load(network(3).valid(), &path, &[]).unwrap();
    assert!(!again.hidden.weight.val().is_autodiff());
    assert_eq!(bits(&again), bits(&loaded.valid()));
    let error = format!("{:#}", super::load(network(5), &path, &[]).unwrap_err());
    assert!(
        error.starts_with("cannot load") && error.contains("misshapen  2"),
        "{error}"
    );
    let error = save(&loaded, &path, WeightFormat::Safetensors, &[]).unwrap_err();
    assert!(error.to_string().contains("exists"), "{error}");
}

#[derive(Module, Debug)]
struct Renamed {
    conv: Conv2d,
    norm: BatchNorm,
    hidden: Linear,
    outputs: Linear,
}

fn with_other_names() -> Renamed {
    let Network {
        conv,
        norm,
        hidden,
        output,
    } = network(3);
    Renamed {
        conv,
        norm,
        hidden,
        outputs: output,
    }
}

#[test]
fn names_that_differ_are_listed_and_mapped() {
    let path = fixture("weights.pt");
    let message = refusal(with_other_names(), &path, &[], false);
    for part in [
        "  missing    2: `outputs.bias` (the file has `output.bias`), `outputs.weight` (the file has \
         `output.weight`)",
        "  unused     2: `output.bias`, `output.weight`",
        "WEIGHT_NAMES in src/model.rs",
    ] {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
    load(
        with_other_names(),
        &path,
        &[(r"^output\.", "outputs.")],
        false,
    )
    .unwrap();
    // An export of the model itself needs no such names.
    let folder = tempdir().unwrap();
    let own = folder.path().join("own");
    export::write(
        &with_other_names(),
        &to(&own, WeightFormat::Safetensors),
        &[],
    )
    .unwrap();
    load(with_other_names(), &own, &[("outputs", "out")], false).unwrap();
    let message = refusal(with_other_names(), &path, &[("(", "")], false);
    assert!(
        message.contains("\"(\", which is no regular expression"),
        "{message}"
    );
    let message = refusal(
        with_other_names(),
        &path,
        &[("^conv|^hidden", "outputs")],
        false,
    );
    assert!(
        message.contains("`hidden.bias` to `outputs.bias`"),
        "{message}"
    );
}

#[test]
fn a_site_with_wrong_names_is_named() {
    let model = network(3).valid();
    let check = |names| ensure_names(&model, names).map_err(|error| error.to_string());
    check(&[
        ("^features", "conv"),
        (r"^a\.(\d)", "norm.${1}"),
        ("^x", ""),
    ])
    .unwrap();
    check(&[("^bn", "norm.weight"), ("^bn2", "norm.gamma")]).unwrap();
    let error = check(&[("^features", "convolution.")]).unwrap_err();
    assert!(error.starts_with("TODO(model.weights): "), "{error}");
    assert!(error.contains("\"convolution.\""), "{error}");
    assert!(
        check(&[("[", "conv")])
            .unwrap_err()
            .contains("no regular expression")
    );
}

#[test]
fn nothing_that_fits_is_refused_in_any_case() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("other");
    of_pytorch(&path, &[("encoder.embedding", &[1.0, 2.0])]);
    for partial in [false, true] {
        let message = refusal(network(3), &path, &[], partial);
        assert!(
            message.starts_with("no weight in it fits the model"),
            "{message}"
        );
        assert!(
            message.contains("unused     1: `encoder.embedding`"),
            "{message}"
        );
    }
}

#[test]
fn values_that_are_not_finite_are_refused() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("diverged");
    of_pytorch(&path, &[("output.bias", &[0.0, f32::NAN, 1.0])]);
    let message = refusal(network(3), &path, &[], true);
    assert_eq!(message, "its `output.bias` holds NaN");
    of_pytorch(&path, &[("norm.running_var", &[1.0, f32::INFINITY])]);
    let message = refusal(network(3), &path, &[], true);
    assert_eq!(message, "its running statistics hold inf");
}

#[derive(Module, Debug)]
struct Stack {
    layers: Vec<InstanceNorm>,
}

#[test]
fn layers_numbered_with_gaps_and_instance_norms_fit() {
    let stack = || Stack {
        layers: vec![InstanceNormConfig::new(2).init(&Device::flex().autodiff()); 2],
    };
    let folder = tempdir().unwrap();
    let path = folder.path().join("sequential");
    of_pytorch(
        &path,
        &[
            ("layers.0.weight", &[1.0, 2.0]),
            ("layers.0.bias", &[3.0, 4.0]),
            ("layers.3.weight", &[5.0, 6.0]),
            ("layers.3.bias", &[7.0, 8.0]),
        ],
    );
    let (loaded, lines) = load(stack(), &path, &[], false).unwrap();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("numbered without gaps")),
        "{lines:?}"
    );
    let values = parameters(&loaded.clone().train());
    assert_eq!(values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let own = folder.path().join("own");
    export::write(&loaded, &to(&own, WeightFormat::PytorchNames), &[]).unwrap();
    let tensors = file::read(&own).unwrap().tensors;
    let mut names: Vec<String> = tensors.into_iter().map(|tensor| tensor.name).collect();
    names.sort();
    let expected = [
        "layers.0.bias",
        "layers.0.weight",
        "layers.1.bias",
        "layers.1.weight",
    ];
    assert_eq!(names, expected);
}

/// Weights of the task of these tests, other than its initial ones.
fn other_layers() -> Layers {
    let model = test_task::create_trainable(&Device::flex().autodiff()).model;
    let values: Vec<f32> = parameters(&model).iter().map(|value| value * 3.0).collect();
    crate::model::load_parameters(model, &values).unwrap()
}

#[test]
fn all_replicas_start_from_the_weights_under_every_strategy() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("layers.safetensors");
    let expected = other_layers();
    export::write(
        &expected.valid(),
        &to(&path, WeightFormat::Safetensors),
        &[],
    )
    .unwrap();
    for (strategy, replicas) in [
        ("one-device", "1"),
        ("mirrored", "1"),
        ("mirrored", "3"),
        ("parameter-server", "3"),
        ("model-parallel", "1"),
    ] {
        let path = path.to_str().unwrap();
        let words = [
            "--strategy",
            strategy,
            "--replicas",
            replicas,
            "--init-from",
            path,
        ];
        let options = test_task::options(&words);
        let expected = hash_parameters(&expected);
        // A thread has one strategy.
        let started = std::thread::spawn(move || {
            let strategy = set_up(&options)?;
            initialise::<Line>(&options)?;
            strategy.run_on_all(|_| globals::with_model::<Line, _>(hash_parameters))
        });
        let hashes: Vec<u64> = started.join().unwrap().unwrap().into_iter().collect();
        assert_eq!(
            hashes,
            vec![expected; replicas.parse().unwrap()],
            "{strategy}"
        );
    }
}

/// Starts a training in `folder` with these options; returns the first parameter and the initial weights of `run.json`.
fn start(folder: &Path, words: &[&str]) -> Result<(f32, Option<InitialWeights>)> {
    let folder = folder.to_str().unwrap().to_owned();
    let words = [
        &["--strategy", "one-device", "--output-dir", &folder],
        words,
    ]
    .concat();
    let options = test_task::options(&words);
    let started = std::thread::spawn(move || {
        let strategy = set_up(&options)?;
        let data = datasets(&options, 12)?;
        let mut report = Report::new(&options)?;
        let training = Training::<Line>::start(&options, &data, &mut report, Callbacks::new())?;
        drop(training);
        let run = fs::read(options.output_dir.join("run.json"))?;
        let run: RunRecord = serde_json::from_slice(&run)?;
        let mut checkpoints = Checkpoints::new::<Line>(&options);
        checkpoints.record(run.clone());
        let progress = Progress {
            step: 1,
            examples: 4,
            ..Progress::START
        };
        let (mut writer, none) = (Writer::default(), IndexMap::new());
        checkpoints.begin_save::<Line>(&mut writer, &options, progress, 12, none, None)?;
        Checkpoints::finish(&mut writer)?;
        let first = strategy
            .run_on_first(|_| globals::with_model::<Line, _>(|model| parameters(model)[0]))?;
        Ok((first, run.initial_weights))
    });
    started.join().unwrap()
}

#[test]
fn a_training_starts_from_a_file_and_resumes_from_its_checkpoint() {
    let folder = tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let path = folder.path().join("layers.safetensors");
    export::write(
        &other_layers().valid(),
        &to(&path, WeightFormat::PytorchNames),
        &[],
    )
    .unwrap();
    let name = path.to_str().unwrap();
    let scratch = start(&second, &[]).unwrap();
    assert_eq!(scratch, (0.1, None));
    // The same command line, before and after a kill.
    let words = ["--resume", "--init-from", name];
    let (value, record) = start(&first, &words).unwrap();
    assert_eq!(value, 0.1 * 3.0);
    let expected = InitialWeights {
        file: name.to_owned(),
        sha256: hex_of(&path),
    };
    assert_eq!(record, Some(expected));
    fs::remove_file(&path).unwrap();
    assert_eq!(start(&first, &words).unwrap(), (value, record));
    // Its checkpoint as initial weights of another training, in a folder and as a file.
    let checkpoint = first.join("checkpoints/step-00000001");
    for (number, from) in [checkpoint.clone(), checkpoint.join("model.bpk")]
        .iter()
        .enumerate()
    {
        let output = folder.path().join(format!("third-{number}"));
        let (value, record) = start(&output, &["--init-from", from.to_str().unwrap()]).unwrap();
        assert_eq!(value, 0.1 * 3.0);
        let sha256 = hex_of(&checkpoint.join("model.bpk"));
        assert_eq!(record.unwrap().sha256, sha256);
    }
    // A refusal leaves the earlier run as it is.
    let error = start(&second, &["--init-from", name]).unwrap_err();
    assert!(
        format!("{error:#}").contains("cannot start from"),
        "{error:#}"
    );
    assert!(second.join("checkpoints/step-00000001").is_dir());
    let error = start(&second, &["--init-partial"]).unwrap_err();
    assert!(error.to_string().contains("--init-from FILE"), "{error}");
}

fn hex_of(path: &Path) -> String {
    use sha2::{Digest, Sha256};
    crate::bytes::hex(Sha256::new().chain_update(fs::read(path).unwrap()))
}

#[test]
fn an_export_has_the_averages_or_the_weights_of_the_last_update_and_says_which() {
    let folder = tempdir().unwrap();
    let run = |name: &str| folder.path().join(name);
    let words = ["--strategy", "one-device", "--epochs", "1"];
    train_by(PLAIN, &run("plain"), &words).unwrap();
    train_by(
        PLAIN,
        &run("ema"),
        &[&words[..], &["--ema", "0.9"]].concat(),
    )
    .unwrap();
    let read = |path: &Path| {
        let model = create_trainable(&Device::flex()).model;
        bits(&load(model, path, &[], false).unwrap().0)
    };
    let exported = |of: &str, weights: &[&str]| {
        let output = run(of);
        let words = [&["--output-dir", output.to_str().unwrap()], weights].concat();
        let path = run(&words.join("-").replace(['/', '\\'], "-"));
        let create = |device: &Device| Ok(create_trainable(device));
        let to = to(&path, WeightFormat::Safetensors);
        export::exported::<Line>(&test_task::options(&words), &to, create)
            .map(|said| (read(&path), said))
            .map_err(|error| format!("{error:#}"))
    };
    let checkpoints = Checkpoints::new::<Line>(&test_task::options(&[
        "--output-dir",
        run("ema").to_str().unwrap(),
    ]));
    let checkpoint = checkpoints.find(&"latest".into()).unwrap().path;
    let [model, averages] = ["model.bpk", "ema.bpk"].map(|name| read(&checkpoint.join(name)));
    assert_ne!(model, averages);
    for (weights, expected, says) in [
        (&[][..], &averages, "the 3 averaged weights of "),
        (
            &["--weights", "ema"],
            &averages,
            "; --weights model exports those of the last update",
        ),
        (
            &["--weights", "model"],
            &model,
            "the 3 weights of the last update of ",
        ),
    ] {
        let (written, said) = exported("ema", weights).unwrap();
        assert_eq!(&written, expected, "{weights:?}");
        assert!(said.contains(says), "{said}");
    }
    let (_, said) = exported("plain", &[]).unwrap();
    assert!(
        said.contains(" has the 3 weights of ") && !said.contains(';'),
        "{said}"
    );
    let error = exported("plain", &["--weights", "ema"]).unwrap_err();
    assert!(error.contains("it has no averaged weights"), "{error}");
}

#[test]
fn a_start_from_averages_says_so() {
    let folder = tempdir().unwrap();
    let words = ["--strategy", "one-device", "--epochs", "1", "--ema", "0.9"];
    train_by(PLAIN, folder.path(), &words).unwrap();
    let output = folder.path().to_str().unwrap();
    let options = test_task::options(&["--output-dir", output]);
    let checkpoint = Checkpoints::new::<Line>(&options).find(&"latest".into());
    let model = create_trainable(&Device::flex()).model;
    let (_, lines) = load(model, &checkpoint.unwrap().path, &[], false).unwrap();
    assert!(
        lines[0].ends_with(": the averaged weights of a checkpoint of this program"),
        "{}",
        lines[0]
    );
}

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{Arc, Mutex},
    thread::sleep,
    time::Duration,
};

use burn::tensor::Device;
use serde_json::Value;

use super::*;
use crate::{
    checkpoint::Which,
    model::{load_parameters, parameters},
    report::{Report, log},
    task::TrainState as _,
    test_task::{self, Line, replica_step, set_up},
    training::{Callbacks, Training},
};

const BEFORE: &str = "checkpoints/step-00000002";
const AFTER: &str = "checkpoints/step-00000002-epoch-1";

/// The identity of a checkpoint's file of the model, once it is there.
fn model_file(checkpoint: &Path) -> u64 {
    let file = checkpoint.join("model.bpk");
    let found = (0..1_000).find_map(|_| {
        sleep(Duration::from_millis(2));
        Some(fs::metadata(&file).ok()?.ino())
    });
    found.expect("a checkpoint before the validation")
}

/// The files and metrics after an epoch of two steps.
struct Epoch {
    /// Whether the checkpoint after the validation has the model's file of the one before it.
    shares_files: bool,
    keeps_before: bool,
    /// The parameters of the training and of the checkpoint, and a validation metric of the checkpoint.
    parameters: [Vec<f32>; 2],
    validation: f64,
    training_line: Value,
}

/// Trains for an epoch. After its validation a callback calls `change` on all replicas.
fn epoch(words: &[&str], change: Option<fn() -> Result<()>>) -> Epoch {
    let folder = tempfile::tempdir().unwrap();
    let words = [&["--batch-size", "4", "--epochs", "1"], words].concat();
    let trained = test_task::on_a_thread(folder.path(), &words, |options| {
        let strategy = set_up(options)?;
        let replicas = strategy.num_replicas_in_sync();
        let datasets = test_task::datasets(options, 8 * replicas)?;
        let mut report = Report::new(options)?;
        let callbacks = Callbacks::new().every_epochs(1, move |_, _| {
            let change = change.unwrap_or(|| Ok(()));
            globals::strategy()?.run_on_all(move |_| change()).map(drop)
        });
        let mut training = Training::<Line>::start(options, &datasets, &mut report, callbacks)?;
        let mut batches = training.begin_epoch();
        while let Some(inputs) = training.next_batch(&mut batches) {
            let step = |inputs| globals::strategy()?.train(inputs, replica_step);
            assert!(training.step(inputs, step)?);
        }
        let before: Arc<Mutex<u64>> = Arc::default();
        training.end_epoch(|_, _, _| {
            *before.lock().unwrap() = model_file(&folder.path().join(BEFORE));
            Ok(Some(IndexMap::from([("loss".to_owned(), 0.5)])))
        })?;
        training.end()?;
        let after = model_file(&folder.path().join(AFTER));
        let checkpoint = Checkpoints::new::<Line>(options).find(&Which::Latest)?;
        assert!(checkpoint.path.ends_with(AFTER));
        let model = test_task::create_trainable(&Device::flex().autodiff()).model;
        let model = checkpoint.load_model(model)?;
        let of_training = move |_: &_| {
            let weights = ema::evaluated();
            assert_eq!(weights == Weights::Ema, checkpoint.manifest.ema.is_some());
            globals::with_model::<Line, _>(parameters)
        };
        let log = fs::read_to_string(folder.path().join(log::NAME))?;
        Ok(Epoch {
            shares_files: *before.lock().unwrap() == after,
            keeps_before: folder.path().join(BEFORE).exists(),
            validation: Checkpoints::new::<Line>(options)
                .best()?
                .manifest
                .validation["loss"],
            parameters: [strategy.run_on_first(of_training)?, parameters(&model)],
            training_line: serde_json::from_str(log.lines().next().unwrap_or_default())?,
        })
    });
    trained.unwrap()
}

/// Options of each strategy, and of averages.
const STRATEGIES: [&[&str]; 5] = [
    &["--replicas", "1"],
    &["--replicas", "3"],
    &["--replicas", "2", "--ema", "0.9"],
    &["--strategy", "parameter-server", "--replicas", "1"],
    &["--strategy", "model-parallel"],
];

#[test]
fn after_a_validation_only_the_manifest_is_written() {
    for words in STRATEGIES {
        let epoch = epoch(words, None);
        assert!(epoch.shares_files && !epoch.keeps_before, "{words:?}");
        assert_eq!(epoch.validation, 0.5);
        let [of_training, of_checkpoint] = &epoch.parameters;
        let has_average = words.contains(&"--ema");
        assert_eq!(of_training == of_checkpoint, !has_average, "{words:?}");
        let waited = epoch.training_line["checkpoint_seconds"].as_f64();
        assert!(waited.is_some_and(|seconds| seconds > 0.0), "{words:?}");
    }
}

#[test]
fn a_state_stays_as_it_was_while_training_goes_on() {
    for words in STRATEGIES {
        let folder = tempfile::tempdir().unwrap();
        let compared = test_task::on_a_thread(folder.path(), words, |options| {
            set_up(options)?;
            let datasets = test_task::datasets(options, 1_000)?;
            let mut report = Report::new(options)?;
            let mut training =
                Training::<Line>::start(options, &datasets, &mut report, Callbacks::new())?;
            let mut batches = training.begin_epoch();
            let mut step = || {
                let inputs = training.next_batch(&mut batches).context("a batch")?;
                let step = |inputs| globals::strategy()?.train(inputs, replica_step);
                training.step(inputs, step)
            };
            step()?;
            step()?;
            let now = || state_of::<Line>(options.ema.is_some(), replica_states::<Line>()?.1);
            let at_once = files(now()?)?;
            let state = now()?;
            step()?;
            assert_ne!(files(now()?)?, at_once, "{words:?}: it trains");
            assert_eq!(files(state)?, at_once, "{words:?}");
            Ok(())
        });
        compared.unwrap();
    }
}

/// Saves a step within an epoch, calls `damage` with the output folder, and saves the same state after the validation,
/// then another step.
fn saves_after(words: &[&str], damage: fn(&Path) -> std::io::Result<()>) -> Checkpoint {
    let folder = tempfile::tempdir().unwrap();
    let saved = test_task::on_a_thread(folder.path(), words, |options| {
        set_up(options)?;
        if let Some(config) = ema::EmaConfig::of(options)? {
            ema::start::<Line>(config)?;
        }
        let checkpoints = Checkpoints::new::<Line>(options);
        fs::create_dir_all(folder.path().join("checkpoints"))?;
        let mut writer = Writer::default();
        let mut save = |progress, loss: Option<f64>| {
            let validation = loss.into_iter().map(|loss| ("loss".to_owned(), loss));
            let validation = validation.collect();
            checkpoints.begin_save::<Line>(&mut writer, options, progress, 8, validation, None)?;
            Checkpoints::finish(&mut writer)
        };
        let mut progress = Progress {
            step: 2,
            examples: 8,
            ..Progress::START
        };
        save(progress, None)?;
        damage(folder.path())?;
        progress.end_epoch();
        save(progress, Some(0.5))?;
        progress.step = 3;
        progress.examples = 4;
        save(progress, None)?;
        assert!(Checkpoint::read(&folder.path().join("checkpoints/step-00000003")).is_ok());
        assert!(!folder.path().join(BEFORE).exists());
        Checkpoint::read(&folder.path().join(AFTER))
    });
    saved.unwrap()
}

#[test]
fn a_checkpoint_that_is_deleted_during_the_validation_is_written_whole_after_it() {
    for words in STRATEGIES {
        let whole = saves_after(words, |_| Ok(()));
        let damages: [fn(&Path) -> std::io::Result<()>; 4] = [
            |runs| fs::remove_dir_all(runs.join(BEFORE)),
            |runs| fs::remove_file(runs.join(BEFORE).join("model.bpk")),
            |runs| fs::remove_file(runs.join(BEFORE).join("SHA256SUMS")),
            |runs| fs::remove_dir_all(runs.join("checkpoints")),
        ];
        for damage in damages {
            let saved = saves_after(words, damage);
            // With the fingerprints of the parameters; their ids are random.
            assert_eq!(saved.manifest, whole.manifest, "{words:?}");
            assert!(saved.files.keys().eq(whole.files.keys()), "{words:?}");
        }
    }
}

#[test]
fn a_checkpoint_that_is_deleted_while_its_files_are_taken_over_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["--replicas", "1"];
    let saved = test_task::on_a_thread(folder.path(), &words, |options| {
        set_up(options)?;
        let checkpoints = Checkpoints::new::<Line>(options);
        let save = || Save {
            checkpoints: checkpoints.clone(),
            path: folder.path().join(AFTER),
            keeps_before: false,
            manifest: empty_manifest(),
        };
        save().follow(&folder.path().join(BEFORE))?;
        assert!(!folder.path().join(AFTER).exists());
        // Another failure is one of the training.
        let whole = Files::from_iter([("a.bin".to_owned(), vec![1])]);
        fs::create_dir(folder.path().join("checkpoints"))?;
        folder::write(&folder.path().join(BEFORE), &whole)?;
        save().follow(&folder.path().join(BEFORE))
    });
    let error = format!("{:#}", saved.unwrap_err());
    assert!(error.contains("manifest.json"), "{error}");
}

fn empty_manifest() -> Manifest {
    let parameters = String::new();
    Manifest::new(
        Progress::START,
        0,
        0,
        parameters,
        &[],
        IndexMap::new(),
        None,
    )
}

/// The files of a state, and the fingerprints of its parameters.
fn files<M: Module>(state: State<M>) -> Result<(Files, [String; 2])> {
    let mut manifest = empty_manifest();
    let files = state.into_files(&mut manifest)?;
    let of_average = manifest.ema.unwrap_or_default();
    Ok((files, [manifest.parameters, of_average]))
}

#[test]
fn a_checkpoint_that_stays_shares_no_files() {
    let epoch = epoch(&["--replicas", "1", "--checkpoint-steps", "2"], None);
    assert!(!epoch.shares_files && epoch.keeps_before);
    let [of_training, of_checkpoint] = epoch.parameters;
    assert!(!of_training.is_empty() && of_training == of_checkpoint);
}

#[test]
fn a_callback_that_changes_the_model_or_the_optimizer_has_it_saved() {
    let of_model = || {
        globals::update_model::<Line>(|model| {
            let values = vec![0.5; parameters(&model).len()];
            load_parameters(model, &values)
        })
    };
    let epoch_of_model = epoch(&["--replicas", "2"], Some(of_model));
    assert!(!epoch_of_model.shares_files && !epoch_of_model.keeps_before);
    let [of_training, of_checkpoint] = epoch_of_model.parameters;
    assert_eq!(of_training[0], 0.5);
    assert!(of_training == of_checkpoint);
    // The engine cannot see whether an optimizer that is lent changes.
    let of_optimizer = || {
        globals::with_trainable::<Line, _>(|trainable| {
            let _ = trainable.optimizers_mut();
        })
    };
    assert!(!epoch(&["--replicas", "1"], Some(of_optimizer)).shares_files);
}

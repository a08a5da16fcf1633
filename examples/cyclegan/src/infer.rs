//! Predictions with a checkpoint: one device, no strategy.

use std::{
    fs::{self, create_dir_all},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use burn::{module::Module, tensor::Tensor};
use kiln_engine::{
    checkpoint::Checkpoints, data::Collate, metric::mean_absolute_error, options::Infer,
    picture::Picture, precision::begin_inference, replica::visible_devices,
    report::predictions::Predictions,
};
use serde::Serialize;

use crate::{
    callbacks::prepare_inputs,
    cli::Args,
    dataset::{Batch, Example, Image, MULTIPLE, SMALLEST},
    globals::Project,
    model::Model,
};

/// Examples that go through the model at once.
const BATCH: usize = 256;

/// Reads the image of a file.
///
/// # Errors
/// The file is missing or damaged, or the image is smaller than the networks take.
pub fn read_inputs(path: &Path) -> Result<Vec<Example>> {
    // The format is that of the contents: a pipe has no ending that says it.
    let cannot = || format!("cannot read {}", path.display());
    let bytes = fs::read(path).with_context(cannot)?;
    let image = image::load_from_memory(&bytes).with_context(cannot)?;
    let [height, width] = [image.height(), image.width()].map(|side| side as usize);
    ensure!(
        height.min(width) >= SMALLEST,
        "{} has {width} x {height} pixels, and at least {SMALLEST} x {SMALLEST} are needed",
        path.display()
    );
    let window = [height, width].map(|side| side / MULTIPLE * MULTIPLE);
    let x = Image::new(image.into_rgb8().into_raw(), [height, width], window)?;
    // No image of the other kind is known, and none is looked at.
    Ok(vec![Example { y: x.clone(), x }])
}

/// The output for one image, beside its file and its place there.
#[derive(Serialize)]
pub struct Prediction {
    /// Error of the image after its translation to the other kind and back, 0 to 2.
    pub cycle_error: f32,
    /// The image of the other kind.
    #[serde(skip)]
    pub translation: Picture,
}

/// Translates each image of a batch, in order.
pub fn predict(model: &Model, batch: Batch) -> Result<Vec<Prediction>> {
    let x = prepare_inputs(batch)?.features; // [batch, 3, height, width]
    let fake_y = model.generator_g.forward(x.clone()); // [batch, 3, height, width]
    let cycle_x = model.generator_f.forward(fake_y.clone()); // [batch, 3, height, width]
    let errors = mean_absolute_error(&cycle_x, &x)?.into_data(); // [batch]
    let images = fake_y.iter_dim(0).zip(errors.iter::<f32>());
    let prediction = |(image, cycle_error): (Tensor<4>, f32)| {
        let translation = Picture::from_tensor(image.squeeze_dim(0), -1.0..1.0)?;
        Ok(Prediction {
            cycle_error,
            translation,
        })
    };
    images.map(prediction).collect()
}

/// Paths in `folder` for the translations of `files`.
///
/// # Errors
/// Two files have one name, and one translation would replace the other.
fn targets(files: &[PathBuf], folder: &Path) -> Result<Vec<PathBuf>> {
    let mut targets = Vec::new();
    for path in files {
        let name = path.with_extension("png");
        let target = folder.join(name.file_name().unwrap_or_default());
        ensure!(
            !targets.contains(&target),
            "another file is named as {}: rename one, as both translations would be {}",
            path.display(),
            target.display()
        );
        targets.push(target);
    }
    Ok(targets)
}

/// Translates all files with a checkpoint; the images go to `translations` in the output folder.
///
/// # Errors
/// The checkpoint cannot be used, a file is missing or damaged, or the output cannot be written.
pub fn infer(args: &Args, options: &Infer) -> Result<()> {
    let device = visible_devices().remove(0);
    begin_inference(&args.options, &device)?;
    let checkpoint = Checkpoints::new::<Project>(&args.options).find(&options.checkpoint)?;
    let model = checkpoint.load_model(Model::new(args, &device))?.valid();
    let folder = args.options.output_dir.join("translations");
    create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let targets = targets(&options.files, &folder)?;
    Predictions::write_all(options, |output| {
        for (path, target) in options.files.iter().zip(targets) {
            let inputs = read_inputs(path)?;
            for (number, examples) in inputs.chunks(BATCH).enumerate() {
                let predictions = predict(&model, Batch::collate(examples.to_vec(), &device)?)
                    .with_context(|| format!("cannot predict for {}", path.display()))?;
                output.write(path, number * BATCH, &predictions)?;
                for prediction in &predictions {
                    prediction.translation.save_png(&target)?;
                }
            }
        }
        Ok(())
    })
}

//! Callbacks and hooks of training.

use anyhow::Result;
use burn::{module::Module, tensor::Tensor};
use kiln_engine::{
    checkpoint::Progress,
    data::Collate,
    picture::{Picture, sheet},
    report::Report,
    training::Callbacks,
};

use crate::{
    cli::Args,
    dataset::{Batch, read_examples},
    globals,
    model::Predictions,
};

/// Epochs from one sheet of cycles to the next.
const EPOCHS: usize = 10;

/// Cycles on a sheet.
const CYCLES: usize = 5;

/// Creates the callbacks, which run on the main thread after steps and epochs.
pub fn create_callbacks(args: &Args) -> Callbacks<Report> {
    let args = args.clone();
    Callbacks::new().every_epochs(1, move |context, report| {
        let progress = context.progress;
        match progress.epoch.is_multiple_of(EPOCHS) || progress.epoch == args.options.epochs {
            true => draw_cycles(&args, progress, report),
            false => Ok(()),
        }
    })
}

/// Prepares a batch for the model, on the device, in training, validation and test.
pub fn prepare_inputs(batch: Batch) -> Result<Batch> {
    Ok(batch)
}

/// Prepares predictions and batch for the losses and metrics.
pub fn prepare_loss_inputs(predictions: Predictions, batch: Batch) -> Result<(Predictions, Batch)> {
    Ok((predictions, batch))
}

/// Whether a parameter, such as `generator_g.last.weight`, is updated at update number `step`, from 1.
///
/// A rule by step alone also holds after a resume.
pub fn is_trainable(_parameter: &str, _step: usize) -> bool {
    true
}

/// Draws what becomes of the first test images on their way to the other kind and back.
fn draw_cycles(args: &Args, progress: Progress, report: &mut Report) -> Result<()> {
    let (_, test) = read_examples(args)?;
    let examples = (0..CYCLES.min(test.len())).map(|index| test.get(index));
    let examples = examples.collect::<Result<Vec<_>>>()?;
    let sheets = globals::strategy()?.run_on_first(move |replica| {
        let device = replica.device().clone().without_autodiff();
        let batch = prepare_inputs(Batch::collate(examples, &device)?)?;
        let Predictions { x, y } = globals::model()?.valid().forward(&batch);
        Ok([
            cycles(["X", "G(X)", "F(G(X))"], [batch.features, y.fake, x.cycle])?,
            cycles(["Y", "F(Y)", "G(F(Y))"], [batch.targets, x.fake, y.cycle])?,
        ])
    })?;
    for (tag, sheet) in ["X_cycle", "Y_cycle"].into_iter().zip(&sheets) {
        report.picture(progress.step, tag, sheet)?;
    }
    Ok(())
}

/// A sheet with a cycle a row, from the three `stages` of all cycles `[cycles, 3, height, width]`.
fn cycles(names: [&str; 3], stages: [Tensor<4>; 3]) -> Result<Picture> {
    let (mut pictures, mut captions) = (Vec::new(), Vec::new());
    for cycle in 0..stages[0].dims()[0] {
        for (name, images) in names.iter().zip(&stages) {
            let image = images.clone().narrow(0, cycle, 1).squeeze_dim::<3>(0); // [3, height, width]
            pictures.push(Picture::from_tensor(image, -1.0..1.0)?);
            captions.push((*name).to_owned());
        }
    }
    sheet(&pictures, stages.len(), &captions)
}

//! Text from a checkpoint: one device, no strategy.

use std::io::Write;

use anyhow::{Context, Result, ensure};
use burn::tensor::{Device, Int, Tensor, TensorData};
use kiln_engine::{data::stream, report::stdout::stdout};
use rand::{Rng, RngExt};

use super::load_model;
use crate::{
    cli::{Args, Sample},
    model::Model,
};

/// Settings for drawing text.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes to write.
    pub length: usize,
    /// Divisor of the logits; 0 always takes the most probable byte.
    pub temperature: f64,
    pub seed: u64,
}

/// Writes the prompt and what the model makes of it to the standard output.
///
/// # Errors
/// The checkpoint cannot be used, the prompt is empty, or the output cannot be written.
pub fn write_sample(args: &Args, options: &Sample) -> Result<()> {
    let (model, device) = load_model(args, &options.checkpoint)?;
    let settings = Settings {
        length: options.length,
        temperature: options.temperature,
        seed: args.options.seed,
    };
    let prompt = options.prompt.as_bytes();
    let text = sample(&model, prompt, settings, &device)?;
    let output = stdout();
    let written = output.and_then(|mut output| {
        output.write_all(&[prompt, &text, b"\n"].concat())?;
        Ok(output.flush()?)
    });
    written.context("cannot write the text")
}

/// The bytes that follow `prompt`, each drawn as the model has it likely after those before it. The
/// same settings give the same bytes.
///
/// # Errors
/// The prompt is empty.
pub fn sample(
    model: &Model,
    prompt: &[u8],
    settings: Settings,
    device: &Device,
) -> Result<Vec<u8>> {
    ensure!(!prompt.is_empty(), "a prompt needs at least one byte");
    let mut random = stream("sample", &[settings.seed]);
    let mut text = prompt.to_vec();
    for _ in 0..settings.length {
        let seen = &text[text.len().saturating_sub(model.context())..];
        let logits = next_logits(model, seen, device);
        text.push(draw(&logits, settings.temperature, &mut random));
    }
    Ok(text.split_off(prompt.len()))
}

/// The logits of the byte that follows `seen`, one a byte.
fn next_logits(model: &Model, seen: &[u8], device: &Device) -> Vec<f64> {
    let bytes: Vec<i32> = seen.iter().map(|byte| i32::from(*byte)).collect();
    let data = TensorData::new(bytes, [1, seen.len()]);
    let logits = model.logits(Tensor::<2, Int>::from_data(data, device)); // [1, time, 256]
    let last = logits.narrow(1, seen.len() - 1, 1); // [1, 1, 256]
    last.into_data().iter::<f64>().collect()
}

/// Draws a byte with the probabilities of the softmax of `logits / temperature`.
fn draw(logits: &[f64], temperature: f64, random: &mut impl Rng) -> u8 {
    let most_probable = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    let most_probable = most_probable.unwrap_or_default();
    if temperature == 0.0 {
        return most_probable as u8;
    }
    let weight = |logit: &f64| ((logit - logits[most_probable]) / temperature).exp();
    let weights: Vec<f64> = logits.iter().map(weight).collect();
    let mut left = random.random::<f64>() * weights.iter().sum::<f64>();
    for (byte, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return byte as u8;
        }
    }
    // Rounding may leave a remainder.
    most_probable as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_drawn_as_often_as_they_are_probable() {
        // Probabilities 1/2, 1/3 and 1/6.
        let logits = [3.0, 2.0, 1.0].map(f64::ln);
        let mut random = stream("test", &[1]);
        let mut counts = [0; 3];
        for _ in 0..6_000 {
            counts[usize::from(draw(&logits, 1.0, &mut random))] += 1;
        }
        for (count, expected) in counts.into_iter().zip([3_000, 2_000, 1_000]) {
            assert!(i32::abs(count - expected) < 150, "{counts:?}");
        }
    }

    #[test]
    fn a_temperature_of_zero_takes_the_most_probable_byte() {
        let logits = [0.1, 0.3, 0.2];
        let mut random = stream("test", &[1]);
        assert!((0..20).all(|_| draw(&logits, 0.0, &mut random) == 1));
        assert!((0..20).all(|_| draw(&logits, 1e-3, &mut random) == 1));
    }
}

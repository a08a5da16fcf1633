//! A test of the networks of projects: with the weights of PyTorch, their outputs are those of PyTorch; and their
//! gradients in bfloat16 point where those in float32 do.

use std::{
    fs::{self, File},
    io::copy,
    path::Path,
};

use flate2::read::GzDecoder;

use crate::{rendered::Project, repository};

/// Adds the test `pytorch` to the project of an example, or to the `default` one, with the files of
/// `tests/fixtures/weights`.
///
/// # Panics
/// A file is missing or cannot be written.
pub fn add_test(project: &Project, name: &str) {
    let from = repository().join("tests/fixtures/weights");
    let to = project.path().join("tests/pytorch");
    fs::create_dir_all(&to).expect("a folder");
    let outputs = match name {
        "keras-cnn" => "outputs/one_hot.rs",
        "language-model" => "outputs/language_model.rs",
        "cyclegan" => "outputs/cyclegan.rs",
        _ => "outputs/images.rs",
    };
    let reference = format!("{name}.json");
    for (file, name) in [
        ("pytorch.rs", "main.rs"),
        ("bfloat16.rs", "bfloat16.rs"),
        (outputs, "outputs.rs"),
        (reference.as_str(), "weights.json"),
    ] {
        fs::copy(from.join(file), to.join(name)).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
    let weights = File::open(from.join(format!("{name}.pt.gz"))).expect("a file of weights");
    let mut file = File::create(to.join("weights.pt")).expect("a file");
    copy(&mut GzDecoder::new(weights), &mut file).expect("the weights");
}

/// Copies a safetensors file, with the layer `layer` as `name`, which is as long: a file that lacks a layer.
///
/// # Panics
/// The layer has no weight and bias in the file, or a file cannot be read or written.
pub fn rename_layer(from: &Path, to: &Path, layer: &str, name: &str) {
    assert_eq!(layer.len(), name.len());
    let mut file = fs::read(from).expect("a file of weights");
    let header = file[..8].try_into().expect("the length of the header");
    let end = 8 + u64::from_le_bytes(header) as usize;
    let start = format!("\"{layer}.");
    let places: Vec<usize> = (8..end)
        .filter(|place| file[*place..end].starts_with(start.as_bytes()))
        .collect();
    assert_eq!(places.len(), 2, "weight and bias of {layer}");
    for place in places {
        file[place + 1..=place + name.len()].copy_from_slice(name.as_bytes());
    }
    fs::write(to, file).expect("a file of weights");
}

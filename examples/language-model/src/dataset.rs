//! Step 4: the datasets.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use burn::{
    module::Module,
    tensor::{Device, Int, Tensor, TensorData},
};
use kiln_engine::{
    data::{Collate, Dataset, Datasets, Digest, Sha256, Subset},
    picture::Sample,
};
use rand::rngs::StdRng;

use crate::cli::Args;

/// A dataset of examples, shared by the replicas.
pub type Examples = Arc<dyn Dataset<Example = Example>>;

/// Values of a byte.
pub const VOCABULARY: usize = 256;

/// One example in `VALIDATION_PART` of the text before that of the test is for validation.
const VALIDATION_PART: usize = 10;

/// One byte in `TEST_PART` of the text is for the test.
const TEST_PART: usize = 10;

/// What one example holds: the bytes of a context, and one more.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    pub bytes: Vec<u8>,
}

/// The tensors of a replica's shard of a batch.
#[derive(Module, Debug)]
pub struct Batch {
    /// `[batch, context]`, bytes.
    pub features: Tensor<2, Int>,
    /// `[batch, context]`, the byte that follows each of the features.
    pub labels: Tensor<2, Int>,
}

impl Collate for Batch {
    type Example = Example;

    fn collate(examples: Vec<Example>, device: &Device) -> Result<Self> {
        let (batch, context) = (examples.len(), examples[0].bytes.len() - 1);
        let from = |first: usize| {
            let bytes = examples
                .iter()
                .flat_map(|one| &one.bytes[first..first + context]);
            let bytes: Vec<i32> = bytes.map(|byte| i32::from(*byte)).collect();
            Tensor::from_data(TensorData::new(bytes, [batch, context]), device)
        };
        Ok(Batch {
            features: from(0),
            labels: from(1),
        })
    }

    fn tokens(&self) -> Option<usize> {
        Some(self.labels.shape().num_elements())
    }
}

/// Creates the datasets and distributes them over the replicas of the strategy.
///
/// # Errors
/// Those of [`read_examples`], and a split that has no batch.
pub fn create_datasets(args: &Args) -> Result<Datasets<Example>> {
    let (train_and_validation, test) = read_examples(args)?;
    let (train, validation) = split(train_and_validation)?;
    Datasets::distribute(&args.options, [train, validation, test], augment)
}

/// Text stays as it is.
///
/// # Errors
/// None.
pub fn augment(example: Example, _random: &mut StdRng) -> Result<Example> {
    Ok(example)
}

/// Text is nothing for a sheet of pictures.
///
/// # Errors
/// None.
pub fn picture(_example: &Example) -> Result<Option<Sample>> {
    Ok(None)
}

/// Sets the end of the text aside for validation: examples from all over it would continue those of
/// training.
///
/// # Errors
/// An index is out of range.
pub fn split(examples: Examples) -> Result<(Examples, Examples)> {
    let training = examples.len() - examples.len() / VALIDATION_PART;
    let subset = |indices: Range<usize>| -> Result<Examples> {
        Ok(Arc::new(Subset::new(
            Arc::clone(&examples),
            indices.collect(),
        )?))
    };
    Ok((subset(0..training)?, subset(training..examples.len())?))
}

/// Reads the examples for training and validation, and those for the test: the end of the text.
///
/// # Errors
/// The text is missing, or too short for the context.
pub fn read_examples(args: &Args) -> Result<(Examples, Examples)> {
    let own = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/data"));
    let folder = args.options.data_dir.clone().unwrap_or_else(own);
    let path = folder.join("text.txt");
    let mut text = read_text(&path)?;
    let test = text.split_off(text.len() - text.len() / TEST_PART);
    let windows = |text, least| -> Result<Examples> {
        let windows = Windows {
            text,
            context: args.context,
        };
        ensure!(
            windows.len() >= least,
            "{} is too short for --context {}: training, validation and test need an example each",
            path.display(),
            args.context
        );
        Ok(Arc::new(windows))
    };
    Ok((windows(text, VALIDATION_PART)?, windows(test, 1)?))
}

/// The bytes of a file.
///
/// # Errors
/// It cannot be read.
pub fn read_text(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read the text {}", path.display()))
}

/// A text in pieces of a context each. Each byte but the first is to be predicted once.
pub struct Windows {
    pub text: Vec<u8>,
    pub context: usize,
}

impl Dataset for Windows {
    type Example = Example;

    fn len(&self) -> usize {
        self.text.len().saturating_sub(1) / self.context
    }

    fn get(&self, index: usize) -> Result<Example> {
        let first = index * self.context;
        Ok(Example {
            bytes: self.text[first..=first + self.context].to_vec(),
        })
    }

    /// The text itself: each byte but the first is a label.
    fn hash_labels(&self, indices: &[usize], hash: &mut Sha256) -> Result<bool> {
        for index in indices {
            let first = index * self.context;
            hash.update(&self.text[first..=first + self.context]);
        }
        Ok(true)
    }
}

//! Reading of files of weights, whose format shows in their first bytes.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::tensor::Bytes;
use burn_store::{
    ModuleStore, PytorchStore, SafetensorsStore,
    burn_pack::{Reader, Tensor},
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{bytes::hex, checkpoint::Checkpoint, ema::Weights};

/// The names and layouts of the weights in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Those of Burn's layers.
    Burn,
    /// Those of PyTorch's layers: linear layers are transposed, and normalisations have a weight and a bias.
    PyTorch,
}

/// The weights in a file, whose values are read when they are needed.
pub struct WeightFile {
    /// The tensors, with the names in the file.
    pub tensors: Vec<Tensor>,
    /// Their names and layouts.
    pub layout: Layout,
    /// The format, for messages.
    pub format: &'static str,
    /// SHA-256 of the file; of its model for a checkpoint.
    pub sha256: String,
}

/// Magic bytes of burnpack, as in [`burn_store::burn_pack`].
const BURNPACK: &[u8] = b"NRUB";

/// Magic bytes of zip archives, as of `torch.save`.
const ZIP: &[u8] = b"PK\x03\x04";

/// First byte of a pickle of protocol 2 or later, as of `torch.save` before PyTorch 1.6.
const PICKLE: u8 = 0x80;

/// The largest header of a safetensors file, in bytes.
const MAX_HEADER: u64 = 100_000_000;

/// Reads a file of weights: safetensors, PyTorch, burnpack, or the folder of a checkpoint.
///
/// # Errors
/// The file is missing, damaged, or of another kind.
pub fn read(path: &Path) -> Result<WeightFile> {
    if path.is_dir() {
        return read_checkpoint(path);
    }
    let mut start = Vec::new();
    let mut file = File::open(path)?;
    file.by_ref().take(512).read_to_end(&mut start)?;
    ensure!(!start.is_empty(), "it is empty");
    let (tensors, layout, format) = if start.starts_with(BURNPACK) {
        burnpack(&fs::read(path)?)?
    } else if is_safetensors(&start) {
        safetensors(path)?
    } else if start.starts_with(ZIP) || start[0] == PICKLE {
        pytorch(path)?
    } else {
        bail!("{}", unknown(&start))
    };
    ensure!(!tensors.is_empty(), "it has no tensors");
    Ok(WeightFile {
        tensors,
        layout,
        format,
        sha256: checksum(path)?,
    })
}

type Contents = (Vec<Tensor>, Layout, &'static str);

fn read_checkpoint(folder: &Path) -> Result<WeightFile> {
    let checkpoint = Checkpoint::read(folder)
        .context("a folder is a checkpoint, such as runs/checkpoints/step-00000043-epoch-1")?;
    let bytes = checkpoint.model_bytes()?;
    let (tensors, layout, _) = burnpack(bytes)?;
    Ok(WeightFile {
        tensors,
        layout,
        format: match checkpoint.weights()? {
            Weights::Ema => "the averaged weights of a checkpoint of this program",
            Weights::Model => "a checkpoint of this program",
        },
        sha256: hex(Sha256::new().chain_update(bytes)),
    })
}

fn burnpack(bytes: &[u8]) -> Result<Contents> {
    let reader = Reader::from_bytes(Bytes::from_bytes_vec(bytes.to_vec()));
    let tensors = reader.and_then(Reader::into_tensors);
    let tensors = tensors.map_err(|error| anyhow!("its burnpack is damaged: {error}"))?;
    Ok((tensors, Layout::Burn, "burnpack with the names of Burn"))
}

fn safetensors(path: &Path) -> Result<Contents> {
    let damaged = |error: String| anyhow!("its safetensors are damaged or cut off: {error}");
    let mut store = SafetensorsStore::from_file(path);
    let tensors = store.get_all_tensors();
    let tensors = tensors.map_err(|error| damaged(error.to_string()))?;
    let tensors = tensors.values().cloned().collect();
    Ok(match is_of_burn(path)? {
        true => (tensors, Layout::Burn, "safetensors with the names of Burn"),
        false => (
            tensors,
            Layout::PyTorch,
            "safetensors with the names of PyTorch",
        ),
    })
}

fn pytorch(path: &Path) -> Result<Contents> {
    let mut store = PytorchStore::from_file(path).map_indices_contiguous(false);
    let tensors = store.get_all_tensors();
    let tensors = tensors.map_err(|error| anyhow!("it is no whole PyTorch file: {error}"))?;
    let tensors = tensors.values().cloned().collect();
    Ok((tensors, Layout::PyTorch, "a PyTorch file"))
}

/// Whether a file begins as safetensors: the length of the header, then its JSON.
///
/// Source: <https://huggingface.co/docs/safetensors>.
fn is_safetensors(start: &[u8]) -> bool {
    let len = start.first_chunk().map(|len| u64::from_le_bytes(*len));
    len.is_some_and(|len| len <= MAX_HEADER) && start.get(8) == Some(&b'{')
}

/// Whether Burn wrote a safetensors file, as its metadata tell.
fn is_of_burn(path: &Path) -> Result<bool> {
    let mut file = File::open(path)?;
    let mut len = [0; 8];
    file.read_exact(&mut len)?;
    let mut header = Vec::new();
    file.take(u64::from_le_bytes(len).min(MAX_HEADER))
        .read_to_end(&mut header)?;
    let header: Value = serde_json::from_slice(&header)?;
    Ok(header["__metadata__"]["producer"] == "burn")
}

/// Kind of a file without weights, from its first bytes.
fn unknown(start: &[u8]) -> &'static str {
    // The last character may be cut.
    let text = match str::from_utf8(start) {
        Ok(text) => text,
        Err(error) => str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default(),
    };
    let is_text = text.len() + 4 > start.len() && !text.contains('\0');
    match text.trim_start() {
        text if is_text && text.starts_with("version https://git-lfs") => {
            "it is a pointer of Git LFS: `git lfs pull` fetches the file itself"
        }
        text if is_text && text.starts_with('<') => {
            "it is an HTML or XML page: download the file itself, not the page that shows it"
        }
        _ if is_text => {
            "it is a text file, and neither safetensors, a PyTorch file nor a checkpoint of this program"
        }
        _ => "it is neither safetensors, a PyTorch file nor a checkpoint of this program",
    }
}

fn checksum(path: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(hex(hash))
}

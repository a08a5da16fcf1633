//! The files of Fashion-MNIST, and images in its size.

#[cfg(feature = "download")]
use std::time::Duration;
use std::{borrow::Cow, path::Path};

use anyhow::{Result, ensure};
#[cfg(feature = "download")]
use kiln_engine::data::download::{Download, download};

use crate::dataset::Example;

/// Rows and columns of an image as the model takes it, as many as in Fashion-MNIST.
pub const SIZE: usize = 28;

/// The files of Fashion-MNIST with their SHA-256 and lengths.
///
/// Source: H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking
/// Machine Learning Algorithms", 2017.
pub const FILES: [(&str, &str, u64); 4] = [
    (
        "train-images-idx3-ubyte.gz",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        26_421_880,
    ),
    (
        "train-labels-idx1-ubyte.gz",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        29_515,
    ),
    (
        "t10k-images-idx3-ubyte.gz",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        4_422_102,
    ),
    (
        "t10k-labels-idx1-ubyte.gz",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        5_148,
    ),
];

/// URLs of the files, tried in turn.
#[cfg(feature = "download")]
const MIRRORS: [&str; 3] = [
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
];

/// Timeout for a mirror that sends nothing.
#[cfg(feature = "download")]
const SILENCE: Duration = Duration::from_secs(20);

/// Fetches the files of Fashion-MNIST that are not in `folder`.
///
/// # Errors
/// Another file has the name of one, a file cannot be written, or no mirror has it.
#[cfg(feature = "download")]
pub fn fetch(folder: &Path) -> Result<()> {
    for (name, sha256, bytes) in FILES {
        let file = Download {
            name,
            mirrors: &MIRRORS,
            sha256,
            bytes,
        };
        download(&file, folder, SILENCE)?;
    }
    Ok(())
}

/// Fetches nothing.
///
/// # Errors
/// Always.
#[cfg(not(feature = "download"))]
pub fn fetch(_folder: &Path) -> Result<()> {
    anyhow::bail!("this program was built without the feature `download`")
}

/// Message on the files that have to be in `folder`.
pub fn needed_in(folder: &Path) -> String {
    let names = FILES.map(|(name, ..)| name).join(", ");
    format!(
        "Fashion-MNIST is four files, gzipped or not, that have to be in {}: {names}",
        folder.display()
    )
}

/// The pixels `[SIZE, SIZE]` of an image. A smaller one, as of the digits, is enlarged as often as
/// it fits and framed in black.
///
/// # Errors
/// The image has no pixels, or is larger.
pub fn fit(example: &Example) -> Result<Cow<'_, [u8]>> {
    let (height, width) = (example.height, example.width);
    ensure!(
        0 < height.min(width) && height.max(width) <= SIZE,
        "an image has {height}x{width} pixels, and the model takes up to {SIZE}x{SIZE}"
    );
    if (height, width) == (SIZE, SIZE) {
        return Ok(Cow::Borrowed(&example.pixels));
    }
    let scale = SIZE / height.max(width);
    let (top, left) = ((SIZE - scale * height) / 2, (SIZE - scale * width) / 2);
    let mut fitted = vec![0; SIZE * SIZE];
    for y in 0..scale * height {
        for x in 0..scale * width {
            let pixel = example.pixels[y / scale * width + x / scale];
            fitted[(top + y) * SIZE + left + x] = pixel;
        }
    }
    Ok(Cow::Owned(fitted))
}

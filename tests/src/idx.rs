//! Data in the format and the layout of MNIST (IDX files).

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    ops::RangeInclusive,
    path::Path,
};

use flate2::read::GzDecoder;

use crate::repository;

/// A file of unsigned bytes.
pub fn idx(dims: &[u32], values: impl Fn(usize) -> u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_idx(&mut bytes, dims, values).expect("memory takes all");
    bytes
}

/// Writes a file of unsigned bytes.
///
/// # Errors
/// `file` cannot be written.
pub fn write_idx(
    mut file: impl Write,
    dims: &[u32],
    values: impl Fn(usize) -> u8,
) -> io::Result<()> {
    file.write_all(&[0, 0, 8, dims.len() as u8])?;
    for dim in dims {
        file.write_all(&dim.to_be_bytes())?;
    }
    let len = dims.iter().product::<u32>() as usize;
    (0..len).try_for_each(|at| file.write_all(&[values(at)]))?;
    // Dropping a writer with a full buffer would hide a write error.
    file.flush()
}

/// The file names of MNIST.
pub const IDX_FILES: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

/// Writes a folder in the layout of MNIST, with 60 training and 20 test images of `size` x `size` pixels.
///
/// # Panics
/// A file cannot be written.
pub fn idx_data(folder: &Path, size: u32) {
    idx_data_of(folder, size, [60, 20]);
}

/// Like [`idx_data`], with these numbers of training and test images.
///
/// # Panics
/// A file cannot be written.
pub fn idx_data_of(folder: &Path, size: u32, examples: [u32; 2]) {
    fs::create_dir_all(folder).expect("a folder");
    for (files, examples) in IDX_FILES.chunks(2).zip(examples) {
        let square = (size * size) as usize;
        let images = idx(&[examples, size, size], |at| (at / square % 10 * 25) as u8);
        fs::write(folder.join(files[0]), images).expect("a file");
        let labels = idx(&[examples], |at| (at % 10) as u8);
        fs::write(folder.join(files[1]), labels).expect("a file");
    }
}

/// Writes the template's digits of these classes to a folder in the layout of MNIST.
///
/// # Panics
/// A file cannot be read or written.
pub fn digits_of(folder: &Path, classes: RangeInclusive<u8>) {
    fs::create_dir_all(folder).expect("a folder");
    let read = |name: &str| {
        let file = repository().join(format!("template/data/{name}.gz"));
        let mut bytes = Vec::new();
        let mut file = GzDecoder::new(File::open(file).expect("the digits"));
        file.read_to_end(&mut bytes).expect("the digits");
        bytes
    };
    for files in IDX_FILES.chunks(2) {
        let (images, labels) = (read(files[0]), read(files[1]));
        let side = u32::from(images[11]);
        let pixels = (side * side) as usize;
        let all = images[16..].chunks_exact(pixels).zip(&labels[8..]);
        let (images, labels): (Vec<&[u8]>, Vec<u8>) =
            all.filter(|(_, label)| classes.contains(*label)).unzip();
        let (count, images) = (labels.len() as u32, images.concat());
        let images = idx(&[count, side, side], |at| images[at]);
        fs::write(folder.join(files[0]), images).expect("a file");
        let labels = idx(&[count], |at| labels[at]);
        fs::write(folder.join(files[1]), labels).expect("a file");
    }
}

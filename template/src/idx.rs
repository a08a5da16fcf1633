//! The IDX files of MNIST and Fashion-MNIST, gzipped or plain.
//!
//! Source: "The IDX file format", Y. LeCun, C. Cortes, C. Burges: the MNIST database.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use flate2::read::MultiGzDecoder;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The two zero bytes and the type code of unsigned bytes that every header starts with here.
const UNSIGNED_BYTES: [u8; 3] = [0, 0, 8];

/// An array of unsigned bytes with `D` dimensions.
#[derive(Debug)]
pub struct Idx<const D: usize> {
    pub dims: [usize; D],
    /// The values, the last dimension the fastest.
    pub values: Vec<u8>,
    pub path: PathBuf,
}

/// Reads `folder/name`, or `folder/name.gz` where that is not there.
///
/// # Errors
/// Neither file is there, it cannot be read, it is not IDX of unsigned bytes with `D` dimensions,
/// or its length is not the one that its header says.
pub fn read_idx<const D: usize>(folder: &Path, name: &str) -> Result<Idx<D>> {
    let candidates = [folder.join(name), folder.join(format!("{name}.gz"))];
    let path = candidates.iter().find(|path| path.is_file()).with_context(|| {
        format!(
            "neither {name} nor {name}.gz is in {}: --data-dir names a folder with the four files \
             of MNIST or Fashion-MNIST",
            folder.display()
        )
    })?;
    let bytes = read_bytes(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (dims, values) =
        parse(&bytes).with_context(|| format!("bad IDX file {}", path.display()))?;
    Ok(Idx {
        dims,
        values: values.to_vec(),
        path: path.clone(),
    })
}

fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(path)?;
    if !bytes.starts_with(&GZIP_MAGIC) {
        return Ok(bytes);
    }
    let mut unpacked = Vec::new();
    let unpacking = MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut unpacked);
    unpacking.context("the gzip data are damaged or cut off")?;
    Ok(unpacked)
}

fn parse<const D: usize>(bytes: &[u8]) -> Result<([usize; D], &[u8])> {
    let header = 4 + 4 * D;
    ensure!(
        bytes.len() >= header,
        "it has {} bytes, and its header alone needs {header}",
        bytes.len()
    );
    let expected = [UNSIGNED_BYTES.as_slice(), &[D as u8]].concat();
    ensure!(
        bytes[..4] == expected,
        "its magic number is {:02x?}, and {expected:02x?} was expected: unsigned bytes in {D} \
         dimensions",
        &bytes[..4]
    );
    let word = |at: usize| {
        bytes[at..at + 4]
            .iter()
            .fold(0, |word, byte| word << 8 | *byte as usize)
    };
    let dims = std::array::from_fn(|dim| word(4 + 4 * dim));
    let len = dims
        .iter()
        .try_fold(1usize, |len, dim| len.checked_mul(*dim));
    ensure!(
        len == Some(bytes.len() - header),
        "its header says {dims:?}, but {} bytes follow it",
        bytes.len() - header
    );
    Ok((dims, &bytes[header..]))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn file(name: &str, bytes: &[u8]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(name), bytes).unwrap();
        folder
    }

    const LABELS: [u8; 11] = [0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9];

    #[test]
    fn plain_and_gzipped_files_read_the_same() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&LABELS).unwrap();
        for folder in [
            file("labels", &LABELS),
            file("labels.gz", &gzip.finish().unwrap()),
        ] {
            let idx = read_idx::<1>(folder.path(), "labels").unwrap();
            assert_eq!((idx.dims, idx.values), ([3], vec![7, 8, 9]));
        }
    }

    /// What is wrong, what the message must say, and the file.
    #[test]
    fn damage_is_named_with_path_and_numbers() {
        let cases: [(&str, &str, &[u8]); 5] = [
            (
                "labels",
                "it has 3 bytes, and its header alone needs 8",
                &LABELS[..3],
            ),
            (
                "labels",
                "its header says [3], but 2 bytes follow it",
                &LABELS[..10],
            ),
            (
                "labels",
                "its magic number is [00, 00, 08, 03]",
                &[0, 0, 8, 3, 0, 0, 0, 0],
            ),
            (
                "labels",
                "but 0 bytes follow it",
                &[0, 0, 8, 1, 255, 255, 255, 255],
            ),
            (
                "labels.gz",
                "the gzip data are damaged",
                &[0x1f, 0x8b, 8, 0, 0],
            ),
        ];
        for (name, message, bytes) in cases {
            let folder = file(name, bytes);
            let error = format!("{:#}", read_idx::<1>(folder.path(), "labels").unwrap_err());
            assert!(error.contains(message), "{error}");
            assert!(
                error.contains(&folder.path().join(name).display().to_string()),
                "{error}"
            );
        }
    }

    #[test]
    fn a_missing_file_is_named_with_its_folder() {
        let error = read_idx::<1>(Path::new("/nowhere"), "labels")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("neither labels nor labels.gz is in /nowhere"),
            "{error}"
        );
    }
}

//! The IDX file format of MNIST and Fashion-MNIST, gzipped or plain.
//!
//! Source: "The IDX file format", Y. LeCun, C. Cortes, C. Burges: the MNIST database.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use flate2::bufread::GzDecoder;
use memmap2::Mmap;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The two zero bytes and the type code of unsigned bytes that every header starts with here.
const UNSIGNED_BYTES: [u8; 3] = [0, 0, 8];

/// An array of unsigned bytes with `D` dimensions. A plain file is memory-mapped, so that it may be larger
/// than the memory; a gzipped file is decompressed, and a pipe is read to its end.
pub struct Idx<const D: usize> {
    /// Size of each dimension, outermost first.
    pub dims: [usize; D],
    /// The file that was read.
    pub path: PathBuf,
    bytes: Bytes,
}

enum Bytes {
    Mapped(Mmap),
    Read(Vec<u8>),
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Read(bytes) => bytes,
        }
    }
}

impl<const D: usize> Idx<D> {
    /// The values in row-major order.
    pub fn values(&self) -> &[u8] {
        &self.bytes.as_slice()[header_len(D)..]
    }
}

/// Reads `folder/name`, or `folder/name.gz` if that is missing.
///
/// # Errors
/// Both files are missing, or [`read_idx_file`] fails.
pub fn read_idx<const D: usize>(folder: &Path, name: &str) -> Result<Idx<D>> {
    let candidates = [folder.join(name), folder.join(format!("{name}.gz"))];
    let is_there = |path: &&PathBuf| path.exists() && !path.is_dir();
    let path = candidates.iter().find(is_there).with_context(|| {
        format!(
            "neither {name} nor {name}.gz is in {}: --data-dir names a folder with the four files \
             of MNIST or Fashion-MNIST",
            folder.display()
        )
    })?;
    read_idx_file(path)
}

/// Reads the IDX file at `path`, gzipped or plain.
///
/// # Errors
/// The file cannot be read, is not IDX of unsigned bytes with `D` dimensions, or its length differs from
/// that of its header.
pub fn read_idx_file<const D: usize>(path: &Path) -> Result<Idx<D>> {
    let bytes = read_bytes(path).with_context(|| format!("cannot read {}", path.display()))?;
    let dims =
        parse(bytes.as_slice()).with_context(|| format!("bad IDX file {}", path.display()))?;
    Ok(Idx {
        dims,
        path: path.to_owned(),
        bytes,
    })
}

fn read_bytes(path: &Path) -> Result<Bytes> {
    let bytes = map_or_read(path)?;
    match bytes.as_slice().starts_with(&GZIP_MAGIC) {
        true => unpack(bytes.as_slice()).map(Bytes::Read),
        false => Ok(bytes),
    }
}

/// Memory-maps a file. Pipes, devices and system files such as those in `/proc`, which report a size of 0,
/// cannot be mapped and are read.
fn map_or_read(path: &Path) -> Result<Bytes> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    ensure!(!metadata.is_dir(), "it is a folder");
    if metadata.is_file() && metadata.len() > 0 {
        // Sound as long as no other program cuts the file off or writes to it while this one runs,
        // which a dataset in use must not suffer anyhow.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file) };
        // Some file systems do not support mapping.
        if let Ok(map) = map {
            return Ok(Bytes::Mapped(map));
        }
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(Bytes::Read(bytes))
}

/// The concatenated contents of all gzip members. Zeros after the last one are padding, as tapes
/// and block devices need, and are left out as `gzip -d` does.
fn unpack(mut packed: &[u8]) -> Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    while packed.iter().any(|byte| *byte != 0) {
        ensure!(
            packed.starts_with(&GZIP_MAGIC),
            "{} bytes follow the gzip data and are neither gzip data nor zeros: the file is damaged, or \
             something was appended to it",
            packed.len()
        );
        let mut member = GzDecoder::new(packed);
        let unpacking = member.read_to_end(&mut unpacked);
        unpacking.context("the gzip data are damaged or cut off")?;
        packed = member.into_inner();
    }
    Ok(unpacked)
}

fn header_len(dimensions: usize) -> usize {
    4 + 4 * dimensions
}

/// The dimensions in the header, if the rest of the file has that many bytes.
fn parse<const D: usize>(bytes: &[u8]) -> Result<[usize; D]> {
    let header = header_len(D);
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
    Ok(dims)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

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
        for folder in [file("labels", &LABELS), file("labels.gz", &gzip(&LABELS))] {
            let idx = read_idx::<1>(folder.path(), "labels").unwrap();
            assert_eq!((idx.dims, idx.values()), ([3], &[7, 8, 9][..]));
        }
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(bytes).unwrap();
        gzip.finish().unwrap()
    }

    /// The result of reading `bytes` as gzipped labels.
    fn read_gzipped(bytes: &[u8]) -> Result<Vec<u8>> {
        let folder = file("labels.gz", bytes);
        Ok(read_idx::<1>(folder.path(), "labels")?.values().to_vec())
    }

    #[test]
    fn gzipped_files_may_have_several_members_and_zeros_after_them() {
        let members = [gzip(&LABELS[..5]), gzip(&LABELS[5..])].concat();
        for zeros in [0, 1, 2, 511, 100_000] {
            for data in [&gzip(&LABELS), &members] {
                let padded = [data.as_slice(), &vec![0; zeros]].concat();
                assert_eq!(read_gzipped(&padded).unwrap(), [7, 8, 9], "{zeros} zeros");
            }
        }
    }

    #[test]
    fn gzipped_files_that_are_cut_off_or_followed_by_garbage_are_refused() {
        let data = gzip(&LABELS);
        let error = |bytes: &[u8]| format!("{:#}", read_gzipped(bytes).unwrap_err());
        for len in 2..data.len() {
            let cut_off = error(&data[..len]);
            assert!(cut_off.contains("damaged or cut off"), "{cut_off}");
            // The last bytes, of the length, are zeros.
            if len < data.len() - 3 {
                let padded = error(&[&data[..len], &[0; 64]].concat());
                assert!(padded.contains("damaged or cut off"), "{len}: {padded}");
            }
        }
        for garbage in [&b"x"[..], b"\0\0x", &[0x1f], &LABELS] {
            let followed = error(&[&data, garbage].concat());
            let expected = format!("{} bytes follow the gzip data", garbage.len());
            assert!(followed.contains(&expected), "{followed}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn pipes_are_read() {
        use std::{process::Command, thread};

        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("labels");
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        for bytes in [LABELS.to_vec(), gzip(&LABELS)] {
            let writer = pipe.clone();
            let writing = thread::spawn(move || fs::write(writer, bytes).unwrap());
            let idx = read_idx::<1>(folder.path(), "labels").unwrap();
            assert_eq!((idx.dims, idx.values()), ([3], &[7, 8, 9][..]));
            writing.join().unwrap();
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_of_the_system_is_read_though_its_size_is_0() {
        let version = map_or_read(Path::new("/proc/version")).unwrap();
        assert!(version.as_slice().starts_with(b"Linux"));
    }

    /// The defect, the expected message, and the file.
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
            let error = format!(
                "{:#}",
                read_idx::<1>(folder.path(), "labels").err().unwrap()
            );
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
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("neither labels nor labels.gz is in /nowhere"),
            "{error}"
        );
    }

    #[test]
    fn a_file_larger_than_memory_opens_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("images")).unwrap();
        // 2^16 images of 256 x 256, most of them holes that take no disk: 4 GiB.
        let header = [[0, 0, 8, 3], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0]].concat();
        let len: u64 = 16 + (1 << 32);
        {
            let mut file = &file;
            file.write_all(&header).unwrap();
        }
        file.set_len(len).unwrap();
        let idx = read_idx::<3>(folder.path(), "images").unwrap();
        assert_eq!(idx.dims, [1 << 16, 256, 256]);
        assert_eq!(idx.values()[(1 << 32) - 1], 0);
    }
}

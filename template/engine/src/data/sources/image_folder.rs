//! Images in one folder per class.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use image::imageops::FilterType;
use sha2::{Digest, Sha256};

use crate::data::Dataset;

/// File extensions that are read.
const ENDINGS: [&str; 3] = ["jpeg", "jpg", "png"];

/// A colour image with the class of its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Red, green and blue, 0 to 255, in row-major order: `[height, width, 3]`.
    pub pixels: Vec<u8>,
    /// Height in pixels.
    pub height: usize,
    /// Width in pixels.
    pub width: usize,
    /// Index of its class in [`ImageFolder::classes`].
    pub label: usize,
}

/// An image file.
struct PictureFile {
    path: PathBuf,
    /// Length in bytes.
    len: u64,
    /// Index of its class.
    class: usize,
}

/// Images in one folder per class: `root/class/any-name.png`. They are read and resized on access, so that
/// the dataset may be larger than the memory.
///
/// Source: `torchvision.datasets.ImageFolder`, which has the same layout.
pub struct ImageFolder {
    classes: Vec<String>,
    files: Vec<PictureFile>,
    height: usize,
    width: usize,
}

impl ImageFolder {
    /// Lists the images below `root`, classes and files in the order of their names, to be resized to
    /// `[height, width]` pixels.
    ///
    /// # Errors
    /// A folder cannot be read, there is no class, or a class has no image.
    pub fn open(root: &Path, height: usize, width: usize) -> Result<Self> {
        let folders = sorted(root)?.into_iter().filter(|path| path.is_dir());
        let (mut classes, mut files) = (Vec::new(), Vec::new());
        for folder in folders {
            let before = files.len();
            let pictures = sorted(&folder)?.into_iter().filter_map(|path| {
                let (len, class) = (picture_len(&path)?, classes.len());
                Some(PictureFile { path, len, class })
            });
            files.extend(pictures);
            ensure!(
                files.len() > before,
                "{} has no picture: files that end in {ENDINGS:?} are read",
                folder.display()
            );
            let name = folder.file_name().unwrap_or_default();
            classes.push(name.to_string_lossy().into_owned());
        }
        ensure!(
            !classes.is_empty(),
            "{} has no folder: it needs one for each class, with the pictures of that class",
            root.display()
        );
        Ok(ImageFolder {
            classes,
            files,
            height,
            width,
        })
    }

    /// The names of the classes, in the order of labels.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl Dataset for ImageFolder {
    type Example = Picture;

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize) -> Result<Picture> {
        let PictureFile { path, class, .. } = &self.files[index];
        let picture =
            image::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let (width, height) = (self.width as u32, self.height as u32);
        let scaled = picture.resize_exact(width, height, FilterType::Triangle);
        Ok(Picture {
            pixels: scaled.into_rgb8().into_raw(),
            height: self.height,
            width: self.width,
            label: *class,
        })
    }

    /// Hashes file names, classes and file lengths; no file is read.
    fn hash_labels(&self, indices: &[usize], hash: &mut Sha256) -> Result<bool> {
        for PictureFile { path, len, class } in indices.iter().map(|index| &self.files[*index]) {
            let name = path.file_name().unwrap_or_default();
            hash.update(format!("{}/{name:?} {len}\n", self.classes[*class]));
        }
        Ok(true)
    }
}

fn sorted(folder: &Path) -> Result<Vec<PathBuf>> {
    let cannot = || format!("cannot read the folder {}", folder.display());
    let entries = fs::read_dir(folder).with_context(cannot)?;
    let mut paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()
        .with_context(cannot)?;
    paths.sort();
    Ok(paths)
}

/// Length of an image file in bytes; `None` if its extension is not that of an image.
fn picture_len(path: &Path) -> Option<u64> {
    let ending = path.extension().unwrap_or_default().to_string_lossy();
    let metadata = path.metadata().ok()?;
    let is_picture = metadata.is_file() && ENDINGS.contains(&ending.to_lowercase().as_str());
    is_picture.then_some(metadata.len())
}

#[cfg(test)]
mod tests {
    use image::{Rgb, RgbImage};

    use super::*;

    fn write(root: &Path, class: &str, name: &str, colour: [u8; 3]) {
        fs::create_dir_all(root.join(class)).unwrap();
        let picture = RgbImage::from_pixel(5, 3, Rgb(colour));
        picture.save(root.join(class).join(name)).unwrap();
    }

    #[test]
    fn classes_and_files_come_in_the_order_of_names() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "zebra", "a.png", [200, 0, 0]);
        write(root.path(), "horse", "b.PNG", [0, 100, 0]);
        write(root.path(), "horse", "a.png", [0, 0, 50]);
        fs::write(root.path().join("horse/notes.txt"), "not a picture").unwrap();
        let folder = ImageFolder::open(root.path(), 2, 4).unwrap();
        assert_eq!(folder.classes(), ["horse", "zebra"]);
        let pictures: Vec<Picture> = (0..folder.len())
            .map(|at| folder.get(at).unwrap())
            .collect();
        let seen: Vec<_> = pictures
            .iter()
            .map(|one| (one.label, one.pixels[..3].to_vec()))
            .collect();
        assert_eq!(
            seen,
            [
                (0, vec![0, 0, 50]),
                (0, vec![0, 100, 0]),
                (1, vec![200, 0, 0])
            ]
        );
        assert!(pictures.iter().all(|one| one.pixels.len() == 2 * 4 * 3));
    }

    #[test]
    fn other_files_have_another_hash() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "horse", "a.png", [0, 0, 50]);
        write(root.path(), "zebra", "b.png", [200, 0, 0]);
        let hash = || {
            let (folder, mut hash) = (ImageFolder::open(root.path(), 2, 2).unwrap(), Sha256::new());
            assert!(folder.hash_labels(&[0, 1], &mut hash).unwrap());
            hash.finalize()
        };
        let before = hash();
        assert_eq!(before, hash());
        fs::rename(
            root.path().join("zebra/b.png"),
            root.path().join("zebra/c.png"),
        )
        .unwrap();
        let renamed = hash();
        assert_ne!(before, renamed);
        fs::write(root.path().join("zebra/c.png"), "shorter").unwrap();
        assert_ne!(renamed, hash());
    }

    #[test]
    fn what_is_missing_or_damaged_is_named() {
        let root = tempfile::tempdir().unwrap();
        let error = |root: &Path| format!("{:#}", ImageFolder::open(root, 2, 2).err().unwrap());
        assert!(error(root.path()).contains("needs one for each class"));
        assert!(error(&root.path().join("missing")).contains("missing"));
        fs::create_dir(root.path().join("horse")).unwrap();
        assert!(error(root.path()).contains("horse has no picture"));
        fs::write(root.path().join("horse/broken.png"), "no picture").unwrap();
        let folder = ImageFolder::open(root.path(), 2, 2).unwrap();
        let error = format!("{:#}", folder.get(0).unwrap_err());
        assert!(error.contains("broken.png"), "{error}");
    }
}

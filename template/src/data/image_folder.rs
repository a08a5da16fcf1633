use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use image::imageops::FilterType;

use super::Dataset;

/// The endings of the files that are read.
const ENDINGS: [&str; 3] = ["jpeg", "jpg", "png"];

/// A colour picture with the class that its folder stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Red, green and blue, 0 to 255, row by row: `[height, width, 3]`.
    pub pixels: Vec<u8>,
    pub height: usize,
    pub width: usize,
    /// Place of its class in [`ImageFolder::classes`].
    pub label: usize,
}

/// Pictures in a folder of folders, one for each class: `root/class/any-name.png`. They are read
/// and scaled to one size when they are asked for, so that there may be more than fit in memory.
///
/// Source: `torchvision.datasets.ImageFolder`, whose layout this is.
pub struct ImageFolder {
    classes: Vec<String>,
    files: Vec<(PathBuf, usize)>,
    height: usize,
    width: usize,
}

impl ImageFolder {
    /// Lists the pictures below `root`, classes and files in the order of their names.
    ///
    /// # Errors
    /// A folder cannot be read, there is no class, or a class without a picture.
    pub fn open(root: &Path, height: usize, width: usize) -> Result<Self> {
        let folders = sorted(root)?.into_iter().filter(|path| path.is_dir());
        let (mut classes, mut files) = (Vec::new(), Vec::new());
        for folder in folders {
            let pictures: Vec<PathBuf> = sorted(&folder)?
                .into_iter()
                .filter(|path| is_picture(path))
                .collect();
            ensure!(
                !pictures.is_empty(),
                "{} has no picture: files that end in {ENDINGS:?} are read",
                folder.display()
            );
            files.extend(pictures.into_iter().map(|file| (file, classes.len())));
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
        let (path, label) = &self.files[index];
        let picture =
            image::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let (width, height) = (self.width as u32, self.height as u32);
        let scaled = picture.resize_exact(width, height, FilterType::Triangle);
        Ok(Picture {
            pixels: scaled.into_rgb8().into_raw(),
            height: self.height,
            width: self.width,
            label: *label,
        })
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

fn is_picture(path: &Path) -> bool {
    let ending = path.extension().unwrap_or_default().to_string_lossy();
    path.is_file() && ENDINGS.contains(&ending.to_lowercase().as_str())
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

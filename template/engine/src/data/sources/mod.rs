//! Datasets from files: IDX, folders of images, and downloads.

#[cfg(feature = "download")]
pub mod download;
mod idx;
#[cfg(feature = "image-folder")]
mod image_folder;
mod labelled_images;

pub use idx::{Idx, read_idx, read_idx_file};
#[cfg(feature = "image-folder")]
pub use image_folder::{ImageFolder, Picture};
pub use labelled_images::LabelledImages;

//! Data loading: datasets, shuffling, augmentation, batching, prefetching, and sharding of each global
//! batch over the replicas.
//!
//! A [`Dataset`] returns the same example for the same index every time, so it can be [cached](Cached).
//! Shuffling and augmentation are configured in [`BatchOptions`] and applied after any cache, anew in every
//! epoch.

mod dataset;
mod distributed;
#[cfg(feature = "download")]
pub mod download;
mod idx;
#[cfg(feature = "image-folder")]
mod image_folder;
mod labelled_images;
mod limits;
mod prefetch;
mod random;
mod shard;
mod splits;

pub use dataset::{Cached, Dataset, Map, Subset, Zip, hash_all};
pub use distributed::{Augment, BatchInfo, BatchOptions, DistributedDataset, Epoch, Remainder};
pub use idx::{Idx, read_idx, read_idx_file};
#[cfg(feature = "image-folder")]
pub use image_folder::{ImageFolder, Picture};
pub use labelled_images::LabelledImages;
pub use random::stream;
pub use shard::{Collate, Shard};
pub use splits::Datasets;

// For implementations of `Dataset::hash_labels`.
pub use sha2::{Digest, Sha256};

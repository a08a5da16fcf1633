//! Data loading: datasets, shuffling, augmentation, batching, prefetching, and sharding of each global
//! batch over the replicas.
//!
//! A [`Dataset`] returns the same example for the same index every time, so it can be [cached](Cached).
//! Shuffling and augmentation are configured in [`BatchOptions`] and applied after any cache, anew in every
//! epoch.

mod dataset;
mod distributed;
mod limits;
mod sources;
mod splits;

pub use dataset::{Cached, Dataset, Map, Subset, Zip, hash_all};
pub use distributed::{
    Augment, BatchInfo, BatchOptions, Collate, DistributedDataset, Epoch, Remainder, Shard,
};
#[cfg(feature = "download")]
pub use sources::download;
pub use sources::{Idx, LabelledImages, read_idx, read_idx_file};
#[cfg(feature = "image-folder")]
pub use sources::{ImageFolder, Picture};
pub use splits::Datasets;

pub use crate::random::stream;

// For implementations of `Dataset::hash_labels`.
pub use sha2::{Digest, Sha256};

//! Examples and how they become batches: datasets, their order, augmentation, reading ahead, and
//! the split of each global batch over the replicas.
//!
//! A [`Dataset`] gives the same example for the same index every time, so it can be
//! [cached](Cached). What is random, the order and the augmentation, is named in [`BatchOptions`]
//! and happens after any cache, anew in every epoch.

mod dataset;
mod distributed;
#[cfg(feature = "download")]
pub mod download;
mod idx;
#[cfg(feature = "image-folder")]
mod image_folder;
mod prefetch;
mod random;
mod shard;

pub use dataset::{Cached, Dataset, Map, Subset, Zip, hash_all};
pub use distributed::{Augment, BatchInfo, BatchOptions, DistributedDataset, Epoch, Remainder};
pub use idx::{Idx, read_idx, read_idx_file};
#[cfg(feature = "image-folder")]
pub use image_folder::{ImageFolder, Picture};
pub use random::stream;
pub use shard::{Collate, Shard};

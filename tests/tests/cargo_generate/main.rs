//! Templates rendered by Kiln and by cargo-generate, to the same bytes.

mod door;
mod features;
mod formatted;
mod house_template;
mod parity;
mod peer;

//! Templates that Kiln and cargo-generate render to the same bytes, among them the example that is a template.

mod door;
mod features;
mod formatted;
mod house_template;
mod parity;
mod peer;

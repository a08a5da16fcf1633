//! TensorBoard's event files.
//!
//! An event file is a row of records, each a protobuf message `Event` in a frame with checksums.
//! Sources: `tensorflow/core/lib/io/record_writer.h` for the frame, and `event.proto` and
//! `summary.proto` in `tensorflow/core/util` and `tensorflow/core/framework` for the messages.

use std::{
    fs,
    fs::{File, OpenOptions},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use prost::Message;

use crate::{picture::Picture, system};

/// Buckets of a histogram, as in `tf.summary.histogram`.
const BUCKETS: usize = 30;

/// Partial sums of a histogram: independent additions need not wait for one another.
const LANES: usize = 4;

/// File name prefix of event files.
pub(super) const PREFIX: &str = "events.out.tfevents.";

/// Writes an event file.
///
/// TensorBoard searches folders recursively; each folder with event files is a run, so that with writers in
/// `runs/train` and `runs/validation`, `tensorboard --logdir runs` shows a metric of both in one chart.
#[derive(Debug)]
pub struct EventWriter {
    file: BufWriter<File>,
    path: PathBuf,
}

impl EventWriter {
    /// Starts a new run in `folder`, which replaces older files of the folder in TensorBoard.
    ///
    /// # Errors
    /// The folder or the file cannot be created.
    pub fn create(folder: &Path) -> Result<Self> {
        Self::resume(folder, 0)
    }

    /// Continues the run in `folder`, in a new file, as TensorBoard expects.
    ///
    /// A killed run may have written steps after its last checkpoint, which are repeated from `first_step`
    /// on: TensorBoard drops earlier values of these steps.
    ///
    /// # Errors
    /// The folder or the file cannot be created.
    pub fn resume(folder: &Path, first_step: usize) -> Result<Self> {
        let cannot = || format!("cannot make an event file in {}", folder.display());
        fs::create_dir_all(folder).with_context(cannot)?;
        let (path, file) = create_file(folder).with_context(cannot)?;
        let file = BufWriter::new(file);
        let mut writer = EventWriter { file, path };
        writer.write(&Event {
            file_version: Some("brain.Event:2".into()),
            ..Event::at(0)
        })?;
        writer.write(&Event {
            session_log: Some(SessionLog { status: START }),
            ..Event::at(first_step)
        })?;
        writer.flush()?;
        Ok(writer)
    }

    /// Path of the event file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a scalar at a step, as a 32-bit float.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn scalar(&mut self, step: usize, tag: &str, value: f64) -> Result<()> {
        self.summary(
            step,
            SummaryValue {
                tag: tag.into(),
                simple_value: Some(value as f32),
                ..SummaryValue::default()
            },
        )
    }

    /// Writes an image at a step.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn image(&mut self, step: usize, tag: &str, picture: &Picture) -> Result<()> {
        let image = Image {
            height: i32::try_from(picture.height())?,
            width: i32::try_from(picture.width())?,
            colorspace: picture.channels().count() as i32, // 1 is grey, 3 is RGB
            encoded_image_string: picture.to_png()?,
        };
        self.summary(
            step,
            SummaryValue {
                tag: tag.into(),
                image: Some(image),
                ..SummaryValue::default()
            },
        )
    }

    /// Writes a Markdown text at a step.
    ///
    /// Source: `text_pb` in `tensorboard/plugins/text/summary_v2.py`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn text(&mut self, step: usize, tag: &str, markdown: &str) -> Result<()> {
        let plugin_data = PluginData {
            plugin_name: "text".into(),
            ..PluginData::default()
        };
        self.summary(
            step,
            SummaryValue {
                tag: tag.into(),
                metadata: Some(SummaryMetadata {
                    plugin_data: Some(plugin_data),
                }),
                tensor: Some(Tensor {
                    dtype: DT_STRING,
                    string_val: vec![markdown.into()],
                    ..Tensor::default()
                }),
                ..SummaryValue::default()
            },
        )
    }

    /// Writes a histogram of any number of values at a step.
    ///
    /// It has 30 buckets of equal width from minimum to maximum, which belongs to the last one; a single
    /// bucket of width 0 for equal values, and none without values. Non-finite values are left out, and their
    /// number is written as the scalar `<tag>/not_finite`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn histogram(&mut self, step: usize, tag: &str, values: &[f32]) -> Result<()> {
        let histogram = Histogram::of(values);
        let left_out = values.len() as f64 - histogram.num;
        self.summary(
            step,
            SummaryValue {
                tag: tag.into(),
                histo: Some(histogram),
                ..SummaryValue::default()
            },
        )?;
        if left_out > 0.0 {
            self.scalar(step, &format!("{tag}/not_finite"), left_out)?;
        }
        Ok(())
    }

    /// Flushes the file for TensorBoard. Dropping also flushes, but ignores errors.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        let flushed = self.file.flush();
        flushed.with_context(|| format!("cannot write {}", self.path.display()))
    }

    pub(super) fn summary(&mut self, step: usize, value: SummaryValue) -> Result<()> {
        self.write(&Event {
            summary: Some(Summary { value: vec![value] }),
            ..Event::at(step)
        })
    }

    fn write(&mut self, event: &Event) -> Result<()> {
        let record = frame(&event.encode_to_vec());
        let written = self.file.write_all(&record);
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// Creates a file whose name sorts after all others of the folder, as TensorBoard reads them by name.
fn create_file(folder: &Path) -> Result<(PathBuf, File)> {
    let mut second = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    for entry in fs::read_dir(folder)? {
        if let Some(used) = second_of(&entry?.file_name().to_string_lossy()) {
            second = second.max(used + 1);
        }
    }
    let name = format!("{PREFIX}{second:010}.{}.{}.v2", host(), process::id());
    let path = folder.join(name);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)?;
    Ok((path, file))
}

/// The timestamp, in seconds, in the name of an event file.
fn second_of(name: &str) -> Option<u64> {
    let second = name.strip_prefix(PREFIX)?.split('.').next()?;
    second.parse().ok()
}

/// The host name, sanitized for a file name; `local` if unknown.
fn host() -> String {
    let is_plain = |character: &char| character.is_ascii_alphanumeric() || *character == '-';
    let name = system::host().unwrap_or_default();
    let name: String = name.chars().filter(is_plain).collect();
    match name.is_empty() {
        true => "local".into(),
        false => name,
    }
}

/// A record: the length, its checksum, the data, its checksum, all little-endian.
fn frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let parts: [&[u8]; 4] = [
        &length,
        &masked_crc(&length).to_le_bytes(),
        data,
        &masked_crc(data).to_le_bytes(),
    ];
    parts.concat()
}

/// CRC32C, masked so that checksums of data that contain checksums stay strong.
///
/// Source: `tensorflow/core/lib/hash/crc32c.h`.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

/// `Event` of `event.proto`, with its `oneof` as optional fields, which have the same encoding.
#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

impl Event {
    /// An empty event at the current time.
    fn at(step: usize) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Event {
            wall_time: now.unwrap_or_default().as_secs_f64(),
            step: i64::try_from(step).unwrap_or(i64::MAX),
            ..Event::default()
        }
    }
}

/// `SessionLog` of `event.proto`.
#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `SessionLog.START`: discards events of this step and later.
const START: i32 = 1;

/// `Summary` of `summary.proto`.
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<SummaryValue>,
}

/// `Summary.Value` of `summary.proto`, with its `oneof` as optional fields.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SummaryValue {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "4")]
    image: Option<Image>,
    #[prost(message, optional, tag = "5")]
    histo: Option<Histogram>,
    #[prost(message, optional, tag = "8")]
    tensor: Option<Tensor>,
    #[prost(message, optional, tag = "9")]
    metadata: Option<SummaryMetadata>,
}

impl SummaryValue {
    /// A message of a plugin, which has no value.
    pub fn of_plugin(tag: &str, plugin_name: &str, content: Vec<u8>) -> Self {
        let plugin_data = PluginData {
            plugin_name: plugin_name.into(),
            content,
        };
        SummaryValue {
            tag: tag.into(),
            metadata: Some(SummaryMetadata {
                plugin_data: Some(plugin_data),
            }),
            // Without a value, TensorBoard does not list the tag.
            tensor: Some(Tensor {
                dtype: DT_FLOAT,
                float_val: vec![0.0],
                ..Tensor::default()
            }),
            ..SummaryValue::default()
        }
    }
}

/// `SummaryMetadata` of `summary.proto`.
#[derive(Clone, PartialEq, Message)]
struct SummaryMetadata {
    #[prost(message, optional, tag = "1")]
    plugin_data: Option<PluginData>,
}

/// `SummaryMetadata.PluginData` of `summary.proto`: the tab of TensorBoard for the value.
#[derive(Clone, PartialEq, Message)]
struct PluginData {
    #[prost(string, tag = "1")]
    plugin_name: String,
    /// A message of the plugin.
    #[prost(bytes = "vec", tag = "2")]
    content: Vec<u8>,
}

/// `TensorProto` of `tensor.proto`; a scalar without a shape.
#[derive(Clone, PartialEq, Message)]
struct Tensor {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(float, repeated, tag = "5")]
    float_val: Vec<f32>,
    #[prost(string, repeated, tag = "8")]
    string_val: Vec<String>,
}

/// `DT_FLOAT` of `types.proto`.
const DT_FLOAT: i32 = 1;

/// `DT_STRING` of `types.proto`.
const DT_STRING: i32 = 7;

/// `Summary.Image` of `summary.proto`.
#[derive(Clone, PartialEq, Message)]
struct Image {
    #[prost(int32, tag = "1")]
    height: i32,
    #[prost(int32, tag = "2")]
    width: i32,
    /// The number of channels.
    #[prost(int32, tag = "3")]
    colorspace: i32,
    /// A PNG file.
    #[prost(bytes = "vec", tag = "4")]
    encoded_image_string: Vec<u8>,
}

/// `HistogramProto` of `histogram.proto`.
#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(double, tag = "1")]
    min: f64,
    #[prost(double, tag = "2")]
    max: f64,
    #[prost(double, tag = "3")]
    num: f64,
    #[prost(double, tag = "4")]
    sum: f64,
    #[prost(double, tag = "5")]
    sum_squares: f64,
    /// The exclusive upper limit of each bucket.
    #[prost(double, repeated, tag = "6")]
    bucket_limit: Vec<f64>,
    /// The number of values in each bucket.
    #[prost(double, repeated, tag = "7")]
    bucket: Vec<f64>,
}

impl Histogram {
    fn of(values: &[f32]) -> Self {
        let Some([min, max]) = finite_range(values) else {
            return Histogram::default();
        };
        let bucket_limit = limits(min, max);
        let scale = bucket_limit.len() as f64 / (max - min);
        let mut counts = vec![[0_u64; LANES]; bucket_limit.len()];
        let [mut sum, mut sum_squares] = [[0.0; LANES]; 2];
        for values in values.chunks(LANES) {
            let lanes = values.iter().enumerate();
            for (lane, value) in lanes.filter(|(_, value)| value.is_finite()) {
                let value = f64::from(*value);
                let near = ((value - min) * scale) as usize;
                counts[bucket_of(value, &bucket_limit, near)][lane] += 1;
                sum[lane] += value;
                sum_squares[lane] += value * value;
            }
        }
        let counts = counts.iter().map(|lanes| lanes.iter().sum::<u64>() as f64);
        let bucket: Vec<f64> = counts.collect();
        Histogram {
            min,
            max,
            num: bucket.iter().sum(),
            sum: sum.iter().sum(),
            sum_squares: sum_squares.iter().sum(),
            bucket_limit,
            bucket,
        }
    }
}

/// The bucket of a value by the upper limits of all buckets, from one near it: a quotient is rounded.
fn bucket_of(value: f64, limits: &[f64], near: usize) -> usize {
    let last = limits.len() - 1;
    let mut bucket = near.min(last);
    while bucket < last && limits[bucket] <= value {
        bucket += 1;
    }
    while bucket > 0 && limits[bucket - 1] > value {
        bucket -= 1;
    }
    bucket
}

/// The minimum and maximum of the finite values; `None` if there are none.
fn finite_range(values: &[f32]) -> Option<[f64; 2]> {
    let finite = values.iter().copied().filter(|value| value.is_finite());
    let (min, max) = finite.fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), value| {
        (min.min(value), max.max(value))
    });
    (min <= max).then(|| [min, max].map(f64::from))
}

/// The upper limits of the buckets from `min` to `max`.
fn limits(min: f64, max: f64) -> Vec<f64> {
    if min == max {
        return vec![max];
    }
    let width = (max - min) / BUCKETS as f64;
    let inner = (1..BUCKETS).map(|bucket| min + bucket as f64 * width);
    inner.chain([max]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Channels;

    /// The events of a file, after checking its frames.
    fn read(path: &Path) -> Vec<Event> {
        let bytes = fs::read(path).unwrap();
        let mut rest = bytes.as_slice();
        let mut events = Vec::new();
        while !rest.is_empty() {
            let (length, after) = rest.split_at(8);
            let data = &after[4..][..u64::from_le_bytes(length.try_into().unwrap()) as usize];
            let framed = frame(data);
            assert_eq!(rest[..framed.len()], framed);
            events.push(Event::decode(data).unwrap());
            rest = &rest[framed.len()..];
        }
        events
    }

    #[test]
    fn a_frame_has_the_bytes_that_tensorflow_writes() {
        // The frame header of a first record of 24 bytes.
        let header = [24, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22];
        assert_eq!(frame(&[0; 24])[..12], header);
        // As computed by tensorboard 2.20.
        assert_eq!(masked_crc(b"123456789"), 0xc78a_b0e5);
    }

    #[test]
    fn a_file_begins_with_its_version_and_the_step_where_it_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let writer = EventWriter::resume(folder.path(), 7).unwrap();
        let events = read(writer.path());
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        assert_eq!(events[1].step, 7);
        assert_eq!(events[1].session_log, Some(SessionLog { status: START }));
        assert_eq!(events.len(), 2);
    }

    #[test]
    fn each_file_comes_after_the_others_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let make = || {
            EventWriter::create(folder.path())
                .unwrap()
                .path()
                .to_owned()
        };
        let files = [make(), make(), make()];
        assert!(files.is_sorted());
        let mut found: Vec<PathBuf> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        found.sort();
        assert_eq!(found, files);
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path()).unwrap();
        let picture = Picture::new(2, 1, Channels::Gray, vec![0, 255]).unwrap();
        writer.scalar(3, "loss", 0.5).unwrap();
        writer.image(4, "samples", &picture).unwrap();
        writer
            .histogram(5, "weights", &[1.0, 2.0, f32::NAN])
            .unwrap();
        writer.text(6, "run", "**ä**").unwrap();
        writer.flush().unwrap();
        let events = read(writer.path());
        let value = |event: &Event| event.summary.as_ref().unwrap().value[0].clone();
        assert_eq!(events[2].step, 3);
        assert_eq!(value(&events[2]).tag, "loss");
        assert_eq!(value(&events[2]).simple_value, Some(0.5));
        let image = value(&events[3]).image.unwrap();
        assert_eq!((image.width, image.height, image.colorspace), (2, 1, 1));
        assert_eq!(image.encoded_image_string, picture.to_png().unwrap());
        assert_eq!(value(&events[4]).histo.unwrap().num, 2.0);
        assert_eq!(value(&events[5]).tag, "weights/not_finite");
        assert_eq!(value(&events[5]).simple_value, Some(1.0));
        let text = value(&events[6]);
        assert_eq!(
            text.metadata.unwrap().plugin_data.unwrap().plugin_name,
            "text"
        );
        assert_eq!(text.tensor.unwrap().string_val, ["**ä**"]);
    }

    #[test]
    fn a_text_has_the_bytes_of_its_messages() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path()).unwrap();
        writer.text(0, "a", "b").unwrap();
        writer.flush().unwrap();
        let events = read(writer.path());
        let summary = events[2].summary.as_ref().unwrap().encode_to_vec();
        // As written by tensorboard 2.20: the tag, a tensor of type 7 with one string, the plugin.
        let expected = b"\x0a\x14\x0a\x01a\x42\x05\x08\x07\x42\x01b\x4a\x08\x0a\x06\x0a\x04text";
        assert_eq!(summary, expected);
    }

    #[test]
    fn each_value_is_in_the_bucket_of_its_range() {
        let values: Vec<f32> = (0..=60).map(|value| value as f32).collect();
        let histogram = Histogram::of(&values);
        assert_eq!(histogram.bucket_limit.len(), BUCKETS);
        assert_eq!(histogram.bucket_limit[0], 2.0);
        assert_eq!(histogram.bucket_limit[29], 60.0);
        // 0 and 1 are in the first bucket, 2 in the second; 60 is in the last with 58 and 59.
        assert_eq!(histogram.bucket[..29], [2.0; 29]);
        assert_eq!(histogram.bucket[29], 3.0);
        assert_eq!((histogram.min, histogram.max), (0.0, 60.0));
        assert_eq!((histogram.num, histogram.sum), (61.0, 1830.0));
        assert_eq!(histogram.sum_squares, 73_810.0);
    }

    #[test]
    fn histograms_of_odd_values_follow_the_rule() {
        assert_eq!(Histogram::of(&[]), Histogram::default());
        assert_eq!(
            Histogram::of(&[f32::NAN, f32::INFINITY]),
            Histogram::default()
        );
        let constant = Histogram::of(&[3.0; 4]);
        assert_eq!(constant.bucket_limit, [3.0]);
        assert_eq!(constant.bucket, [4.0]);
        let extreme = Histogram::of(&[f32::MIN, 0.0, f32::MAX, f32::NEG_INFINITY]);
        assert_eq!(extreme.bucket.iter().sum::<f64>(), 3.0);
        assert!(extreme.bucket_limit.is_sorted());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = EventWriter::create(file.path()).unwrap_err();
        assert!(error.to_string().contains("cannot make an event file in"));
    }
}

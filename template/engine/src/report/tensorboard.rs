//! TensorBoard's event files.
//!
//! An event file is a row of records, each a protobuf message `Event` in a frame with checksums.
//! Sources: `tensorflow/core/lib/io/record_writer.h` for the frame, and `event.proto` and
//! `summary.proto` in `tensorflow/core/util` and `tensorflow/core/framework` for the messages.

use std::{
    env, fs,
    fs::{File, OpenOptions},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use prost::Message;

use super::picture::Picture;

/// Buckets of a histogram, as in `tf.summary.histogram`.
const BUCKETS: usize = 30;

/// What the name of an event file begins with.
const PREFIX: &str = "events.out.tfevents.";

/// Writes an event file.
///
/// TensorBoard reads the folder and all below it: each folder with event files is a run, so that
/// `tensorboard --logdir runs` with writers in `runs/train` and `runs/validation` draws a metric of
/// both into one chart.
#[derive(Debug)]
pub struct EventWriter {
    file: BufWriter<File>,
    path: PathBuf,
}

impl EventWriter {
    /// Begins a new run in `folder`. TensorBoard forgets what older files of the folder say.
    ///
    /// # Errors
    /// The folder or the file cannot be made.
    pub fn create(folder: &Path) -> Result<Self> {
        Self::resume(folder, 0)
    }

    /// Goes on with the run in `folder`, in a file of its own, as TensorBoard expects it.
    ///
    /// A run that was killed may have written steps after its last checkpoint. They are done again
    /// from `first_step` on, so TensorBoard is told to forget what it has of `first_step` and later.
    ///
    /// # Errors
    /// The folder or the file cannot be made.
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

    /// The file that is written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A number at a step, kept as a 32-bit float.
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

    /// A picture at a step.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn image(&mut self, step: usize, tag: &str, picture: &Picture) -> Result<()> {
        let image = Image {
            height: i32::try_from(picture.height())?,
            width: i32::try_from(picture.width())?,
            colorspace: picture.channels().count() as i32, // 1 is grey and 3 is RGB there too
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

    /// A text in Markdown at a step.
    ///
    /// Source: `text_pb` in `tensorboard/plugins/text/summary_v2.py`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn text(&mut self, step: usize, tag: &str, markdown: &str) -> Result<()> {
        let plugin_data = PluginData {
            plugin_name: "text".into(),
        };
        self.summary(
            step,
            SummaryValue {
                tag: tag.into(),
                metadata: Some(SummaryMetadata {
                    plugin_data: Some(plugin_data),
                }),
                tensor: Some(TensorOfText {
                    dtype: DT_STRING,
                    string_val: vec![markdown.into()],
                }),
                ..SummaryValue::default()
            },
        )
    }

    /// The distribution of `values`, of any number, at a step.
    ///
    /// 30 buckets of equal width reach from the smallest to the largest value, which is in the
    /// last. Equal values are in one bucket without width, and no values make no bucket. Values
    /// that are not finite have no place in a histogram: they are left out of it and their number
    /// is written as the scalar `<tag>/not_finite`.
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

    /// Hands everything to the file system, so that TensorBoard sees it. Dropping does it too, but
    /// cannot tell an error.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        let flushed = self.file.flush();
        flushed.with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn summary(&mut self, step: usize, value: SummaryValue) -> Result<()> {
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

/// Makes a file that comes after all others of the folder: TensorBoard reads them by name.
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

/// The second in the name of an event file.
fn second_of(name: &str) -> Option<u64> {
    let second = name.strip_prefix(PREFIX)?.split('.').next()?;
    second.parse().ok()
}

/// The name of this machine where the environment tells it, else `local`.
fn host() -> String {
    let name = env::var("HOSTNAME").unwrap_or_default();
    let is_plain = |character: char| character.is_ascii_alphanumeric() || character == '-';
    let name: String = name
        .chars()
        .filter(|character| is_plain(*character))
        .collect();
    if name.is_empty() {
        "local".into()
    } else {
        name
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

/// CRC32C, rotated and shifted so that a checksum over data with checksums stays a good one.
///
/// Source: `tensorflow/core/lib/hash/crc32c.h`.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

/// `Event` of `event.proto`. The members of its `oneof` are optional fields here: the same bytes.
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
    /// An event now that says nothing yet.
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

/// `SessionLog.START`: what was logged of this step and later is void.
const START: i32 = 1;

/// `Summary` of `summary.proto`.
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<SummaryValue>,
}

/// `Summary.Value` of `summary.proto`, with its `oneof` as optional fields.
#[derive(Clone, PartialEq, Message)]
struct SummaryValue {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "4")]
    image: Option<Image>,
    #[prost(message, optional, tag = "5")]
    histo: Option<Histogram>,
    #[prost(message, optional, tag = "8")]
    tensor: Option<TensorOfText>,
    #[prost(message, optional, tag = "9")]
    metadata: Option<SummaryMetadata>,
}

/// `SummaryMetadata` of `summary.proto`.
#[derive(Clone, PartialEq, Message)]
struct SummaryMetadata {
    #[prost(message, optional, tag = "1")]
    plugin_data: Option<PluginData>,
}

/// `SummaryMetadata.PluginData` of `summary.proto`: which tab of TensorBoard shows the value.
#[derive(Clone, PartialEq, Message)]
struct PluginData {
    #[prost(string, tag = "1")]
    plugin_name: String,
}

/// `TensorProto` of `tensor.proto` with one text: without a shape it is a scalar.
#[derive(Clone, PartialEq, Message)]
struct TensorOfText {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(string, repeated, tag = "8")]
    string_val: Vec<String>,
}

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
    /// The upper end of each bucket, which itself belongs to the next one.
    #[prost(double, repeated, tag = "6")]
    bucket_limit: Vec<f64>,
    /// The number of values in each bucket.
    #[prost(double, repeated, tag = "7")]
    bucket: Vec<f64>,
}

impl Histogram {
    fn of(values: &[f32]) -> Self {
        let values = values.iter().filter(|value| value.is_finite());
        let values: Vec<f64> = values.map(|value| f64::from(*value)).collect();
        let Some(min) = values.iter().copied().reduce(f64::min) else {
            return Histogram::default();
        };
        let max = values.iter().copied().fold(min, f64::max);
        let bucket_limit = limits(min, max);
        let mut bucket = vec![0.0; bucket_limit.len()];
        for value in &values {
            let index = bucket_limit.partition_point(|limit| limit <= value);
            bucket[index.min(bucket_limit.len() - 1)] += 1.0;
        }
        Histogram {
            min,
            max,
            num: values.len() as f64,
            sum: values.iter().sum(),
            sum_squares: values.iter().map(|value| value * value).sum(),
            bucket_limit,
            bucket,
        }
    }
}

/// The upper ends of the buckets from `min` to `max`.
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
    use crate::report::picture::Channels;

    /// The events of a file, with its frames checked.
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
        // How an event file begins whose first record has 24 bytes.
        let header = [24, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22];
        assert_eq!(frame(&[0; 24])[..12], header);
        // What tensorboard 2.20 computes.
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
        // What tensorboard 2.20 writes: the tag, a tensor of type 7 with one string, the plugin.
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

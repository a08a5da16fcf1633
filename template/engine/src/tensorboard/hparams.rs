//! Hyper-parameters for the HPARAMS tab of TensorBoard.
//!
//! Sources: `tensorboard/plugins/hparams/plugin_data.proto` and `api.proto`, and `summary.py` beside them. There
//! is no summary of the experiment: TensorBoard then takes the columns from the runs below its log folder.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use prost::{Message, Oneof};
use serde_json::Value;

use super::{
    EventWriter,
    events::{PREFIX, SummaryValue},
};
use crate::tracking::Parameters;

const PLUGIN: &str = "hparams";
const START_TAG: &str = "_hparams_/session_start_info";
const END_TAG: &str = "_hparams_/session_end_info";

/// Writes the hyper-parameters of the run with event files below `folder`, and returns the writer for
/// [`end`].
///
/// TensorBoard uses the first values that it finds, so that an earlier file of the same run is removed.
///
/// # Errors
/// The folder or a file cannot be written.
pub fn start(folder: &Path, parameters: &Parameters) -> Result<EventWriter> {
    remove_earlier(folder).with_context(|| format!("cannot write in {}", folder.display()))?;
    let mut writer = EventWriter::create(folder)?;
    let parameters = parameters.iter();
    let parameters = parameters.map(|(name, value)| (name.clone(), value_of(value)));
    let info = SessionStartInfo {
        hparams: parameters.collect(),
        start_time_secs: now(),
    };
    let data = HParams {
        session_start_info: Some(info),
        ..HParams::default()
    };
    write(&mut writer, START_TAG, &data)?;
    Ok(writer)
}

/// Writes the end of the run.
///
/// # Errors
/// The file cannot be written.
pub fn end(writer: &mut EventWriter, is_success: bool) -> Result<()> {
    let info = SessionEndInfo {
        status: if is_success { SUCCESS } else { FAILURE },
        end_time_secs: now(),
    };
    let data = HParams {
        session_end_info: Some(info),
        ..HParams::default()
    };
    write(writer, END_TAG, &data)
}

fn remove_earlier(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_event_file = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_event_file && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn write(writer: &mut EventWriter, tag: &str, data: &HParams) -> Result<()> {
    let value = SummaryValue::of_plugin(tag, PLUGIN, data.encode_to_vec());
    writer.summary(0, value)?;
    writer.flush()
}

/// A hyper-parameter: a number, a flag, or a text; a list as text.
fn value_of(value: &Value) -> ProtobufValue {
    let kind = match value {
        Value::Number(number) => Kind::Number(number.as_f64().unwrap_or(f64::NAN)),
        Value::Bool(flag) => Kind::Bool(*flag),
        Value::String(text) => Kind::String(text.clone()),
        other => Kind::String(other.to_string()),
    };
    ProtobufValue { kind: Some(kind) }
}

/// Seconds since 1970.
fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

/// `HParamsPluginData`, with its `oneof` as optional fields, which have the same encoding. The version is 0.
#[derive(Clone, PartialEq, Message)]
struct HParams {
    #[prost(message, optional, tag = "3")]
    session_start_info: Option<SessionStartInfo>,
    #[prost(message, optional, tag = "4")]
    session_end_info: Option<SessionEndInfo>,
}

#[derive(Clone, PartialEq, Message)]
struct SessionStartInfo {
    #[prost(btree_map = "string, message", tag = "1")]
    hparams: BTreeMap<String, ProtobufValue>,
    #[prost(double, tag = "5")]
    start_time_secs: f64,
}

#[derive(Clone, PartialEq, Message)]
struct SessionEndInfo {
    #[prost(int32, tag = "1")]
    status: i32,
    #[prost(double, tag = "2")]
    end_time_secs: f64,
}

/// `STATUS_SUCCESS` and `STATUS_FAILURE` of `api.proto`.
const SUCCESS: i32 = 1;
const FAILURE: i32 = 2;

/// `google.protobuf.Value` without lists, objects and null.
#[derive(Clone, PartialEq, Message)]
struct ProtobufValue {
    #[prost(oneof = "Kind", tags = "2, 3, 4")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    String(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_session_has_the_bytes_of_its_messages() {
        let parameters = [("a", json!(0.5)), ("b", json!("x")), ("c", json!(true))];
        let parameters = parameters.map(|(name, value)| (name.to_owned(), value_of(&value)));
        let info = SessionStartInfo {
            hparams: parameters.into(),
            start_time_secs: 0.0,
        };
        let data = HParams {
            session_start_info: Some(info),
            ..HParams::default()
        };
        // As written by tensorboard 2.20, whose map has no order.
        let expected = b"\x1a\x23\
            \x0a\x0e\x0a\x01a\x12\x09\x11\x00\x00\x00\x00\x00\x00\xe0\x3f\
            \x0a\x08\x0a\x01b\x12\x03\x1a\x01x\
            \x0a\x07\x0a\x01c\x12\x02\x20\x01";
        assert_eq!(data.encode_to_vec(), expected.as_slice());
    }

    #[test]
    fn a_later_start_replaces_the_parameters() {
        let folder = tempfile::tempdir().unwrap();
        let parameters = vec![("epochs".to_owned(), json!(3))];
        fs::create_dir(folder.path().join("train")).unwrap();
        drop(start(folder.path(), &parameters).unwrap());
        let mut writer = start(folder.path(), &parameters).unwrap();
        end(&mut writer, true).unwrap();
        let names = fs::read_dir(folder.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let events = names.filter(|name| name.starts_with(PREFIX)).count();
        assert_eq!(events, 1);
        assert!(folder.path().join("train").is_dir());
    }
}

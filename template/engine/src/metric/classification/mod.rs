//! Metrics of classifiers.

mod accuracy;
mod auc;
mod calibration;
mod confusion;
mod labels;
mod scores;

pub use accuracy::{HasLabels, sparse_categorical_accuracy, sparse_top_k_categorical_accuracy};
pub use auc::{
    Area, AreaUnderRoc, AveragePrecision, BinaryRanking, MulticlassAreaUnderRoc, PrecisionArea,
    RocArea,
};
pub use calibration::CalibrationError;
pub use confusion::{ConfusionMatrix, Statistic};

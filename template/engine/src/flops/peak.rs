//! Peak FLOP/s of devices.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use burn::tensor::{Device, Int, Tensor};

/// Time for the measurement of a CPU.
const MEASUREMENT: Duration = Duration::from_millis(50);

/// Rows and columns of its matrices: 4 MiB each, and 2 GFLOP a product.
const SIZE: usize = 1_024;

/// Peak FLOP/s of GPUs in dense bfloat16 matrix products, by a part of their name. A name that contains another one
/// comes first.
///
/// Source: NVIDIA's data sheets, without sparsity, as `get_peak_flops` of torchtitan (torchtitan/tools/utils.py).
const GPUS: &[(&str, f64)] = &[
    ("B200", 2.25e15),
    ("H200", 9.89e14),
    ("H100 NVL", 8.35e14),
    ("H100 PCIe", 7.56e14),
    ("H100", 9.89e14),
    ("L40S", 3.62e14),
    ("A100", 3.12e14),
];

/// The peak FLOP/s of a GPU by its name, such as `NVIDIA H100 80GB HBM3`; `None` if it is not in the table.
pub fn of_gpu(name: &str) -> Option<f64> {
    let mut gpus = GPUS.iter();
    gpus.find(|(part, _)| name.contains(part))
        .map(|(_, peak)| *peak)
}

/// The names of the NVIDIA GPUs of this machine, on Linux.
///
/// Source: `/proc/driver/nvidia/gpus/*/information` in the README of NVIDIA's driver, "The proc interface".
pub fn nvidia_gpus() -> Vec<String> {
    let folders = std::fs::read_dir("/proc/driver/nvidia/gpus");
    let folders = folders.into_iter().flatten().flatten();
    let texts =
        folders.filter_map(|gpu| std::fs::read_to_string(gpu.path().join("information")).ok());
    texts.filter_map(|text| model(&text)).collect()
}

fn model(information: &str) -> Option<String> {
    let mut lines = information.lines();
    lines.find_map(|line| Some(line.strip_prefix("Model:")?.trim().to_owned()))
}

/// The FLOP/s of float32 matrix products on all cores of this CPU, the highest of several; takes about 60 ms.
pub fn measure_cpu() -> f64 {
    let device = Device::flex();
    // Not random: a training draws from the same generator.
    let values = Tensor::<1, Int>::arange(0..(SIZE * SIZE) as i64, &device);
    let left = values.float().sin().reshape([SIZE, SIZE]); // [SIZE, SIZE]
    let right = left.clone() + 1.0; // [SIZE, SIZE]
    // The CPU computes at once.
    let started = Instant::now();
    let mut shortest = Duration::MAX;
    while started.elapsed() < MEASUREMENT || shortest == Duration::MAX {
        let product = Instant::now();
        black_box(left.clone().matmul(right.clone()));
        shortest = shortest.min(product.elapsed());
    }
    2.0 * (SIZE as f64).powi(3) / shortest.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_known_by_name() {
        for (name, peak) in [
            ("NVIDIA H100 80GB HBM3", Some(9.89e14)),
            ("NVIDIA H100 PCIe", Some(7.56e14)),
            ("NVIDIA H100 NVL", Some(8.35e14)),
            ("NVIDIA H200", Some(9.89e14)),
            ("NVIDIA A100-SXM4-80GB", Some(3.12e14)),
            ("NVIDIA GeForce GTX 1080", None),
        ] {
            assert_eq!(of_gpu(name), peak, "{name}");
        }
        let information = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 189\n";
        assert_eq!(model(information).as_deref(), Some("NVIDIA H200"));
        assert_eq!(model("IRQ: 189"), None);
    }

    #[test]
    fn a_cpu_is_measured() {
        let peak = measure_cpu();
        assert!((1e7..1e15).contains(&peak), "{peak}");
    }
}

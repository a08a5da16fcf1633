use anyhow::ensure;
use burn::tensor::Tensor;

use crate::support::{contract, on_own_thread, set_up};

#[test]
fn replicas_are_as_many_as_asked_for() {
    contract("strategy.devices", || {
        for (options, expected) in [
            (&["--strategy", "one-device"][..], 1),
            (&["--strategy", "mirrored", "--replicas", "1"], 1),
            (&["--strategy", "mirrored", "--replicas", "3"], 3),
            (&["--strategy", "parameter-server", "--replicas", "2"], 2),
        ] {
            let options = options.to_vec();
            let replicas = on_own_thread(move || Ok(set_up(&options)?.strategy.num_replicas()))?;
            ensure!(
                replicas == expected,
                "there are {replicas} replicas instead of {expected}"
            );
        }
        Ok(())
    });
}

#[test]
fn every_device_computes() {
    contract("strategy.devices", || {
        let job = set_up(&["--strategy", "mirrored", "--replicas", "2"])?;
        let sums = job.strategy.run_on_all(|replica| {
            Ok(Tensor::<1>::ones([5], replica.device())
                .sum()
                .into_scalar::<f32>())
        })?;
        ensure!(sums.iter().all(|sum| *sum == 5.0), "five ones are {sums:?}");
        Ok(())
    });
}

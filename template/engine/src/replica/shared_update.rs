//! Parameter updates shared by all replicas of a process.
//!
//! On the CPU, replicas can share parameter tensors. The first replica then updates them with the threads
//! of all replicas, and memory holds parameters and optimizer state once. Replicas on GPUs each update
//! their own copy.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;
use rayon::ThreadPool;

use super::{Pipeline, ReplicaContext};
use kiln_kernels::threads::start_threads;

use crate::{comm::queues::Queues, erased, optim::FlatGradients};

/// The state of shared updates of a process.
pub(crate) struct SharedUpdate {
    pub threads: Arc<ThreadPool>,
    /// The updated state from the first replica to each of the others, which may lag behind.
    made: Queues<Box<dyn erased::State>>,
}

impl SharedUpdate {
    /// Creates the shared update of the replicas at `places`, with `cores` cores in total; `None` if they do
    /// not share memory, or for a single replica.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn start(places: &[(Device, Option<Pipeline>)], cores: usize) -> Result<Option<Self>> {
        let mut places_in_memory = places
            .iter()
            .map(|(device, pipeline)| *device == Device::flex() && pipeline.is_none());
        let shared = places.len() > 1 && places_in_memory.all(|in_memory| in_memory);
        if !shared {
            return Ok(None);
        }
        Ok(Some(SharedUpdate {
            threads: start_threads(cores)?,
            made: Queues::new(places.len()),
        }))
    }
}

impl ReplicaContext {
    /// Sums gradients over all replicas, in the precision of `--exchange-precision`. With a shared update, `None` on all but the first replica of this
    /// process; their models are released until [`update`](Self::update).
    ///
    /// # Errors
    /// A replica failed, or has another model.
    pub fn reduce_gradients(&self, mut gradients: FlatGradients) -> Result<Option<FlatGradients>> {
        if self.shared_update().is_none() {
            self.all_reduce_gradients(&mut gradients)?;
            return Ok(Some(gradients));
        }
        let updates = self.place() == 0;
        if !updates {
            // Only tensors without other owners are updated in place.
            erased::release()?;
        }
        let (exchange, buckets) = (self.exchange(), gradients.buckets_mut()?);
        exchange.round(buckets);
        self.cross_device_ops()
            .reduce_buckets(self.rank(), exchange, buckets)?;
        // Emptied on the others.
        exchange.round(buckets);
        Ok(updates.then_some(gradients))
    }

    /// Sums gradients over all replicas, to each of them: first with the devices' collective, if any, then
    /// through host memory.
    fn all_reduce_gradients(&self, gradients: &mut FlatGradients) -> Result<()> {
        if self.num_replicas() == 1 {
            return Ok(());
        }
        let (ops, exchange) = (self.cross_device_ops(), self.exchange());
        let Some(collective) = ops.collective() else {
            let buckets = gradients.buckets_mut()?;
            exchange.round(buckets);
            ops.sum_gradients(self.rank(), exchange, buckets)?;
            exchange.round(buckets);
            return Ok(());
        };
        // A device collective would wait forever for a failed replica.
        ops.meet()?;
        let on_devices = gradients.sum_over(collective, self.place(), exchange)?;
        ensure!(
            on_devices,
            "gradients are in host memory instead of on devices"
        );
        if self.num_replicas() == collective.replicas() {
            return Ok(());
        }
        if self.place() > 0 {
            gradients.clear();
        }
        ops.sum_over_workers(self.rank(), exchange, gradients.buckets_mut()?)
    }

    /// Calls `update` with the gradients of [`reduce_gradients`](Self::reduce_gradients) on each replica
    /// that has them, and passes shared parameters to the others. Running statistics stay per replica.
    ///
    /// # Errors
    /// The error of `update`, or a replica failed. With `--check-replicas`, parameters differ.
    pub fn update(
        &self,
        gradients: Option<FlatGradients>,
        update: impl FnOnce(FlatGradients) -> Result<()>,
    ) -> Result<()> {
        match (self.shared_update(), gradients) {
            (None, gradients) => update(gradients.context("there are no gradients")?)?,
            (Some(shared), Some(gradients)) => self.update_for_all(shared, || update(gradients))?,
            (Some(shared), None) => self.take_update(shared)?,
        }
        erased::average_statistics()?;
        if self.is_checked() {
            self.check_equal("the parameters", erased::hash()?)?;
        }
        Ok(())
    }

    fn update_for_all(
        &self,
        shared: &SharedUpdate,
        update: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        update()?;
        let state = erased::state()?;
        for other in 1..shared.made.len() {
            shared.made.push(other, state.clone_state());
        }
        self.cross_device_ops().meet()?;
        self.await_copies(state.has_running_statistics())
    }

    fn take_update(&self, shared: &SharedUpdate) -> Result<()> {
        self.cross_device_ops().meet()?;
        let made = shared.made.pop(self.place());
        let made = made.context("the first replica made no update")?;
        let has_statistics = made.has_running_statistics();
        made.register_on(self.device())?;
        self.await_copies(has_statistics)
    }

    /// Waits until the other replicas have copied their running statistics, which clones of the first
    /// replica's model share.
    fn await_copies(&self, has_statistics: bool) -> Result<()> {
        match has_statistics {
            true => self.cross_device_ops().meet(),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use anyhow::bail;

    use super::*;
    use crate::{
        comm::{ReduceOp, check_replicas},
        globals,
        model::{load_parameters, parameters},
        optim::Gradients,
        strategy::{MirroredStrategy, Strategy},
        task::TrainState,
        test_task::{self, Line},
        training::update_parameters,
    };

    type Update = fn(&ReplicaContext, FlatGradients) -> Result<()>;

    fn together(replica: &ReplicaContext, gradients: FlatGradients) -> Result<()> {
        let gradients = replica.reduce_gradients(gradients)?;
        assert_eq!(gradients.is_some(), replica.rank() == 0);
        replica.update(gradients, update_parameters::<Line>)
    }

    fn each_for_itself(replica: &ReplicaContext, mut gradients: FlatGradients) -> Result<()> {
        replica.all_reduce_buckets(ReduceOp::Sum, gradients.buckets_mut()?)?;
        update_parameters::<Line>(gradients)
    }

    /// A strategy whose replicas have a model and its optimizer.
    fn created(replicas: usize) -> Arc<dyn Strategy> {
        let strategy = MirroredStrategy::new(vec![Device::flex(); replicas], None).unwrap();
        let strategy: Arc<dyn Strategy> = Arc::new(strategy);
        // Each thread can register one strategy.
        thread::scope(|scope| scope.spawn(|| create(&strategy).unwrap()).join().unwrap());
        strategy
    }

    fn create(strategy: &Arc<dyn Strategy>) -> Result<()> {
        test_task::register(strategy, &test_task::options(&[]))?;
        strategy.run_on_all(|_| {
            globals::update_model::<Line>(|model| {
                let places = 0..parameters(&model).len();
                let values: Vec<_> = places.map(|place| (place as f32).cos() * 0.1).collect();
                load_parameters(model, &values)
            })
        })?;
        Ok(())
    }

    /// Gradients of this replica's model that depend on `number`.
    fn gradients(number: usize) -> Result<FlatGradients> {
        let mut gradients = FlatGradients::new(&globals::model::<Line>()?, Gradients::new())?;
        let values = gradients.buckets_mut()?.iter_mut().flatten();
        for (place, value) in values.enumerate() {
            *value = ((place + number) as f32).sin() * 1e-3;
        }
        Ok(gradients)
    }

    /// Per replica, after three updates with different gradients: number of updates, hash of the parameters,
    /// number of values in the optimizer state.
    fn after_updates(update: Update) -> Vec<(usize, u64, usize)> {
        let states = created(3).run_on_all(move |replica| {
            for step in 1..=3 {
                update(replica, gradients(10 * step + replica.rank())?)?;
            }
            let hash = erased::hash()?;
            let kept = globals::with_trainable::<Line, _>(|trainable| {
                let optimizers = trainable.optimizers_mut().into_iter();
                let kept = optimizers.map(|(_, optimizer)| optimizer.to_records().0.len());
                kept.sum()
            })?;
            Ok((globals::step(), hash, kept))
        });
        states.unwrap().into_iter().collect()
    }

    #[test]
    fn replicas_that_share_an_update_have_what_each_would_have_made() {
        let shared = after_updates(together);
        assert_eq!(shared[0].0, 3, "updates");
        assert_eq!(shared, after_updates(each_for_itself));
        assert!(shared.iter().all(|replica| *replica == shared[0]));
    }

    #[test]
    fn several_sums_may_come_before_their_updates() {
        let sums_first = after_updates(|replica, gradients| {
            let sums = [gradients.clone(), gradients].map(|one| replica.reduce_gradients(one));
            sums.into_iter()
                .try_for_each(|sum| replica.update(sum?, update_parameters::<Line>))
        });
        let in_turn = after_updates(|replica, gradients| {
            each_for_itself(replica, gradients.clone())?;
            each_for_itself(replica, gradients)
        });
        assert_eq!(sums_first, in_turn);
    }

    #[test]
    fn replicas_compare_all_or_none_whatever_is_chosen_later() {
        let strategies = [false, true].map(|is_checked| {
            if is_checked {
                check_replicas();
            }
            (is_checked, created(2))
        });
        for (is_checked, strategy) in strategies {
            let compare = strategy.run_on_all(|replica| {
                check_replicas();
                Ok((replica.is_checked(), replica.shared_update().is_none()))
            });
            let compare: Vec<_> = compare.unwrap().into_iter().collect();
            assert_eq!(compare, [(is_checked, is_checked); 2]);
        }
    }

    #[test]
    fn a_model_that_waits_for_its_update_says_so() {
        let failed = created(2).run_on_all(|replica| {
            replica.reduce_gradients(gradients(1)?)?;
            globals::model::<Line>().map(drop)
        });
        let message = format!("{:#}", failed.unwrap_err());
        assert!(message.contains("replica 1 of 2"), "{message}");
        assert!(message.contains("`replica.update` brings it"), "{message}");
    }

    /// The addresses of all parameters of each of two replicas, after an update.
    #[cfg(feature = "cpu-layers")]
    fn places_after(update: Update) -> Vec<Vec<usize>> {
        use burn::{
            backend::Flex,
            module::{Module, ModuleVisitor, Param},
            tensor::Tensor,
        };

        struct Places(Vec<usize>);

        impl ModuleVisitor for Places {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if param.is_require_grad() {
                    let tensor = param.val().inner().try_into_primitive::<Flex>();
                    let values = tensor.expect("a tensor on the CPU");
                    self.0.push(values.storage::<f32>().as_ptr() as usize);
                }
            }
        }

        let strategy = created(2);
        let places = strategy.run_on_all(move |replica| {
            update(replica, gradients(1)?)?;
            let mut places = Places(Vec::new());
            globals::with_model::<Line, _>(|model| model.visit(&mut places))?;
            Ok(places.0)
        });
        places.unwrap().into_iter().collect()
    }

    #[cfg(feature = "cpu-layers")]
    #[test]
    fn parameters_are_in_memory_once() {
        let shared = places_after(together);
        assert!(!shared[0].is_empty());
        assert_eq!(shared[0], shared[1]);
        let own = places_after(each_for_itself);
        assert!(own[0].iter().all(|place| !own[1].contains(place)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_of_updates_keep_to_a_core_each_where_they_have_all() {
        let may_use = || core_affinity::get_core_ids().unwrap();
        let all = may_use();
        let of_threads = |threads| {
            let places = [(); 2].map(|()| (Device::flex(), None));
            let shared = SharedUpdate::start(&places, threads).unwrap().unwrap();
            shared.threads.broadcast(|_| may_use())
        };
        let own: Vec<_> = all.iter().map(|core| vec![*core]).collect();
        assert_eq!(of_threads(all.len()), own);
        assert_eq!(of_threads(all.len() + 1), vec![all; own.len() + 1]);
    }

    #[test]
    fn an_update_that_fails_ends_the_waiting_of_the_others() {
        let failed = created(3).run_on_all(|replica| {
            let gradients = replica.reduce_gradients(gradients(1)?)?;
            replica.update(gradients, |_| bail!("no such parameter"))
        });
        let message = format!("{:#}", failed.unwrap_err());
        assert_eq!(message, "replica 0 of 3 failed: no such parameter");
    }
}

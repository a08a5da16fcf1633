//! Pipeline parallelism: models split into stages, each on its own device and thread, which process
//! micro-batches one after another.

mod stage;

use std::{
    collections::VecDeque,
    sync::mpsc::{Receiver, Sender, channel},
};

use anyhow::{Context, Result, anyhow};
use burn::{
    module::Module,
    optim::{GradientsAccumulator, GradientsParams},
    tensor::{Device, Tensor},
};

use crate::{
    anomalies, flops,
    model::random_layers::begin_forward_pass,
    optim::Gradients,
    precision,
    replica::{ReplicaContext, ReplicaThreads, replica_context},
};

pub use stage::{Activation, Stage, ensure_split, place};

pub use crate::replica::Pipeline;

impl Pipeline {
    /// Starts the stages on the prepared micro-batches of a batch.
    ///
    /// # Errors
    /// The thread of a stage is gone, or no replica runs on this thread.
    pub fn start<M: Module + Clone + Send + 'static, B: Module + 'static>(
        &self,
        model: &M,
        stages: &'static [Stage<M, B>],
        micro_batches: &[B],
    ) -> Result<PipelinedStep<M, B>> {
        let replica = replica_context()?;
        let (batch, draws_from_burn) = (replica.batch(), replica.draws_from_burn());
        let precision = precision::current();
        let parts = micro_batches.len();
        let (senders, receivers) = channels(stages.len());
        for _ in micro_batches {
            let start = Message::Forward(Activation::empty(&self.devices[0]));
            send(senders.first(), start);
        }
        let mut ends =
            stages
                .iter()
                .zip(receivers)
                .enumerate()
                .map(|(number, (stage, receiver))| StageEnds {
                    model: model.clone(),
                    forward: stage.forward,
                    draws_from_burn,
                    parts,
                    micro_batches: micro_batches.to_vec().into(),
                    device: self.devices[number].clone(),
                    messages: receiver,
                    earlier: number
                        .checked_sub(1)
                        .map(|earlier| senders[earlier].clone()),
                    next: senders.get(number + 1).cloned(),
                    gradients: GradientsAccumulator::new(),
                });
        let mut results = Vec::new();
        for (number, stage) in ends.by_ref().take(stages.len() - 1).enumerate() {
            let neighbours = [stage.earlier.clone(), stage.next.clone()];
            let (recording, trace) = (flops::recording(), anomalies::trace());
            let run = move |context: &ReplicaContext| {
                if let Some(batch) = batch {
                    context.begin_batch(batch);
                }
                precision::set(precision);
                let run = || match recording {
                    Some(recording) => recording.during(|| stage.run(parts)),
                    None => stage.run(parts),
                };
                match trace {
                    Some(trace) => trace.during(run),
                    None => run(),
                }
            };
            let thread = self.first + number;
            let result = start_stage(&self.threads, thread, Box::new(run), neighbours)?;
            results.push(result);
        }
        Ok(PipelinedStep {
            last: ends.next().context("a model needs a stage")?,
            start: None,
            results,
        })
    }
}

/// The output of the last stage for a whole batch, without micro-batches, as in validation; `devices` has
/// the device of each stage.
pub fn run_stages<M, B: Module>(
    model: &M,
    stages: &[Stage<M, B>],
    devices: &[Device],
    batch: &B,
) -> Activation {
    let has_autodiff = batch.devices().iter().any(Device::is_autodiff);
    let stages = stages.iter().zip(devices);
    stages.fold(Activation::empty(&devices[0]), |x, (stage, device)| {
        let device = match has_autodiff {
            true => device.clone(),
            false => device.clone().without_autodiff(),
        };
        let batch = batch.clone().to_device(&device);
        (stage.forward)(model, &batch, x.on(&device))
    })
}

/// A message to a stage.
enum Message {
    /// The input for the next micro-batch.
    Forward(Activation),
    /// The gradient of the output for the earliest micro-batch without one.
    Backward(Tensor<1>),
    /// Another stage has failed.
    Stop,
}

/// The gradients of a stage; `None` if another one has failed.
type StageResult = Result<Option<GradientsParams>>;

/// A channel for the messages to each stage. As the functions below, without types of a task, so that it is compiled
/// with the engine.
fn channels(stages: usize) -> (Vec<Sender<Message>>, Vec<Receiver<Message>>) {
    (0..stages).map(|_| channel()).unzip()
}

/// Starts `run` on a thread; if it has no gradients, its neighbours stop. Returns the channel for its result.
fn start_stage(
    threads: &ReplicaThreads,
    thread: usize,
    run: Box<dyn FnOnce(&ReplicaContext) -> StageResult + Send>,
    neighbours: [Option<Sender<Message>>; 2],
) -> Result<Receiver<StageResult>> {
    let (sender, result) = channel();
    let done = move |gradients: StageResult| {
        if !matches!(gradients, Ok(Some(_))) {
            neighbours.iter().flatten().for_each(stop);
        }
        // The receiver is gone if the replica has failed.
        let _ = sender.send(gradients);
    };
    threads.start_on(thread, run, done)?;
    Ok(result)
}

/// The result of a stage; `None` if its thread is gone.
fn result_of(stage: &Receiver<StageResult>) -> Option<StageResult> {
    stage.recv().ok()
}

/// The next message to a stage, which stops once all its neighbours are gone.
fn receive(messages: &Receiver<Message>) -> Message {
    messages.recv().unwrap_or(Message::Stop)
}

fn send(to: Option<&Sender<Message>>, message: Message) {
    if let Some(to) = to {
        // A stage that is gone has failed, and stops all others.
        let _ = to.send(message);
    }
}

fn stop(stage: &Sender<Message>) {
    send(Some(stage), Message::Stop);
}

/// A stage in a step, with channels to the neighbouring stages.
struct StageEnds<M: 'static, B: 'static> {
    model: M,
    forward: fn(&M, &B, Activation) -> Activation,
    /// Whether random layers of the model draw from the generator of Burn.
    draws_from_burn: bool,
    /// Number of micro-batches.
    parts: usize,
    /// Remaining micro-batches.
    micro_batches: VecDeque<B>,
    device: Device,
    messages: Receiver<Message>,
    earlier: Option<Sender<Message>>,
    next: Option<Sender<Message>>,
    gradients: GradientsAccumulator<M>,
}

impl<M: Module, B: Module> StageEnds<M, B> {
    /// Runs the forward and backward passes of all micro-batches; `None` if another stage has failed.
    fn run(mut self, parts: usize) -> StageResult {
        let mut waiting = VecDeque::new();
        let mut done = 0;
        while done < parts {
            match receive(&self.messages) {
                Message::Forward(input) => {
                    let (start, output) = self.compute(input)?;
                    send(self.next.as_ref(), Message::Forward(output.detached()));
                    waiting.push_back((start, output));
                }
                Message::Backward(gradient) => {
                    let (start, output) =
                        waiting.pop_front().context("no micro-batch is in flight")?;
                    // The gradient of this sum is that of the loss: the chain rule.
                    let gradient = Tensor::from_inner(gradient.to_device(&self.inner_device()));
                    let loss = (output.values().clone() * gradient).sum();
                    // Untracked in a first stage whose parameters are all frozen.
                    if loss.is_tracked() {
                        self.go_back(&start, &loss);
                    }
                    done += 1;
                }
                Message::Stop => return Ok(None),
            }
        }
        Ok(Some(self.gradients.grads()))
    }

    /// The input, as the leaf whose gradient goes to the previous stage, and the output.
    fn compute(&mut self, input: Activation) -> Result<(Activation, Activation)> {
        let start = input.begin_at(&self.inner_device(), self.earlier.is_some());
        let micro_batch = self.micro_batches.pop_front().context("a micro-batch")?;
        anomalies::begin_part(self.parts - self.micro_batches.len() - 1);
        let micro_batch = micro_batch.to_device(&self.device);
        let _forward = begin_forward_pass(self.draws_from_burn)?;
        let output = (self.forward)(&self.model, &micro_batch, start.clone());
        Ok((start, output))
    }

    /// Accumulates the gradients of the parameters, and sends the gradient of the input to the previous
    /// stage.
    fn go_back(&mut self, start: &Activation, loss: &Tensor<1>) {
        let mut gradients = loss.backward();
        if self.earlier.is_some() {
            let values = start.values();
            let gradient = values.grad_remove(&mut gradients);
            let zeros = || Tensor::zeros(values.shape(), &self.inner_device());
            let gradient = Message::Backward(gradient.unwrap_or_else(zeros));
            send(self.earlier.as_ref(), gradient);
        }
        let gradients = GradientsParams::from_grads(gradients, &self.model);
        self.gradients.accumulate(&self.model, gradients);
    }

    fn inner_device(&self) -> Device {
        self.device.clone().without_autodiff()
    }
}

/// A pipelined training step, as seen by the last stage.
pub struct PipelinedStep<M: Module + 'static, B: Module + 'static> {
    last: StageEnds<M, B>,
    /// The input of the micro-batch that has no gradient yet.
    start: Option<Activation>,
    results: Vec<Receiver<StageResult>>,
}

impl<M: Module, B: Module> PipelinedStep<M, B> {
    /// The output of the last stage for the next micro-batch.
    ///
    /// # Errors
    /// A stage failed.
    pub fn predict(&mut self) -> Result<Activation> {
        match receive(&self.last.messages) {
            Message::Forward(input) => {
                let (start, output) = self.last.compute(input)?;
                self.start = Some(start);
                Ok(output)
            }
            _ => Err(self.failure()),
        }
    }

    /// Backpropagates the loss, shape `[1]`, of this micro-batch through the stages.
    ///
    /// # Errors
    /// [`predict`](Self::predict) was not called before.
    pub fn backward(&mut self, loss: &Tensor<1>) -> Result<()> {
        let start = self.start.take().context("no part was predicted")?;
        self.last.go_back(&start, loss);
        Ok(())
    }

    /// The gradients of all stages, summed over micro-batches.
    ///
    /// # Errors
    /// A stage failed.
    pub fn gradients(mut self) -> Result<Gradients> {
        let mut gradients = Gradients::new().with(self.last.gradients.grads());
        for result in std::mem::take(&mut self.results) {
            let of_stage = result_of(&result).context("the thread of a stage is gone")??;
            gradients = gradients.with(of_stage.context("a stage was stopped")?);
        }
        Ok(gradients)
    }

    fn failure(&self) -> anyhow::Error {
        let failures = self
            .results
            .iter()
            .filter_map(|result| result_of(result)?.err());
        let first = failures.into_iter().next();
        first.unwrap_or_else(|| anyhow!("a stage has ended early"))
    }
}

impl<M: Module, B: Module> Drop for PipelinedStep<M, B> {
    fn drop(&mut self) {
        // If this replica has failed, earlier stages would wait for its gradients.
        self.last.earlier.iter().for_each(stop);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use anyhow::bail;
    use burn::{
        module::Param,
        nn::{Linear, LinearConfig},
    };

    use super::*;
    use crate::{
        model::{freeze, named_ids},
        optim::FlatGradients,
        strategy::{ModelParallelStrategy, Strategy},
    };

    #[derive(Module, Debug)]
    struct Layers {
        first: Linear,
        second: Linear,
        third: Param<Tensor<1>>,
    }

    const STAGES: &[Stage<Layers, Features>] = &[
        Stage {
            layers: &["first"],
            forward: |model, batch, _| model.first.forward(batch.values.clone()).tanh().into(),
        },
        Stage {
            layers: &["second"],
            forward: |model, _, x| model.second.forward(x.tensor::<2>()).tanh().into(),
        },
        Stage {
            layers: &["third"],
            forward: |model, _, x| (x.tensor::<2>() * model.third.val().unsqueeze()).into(),
        },
    ];

    #[derive(Module, Debug)]
    struct Features {
        values: Tensor<2>,
    }

    fn micro_batches(device: &Device) -> Vec<Features> {
        let parts = features(device).chunk(3, 0).into_iter();
        parts.map(|values| Features { values }).collect()
    }

    fn layers(device: &Device) -> Layers {
        Layers {
            first: LinearConfig::new(2, 3).init(device),
            second: LinearConfig::new(3, 4).init(device),
            third: Param::from_tensor(Tensor::from_floats([1.0, -2.0, 3.0, 0.5], device)),
        }
    }

    fn strategy() -> Arc<dyn Strategy> {
        let devices = vec![Device::flex(); 3];
        Arc::new(ModelParallelStrategy::new(&devices, STAGES.len(), 4).unwrap())
    }

    fn features(device: &Device) -> Tensor<2> {
        Tensor::<1, burn::tensor::Int>::arange(0..14, device)
            .float()
            .reshape([7, 2])
            / 10.0
    }

    /// The gradients of one step on the features in parts, with `stages`.
    fn step(
        context: &ReplicaContext,
        model: &Layers,
        stages: &'static [Stage<Layers, Features>],
    ) -> Result<Gradients> {
        let parts = micro_batches(context.device());
        let pipeline = context.pipeline().context("a pipeline")?;
        let mut step = pipeline.start(model, stages, &parts)?;
        for _ in &parts {
            let output = step.predict()?.tensor::<2>();
            step.backward(&output.square().sum())?;
        }
        step.gradients()
    }

    #[test]
    fn gradients_are_those_of_the_whole_model() {
        for frozen in ["none", "first", "second", "third"] {
            let difference = difference(frozen);
            assert!(difference < 1e-5, "{frozen}: {difference}");
        }
    }

    /// The largest difference between the gradients of the stages and those of the whole model, of which one layer
    /// is frozen.
    fn difference(frozen: &'static str) -> f32 {
        let differences = strategy().run_on_all(move |context| {
            let model = layers(context.device());
            let ids = named_ids(&model).into_iter();
            let ids = ids.filter_map(|(name, id)| name.starts_with(frozen).then_some(id));
            let model = freeze(model, &ids.collect())?;
            let in_stages = FlatGradients::new(&model, step(context, &model, STAGES)?)?;
            let pipeline = context.pipeline().context("a pipeline")?;
            let features = Features {
                values: features(context.device()),
            };
            let x = run_stages(&model, STAGES, pipeline.devices(), &features);
            let loss = x.tensor::<2>().square().sum();
            let whole = GradientsParams::from_grads(loss.backward(), &model);
            let whole = FlatGradients::new(&model, Gradients::new().with(whole))?;
            assert!(
                whole
                    .iter()
                    .all(|(_, values)| values.iter().any(|value| *value != 0.0))
            );
            let pairs = in_stages.to_values()?.into_iter().zip(whole.to_values()?);
            Ok(pairs
                .map(|(one, other)| (one - other).abs())
                .fold(0.0, f32::max))
        });
        differences.unwrap().into_iter().next().unwrap()
    }

    /// The error of a step with `stages`.
    fn failure(stages: &'static [Stage<Layers, Features>]) -> String {
        let result = strategy()
            .run_on_all(move |context| step(context, &layers(context.device()), stages).map(drop));
        format!("{:#}", result.unwrap_err())
    }

    #[test]
    fn a_stage_that_fails_ends_the_step() {
        const FIRST: &[Stage<Layers, Features>] = &[
            Stage {
                layers: &["first"],
                forward: |_, _, _| panic!("no such weight"),
            },
            STAGES[1],
            STAGES[2],
        ];
        const MIDDLE: &[Stage<Layers, Features>] = &[
            STAGES[0],
            Stage {
                layers: &["second"],
                forward: |_, _, x| x.tensor::<3>().into(),
            },
            STAGES[2],
        ];
        assert!(failure(FIRST).contains("no such weight"));
        let message = failure(MIDDLE);
        assert!(
            message
                .contains("a stage takes a tensor of rank 3, and the one before it gives [[3, 3]]"),
            "{message}"
        );
    }

    #[test]
    fn a_replica_that_fails_ends_its_stages() {
        let strategy = strategy();
        let result = strategy.run_on_all(|context| -> Result<()> {
            let model = layers(context.device());
            let parts = micro_batches(context.device());
            let pipeline = context.pipeline().context("a pipeline")?;
            let mut step = pipeline.start(&model, STAGES, &parts)?;
            step.predict()?;
            bail!("no such label")
        });
        assert!(format!("{:#}", result.unwrap_err()).contains("no such label"));
        // The threads of the stages are free for the next step.
        let again = strategy
            .run_on_all(|context| step(context, &layers(context.device()), STAGES).map(drop));
        assert!(again.is_ok());
    }

    #[test]
    fn a_split_that_does_not_fit_the_model_is_refused() {
        const UNKNOWN: &[Stage<Layers, Features>] = &[Stage {
            layers: &["fourth"],
            forward: |_, _, x| x,
        }];
        const TWICE: &[Stage<Layers, Features>] = &[Stage {
            layers: &["first", "second", "third", "first"],
            forward: |_, _, x| x,
        }];
        let error = |stages| {
            let model = layers(&Device::flex());
            ensure_split(&model, stages).unwrap_err().to_string()
        };
        assert!(ensure_split(&layers(&Device::flex()), STAGES).is_ok());
        let unknown = error(UNKNOWN);
        assert!(
            unknown.contains(
                "names the layer `fourth`, and those of the model are first, second, third"
            ),
            "{unknown}"
        );
        assert!(error(&STAGES[..2]).contains("the layer `third` is in 0 stages"));
        assert!(error(TWICE).contains("the layer `first` is in 2 stages"));
    }
}

//! A record of which values and gradients of a step are finite, as its layers see them.

use std::{
    cell::RefCell,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use burn::{
    module::ParamId,
    tensor::{Tensor, TensorData},
};

use kiln_kernels::autodiff::map_gradient;

use crate::device::read_data;

/// The record of one step of a replica, shared by the threads of its pipeline stages.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    record: Arc<Mutex<Record>>,
    /// Indices in the dataset of the examples of the shard.
    examples: Arc<[usize]>,
    /// Micro-batches of the shard.
    parts: usize,
}

/// Calls of layers, and checks of the tensors that pass through them.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// In the order of the forward pass.
    pub calls: Vec<Call>,
    /// In the order of computation.
    pub checks: Vec<Check>,
}

/// A call of a layer, or of a function such as a loss.
#[derive(Debug)]
pub(crate) struct Call {
    pub name: &'static str,
    /// The id of the weight, by which the model knows its path.
    pub weight: Option<ParamId>,
    /// Index of the micro-batch.
    pub part: usize,
    /// Shapes of the last input and of the output.
    pub shapes: [Vec<usize>; 2],
}

/// The check of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check {
    /// Index of the call.
    pub call: usize,
    pub place: Place,
    /// `None` if all values are finite.
    pub found: Option<Found>,
}

/// The checked value of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The images of the batch, which no layer computed.
    Batch,
    Input,
    Output,
    OutputGradient,
    InputGradient,
}

impl Place {
    pub fn is_forward(self) -> bool {
        !matches!(self, Place::OutputGradient | Place::InputGradient)
    }
}

/// The first value of a tensor that is not finite.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub value: f32,
    /// Index in the dataset of the example to which the value belongs, if the first dimension is that of examples.
    pub example: Option<usize>,
}

/// The trace of a thread.
struct Active {
    trace: Trace,
    part: usize,
    /// Whether a layer is being called: the layers of which it consists are not recorded.
    is_within: bool,
}

thread_local! {
    static ACTIVE: RefCell<Option<Active>> = const { RefCell::new(None) };
}

impl Trace {
    /// The trace of a shard with `examples`, given by their indices in the dataset, in `parts` micro-batches.
    pub fn new(examples: Vec<usize>, parts: usize) -> Self {
        Trace {
            record: Arc::default(),
            parts: parts.min(examples.len()).max(1),
            examples: examples.into(),
        }
    }

    /// Runs `step`, and records the layers that it calls on this thread.
    pub fn during<R>(self, step: impl FnOnce() -> R) -> R {
        /// Ends the record also if `step` panics.
        struct Guard(Option<Active>);

        impl Drop for Guard {
            fn drop(&mut self) {
                ACTIVE.set(self.0.take());
            }
        }

        let active = Active {
            trace: self,
            part: 0,
            is_within: false,
        };
        let _guard = Guard(ACTIVE.replace(Some(active)));
        step()
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, name: &'static str, weight: Option<ParamId>, part: usize) -> usize {
        let mut record = self.record();
        record.calls.push(Call {
            name,
            weight,
            part,
            shapes: Default::default(),
        });
        record.calls.len() - 1
    }

    fn check<const D: usize>(&self, call: usize, place: Place, tensor: Tensor<D>) {
        let shape = tensor.dims();
        let found = first_non_finite(tensor);
        let mut record = self.record();
        let of = &mut record.calls[call];
        match place {
            Place::Batch | Place::Input => of.shapes[0] = shape.to_vec(),
            Place::Output => of.shapes[1] = shape.to_vec(),
            Place::OutputGradient | Place::InputGradient => {}
        }
        let found = found.map(|(value, row)| Found {
            value,
            example: self.example(of.part, shape.first().copied(), row),
        });
        record.checks.push(Check { call, place, found });
    }

    /// The example of row `row` of `rows`, in a micro-batch; `None` if rows are not examples.
    fn example(&self, part: usize, rows: Option<usize>, row: usize) -> Option<usize> {
        let start = |part| self.examples.len() * part / self.parts;
        let of_part = self.examples.get(start(part)..start(part + 1))?;
        (rows == Some(of_part.len())).then(|| of_part[row])
    }
}

/// The trace of this thread, to be continued by [`Trace::during`] on another one.
pub(crate) fn trace() -> Option<Trace> {
    ACTIVE.with_borrow(|active| active.as_ref().map(|active| active.trace.clone()))
}

/// Notes that what follows on this thread is of micro-batch number `part`, from 0.
pub(crate) fn begin_part(part: usize) {
    ACTIVE.with_borrow_mut(|active| {
        if let Some(active) = active {
            active.part = part;
        }
    });
}

/// Checks the images that the model gets, `[batch, channels, height, width]`.
pub(crate) fn check_images(images: impl FnOnce() -> Option<Tensor<4>>) {
    if let Some((trace, call)) = &Watch::begin("images", None).0
        && let Some(images) = images()
    {
        trace.check(*call, Place::Batch, images);
    }
}

/// The checks of a call of a layer; nothing without a trace.
pub(crate) struct Watch(Option<(Trace, usize)>);

impl Watch {
    /// Begins a call of the layer or function `name`, with the id of its weight, if it has one.
    pub fn begin(name: &'static str, weight: Option<ParamId>) -> Self {
        Watch(ACTIVE.with_borrow_mut(|active| {
            let active = active.as_mut().filter(|active| !active.is_within)?;
            active.is_within = true;
            let call = active.trace.begin(name, weight, active.part);
            Some((active.trace.clone(), call))
        }))
    }

    /// Checks an input, and in the backward pass its gradient.
    pub fn input<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.pass(x, Place::Input, Place::InputGradient)
    }

    /// Checks the output, and in the backward pass its gradient; ends the call.
    pub fn output<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        self.pass(x, Place::Output, Place::OutputGradient)
    }

    /// The gradient is checked where [`map_gradient`] runs.
    fn pass<const D: usize>(&self, x: Tensor<D>, value: Place, gradient: Place) -> Tensor<D> {
        let Some((trace, call)) = &self.0 else {
            return x;
        };
        trace.check(*call, value, x.clone());
        let (trace, call) = (trace.clone(), *call);
        let check = move |of: Tensor<D>| {
            trace.check(call, gradient, of.clone());
            of
        };
        map_gradient(&x, check).unwrap_or(x)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.0.is_some() {
            ACTIVE.with_borrow_mut(|active| {
                if let Some(active) = active {
                    active.is_within = false;
                }
            });
        }
    }
}

/// The first value that is not finite, and its index in the first dimension; `None` also if the device failed,
/// which the read of the losses reports.
fn first_non_finite<const D: usize>(x: Tensor<D>) -> Option<(f32, usize)> {
    let x = match x.is_autodiff() {
        true => x.inner(),
        false => x,
    };
    if is_true(&read_data(x.clone().is_finite().all()).ok()?) {
        return None;
    }
    let rows = x.dims().first().copied().unwrap_or(1).max(1);
    non_finite(read_data(x).ok()?, rows)
}

fn is_true(values: &TensorData) -> bool {
    values.iter::<bool>().all(|value| value)
}

/// The first value of `rows` rows that is not finite, and its row.
fn non_finite(values: TensorData, rows: usize) -> Option<(f32, usize)> {
    let values: Vec<f32> = values.convert::<f32>().try_into_vec().ok()?;
    let place = values.iter().position(|value| !value.is_finite())?;
    Some((values[place], place / (values.len() / rows).max(1)))
}

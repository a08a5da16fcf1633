//! Messages between replicas and the parameter server, and their encoding.

use anyhow::{Context, Result, bail};
use kiln_kernels::elementwise::{from_bfloat16, to_bfloat16};

use crate::{
    bytes::{extend, to_values},
    checkpoint::interrupt::Stop,
    comm::ExchangePrecision,
};

/// A request to the parameter server.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Claims the next unclaimed update.
    Claim,
    /// Requests a stop: no more updates can be claimed.
    Stop(Stop),
    /// Requests the current parameters and a ticket.
    Pull { replica: usize },
    /// Pushes gradients for an update, and returns the ticket.
    Push {
        replica: usize,
        /// The precision in which `gradients` are sent.
        exchange: ExchangePrecision,
        gradients: Vec<f32>,
    },
    /// Returns the ticket without an update.
    Release { replica: usize },
    /// Announces that the process sends no more requests before the join.
    Done { worker: usize },
}

/// An answer of the parameter server.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The number of the claimed update.
    Update(usize),
    /// Training stops after this many updates since the last join.
    Stop { after: usize, reason: Stop },
    /// The number of updates so far, the loss scale (0 without one) and the values of all parameters after
    /// them.
    Parameters {
        step: usize,
        loss_scale: f32,
        values: Vec<f32>,
    },
    /// The server failed, for this reason.
    Failed(String),
}

impl Request {
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Request::Claim => bytes(0, 0, &[]),
            Request::Stop(reason) => bytes(1, reason.code(), &[]),
            Request::Pull { replica } => bytes(2, replica, &[]),
            Request::Push {
                replica,
                exchange,
                gradients,
            } => match exchange {
                ExchangePrecision::Float32 => bytes(3, replica, &gradients),
                ExchangePrecision::Bfloat16 => {
                    let mut bytes = bytes(6, replica, &[]);
                    let words = to_bfloat16(&gradients).into_iter();
                    bytes.extend(words.flat_map(u16::to_le_bytes));
                    bytes
                }
            },
            Request::Release { replica } => bytes(4, replica, &[]),
            Request::Done { worker } => bytes(5, worker, &[]),
        }
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// The bytes are no request.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (kind, number, rest) = parts(bytes)?;
        Ok(match kind {
            0 => Request::Claim,
            1 => Request::Stop(stop(number)?),
            2 => Request::Pull { replica: number },
            3 => Request::Push {
                replica: number,
                exchange: ExchangePrecision::Float32,
                gradients: to_values(rest),
            },
            4 => Request::Release { replica: number },
            5 => Request::Done { worker: number },
            6 => {
                let words = rest.as_chunks().0.iter();
                let words = words.map(|word| from_bfloat16(u16::from_le_bytes(*word)));
                Request::Push {
                    replica: number,
                    exchange: ExchangePrecision::Bfloat16,
                    gradients: words.collect(),
                }
            }
            _ => bail!("a request to the parameter server has the unknown kind {kind}"),
        })
    }
}

impl Answer {
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Answer::Update(number) => bytes(0, number, &[]),
            Answer::Stop { after, reason } => {
                let mut bytes = bytes(1, after, &[]);
                bytes.extend_from_slice(&(reason.code() as u64).to_le_bytes());
                bytes
            }
            Answer::Parameters {
                step,
                loss_scale,
                values,
            } => {
                let mut bytes = bytes(2, step, &values);
                extend(&mut bytes, &[loss_scale]);
                bytes
            }
            Answer::Failed(reason) => {
                let mut bytes = bytes(3, 0, &[]);
                bytes.extend_from_slice(reason.as_bytes());
                bytes
            }
        }
    }

    /// Decodes an answer.
    ///
    /// # Errors
    /// The bytes are no answer.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (kind, number, rest) = parts(bytes)?;
        Ok(match kind {
            0 => Answer::Update(number),
            1 => {
                let reason = rest.first_chunk().context("a short message")?;
                Answer::Stop {
                    after: number,
                    reason: stop(u64::from_le_bytes(*reason) as usize)?,
                }
            }
            2 => {
                let mut values = to_values(rest);
                Answer::Parameters {
                    step: number,
                    loss_scale: values.pop().context("a short message")?,
                    values,
                }
            }
            3 => Answer::Failed(String::from_utf8_lossy(rest).into_owned()),
            _ => bail!("an answer of the parameter server has the unknown kind {kind}"),
        })
    }
}

/// Encodes a message: a kind, a number, then values; all little-endian.
fn bytes(kind: u8, number: usize, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(9 + 4 * values.len());
    bytes.push(kind);
    bytes.extend_from_slice(&(number as u64).to_le_bytes());
    extend(&mut bytes, values);
    bytes
}

fn parts(bytes: &[u8]) -> Result<(u8, usize, &[u8])> {
    let (kind, rest) = bytes.split_first().context("an empty message")?;
    let (number, rest) = rest.split_first_chunk().context("a short message")?;
    Ok((*kind, u64::from_le_bytes(*number) as usize, rest))
}

fn stop(code: usize) -> Result<Stop> {
    let stop = Stop::ALL.get(code).copied();
    stop.with_context(|| format!("a request to stop has the unknown code {code}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_from_their_bytes() {
        let gradients = vec![1.5, -0.0, f32::MIN_POSITIVE];
        for request in [
            Request::Claim,
            Request::Stop(Stop::Callback),
            Request::Pull { replica: 7 },
            Request::Push {
                replica: 3,
                exchange: ExchangePrecision::Float32,
                gradients: gradients.clone(),
            },
            Request::Release { replica: 0 },
            Request::Done { worker: 2 },
        ] {
            let bytes = request.clone().into_bytes();
            assert_eq!(Request::from_bytes(&bytes).unwrap(), request);
        }
        for answer in [
            Answer::Update(1 << 40),
            Answer::Stop {
                after: 5,
                reason: Stop::ALL[1],
            },
            Answer::Parameters {
                step: 9,
                loss_scale: 1024.0,
                values: gradients,
            },
            Answer::Failed("no".to_owned()),
        ] {
            let bytes = answer.clone().into_bytes();
            assert_eq!(Answer::from_bytes(&bytes).unwrap(), answer);
        }
        assert!(Request::from_bytes(&[9, 0, 0]).is_err());
        assert!(Request::from_bytes(&bytes(9, 0, &[])).is_err());
        assert!(Request::from_bytes(&bytes(1, 99, &[])).is_err());
    }

    #[test]
    fn gradients_in_bfloat16_take_half_the_bytes() {
        let (exact, rounded) = (ExchangePrecision::Float32, ExchangePrecision::Bfloat16);
        let push = |exchange, gradients: &[f32]| Request::Push {
            replica: 3,
            exchange,
            gradients: gradients.to_vec(),
        };
        let gradients = [1.001, -0.5, f32::NEG_INFINITY];
        let head = push(rounded, &[]).into_bytes().len();
        let [all, half] = [exact, rounded].map(|one| push(one, &gradients).into_bytes().len());
        assert_eq!(2 * (half - head), all - head);
        let came = Request::from_bytes(&push(rounded, &gradients).into_bytes()).unwrap();
        assert_eq!(came, push(rounded, &[1.0, -0.5, f32::NEG_INFINITY]));
    }
}

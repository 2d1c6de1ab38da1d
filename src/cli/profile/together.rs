//! Streams that run together: starts them, tells the window what comes when, and ends them once it is complete.
//!
//! Invariant: when it returns, for whatever reason, all its connections are closed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{self, Sender};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::ask::client::Trouble;
use crate::ask::legs::Rig;
use crate::ask::prompt::Prompt;
use crate::ask::tokens::Tokens;
use crate::base::prng::Prng;
use crate::base::time::{Clock, Instant};
use crate::fleet::measure::window::{Steady, Window, WindowFault};

/// Why one point could not be had.
pub enum Missed {
    Window(WindowFault),
    Late(Duration),
    /// It takes no more requests (429, 503).
    Full(u16),
    Trouble(Trouble),
}

enum News {
    Arrived(usize, Instant, u64),
    Ended(Result<(), Trouble>),
}

/// Starts a stream for each prompt, waits until all have run together for long enough, and ends them by leaving.
pub async fn run(
    rig: &Arc<Rig>,
    prompts: Vec<Prompt>,
    window_tokens: u64,
    bound: Duration,
    prng: &mut Prng,
) -> Result<Steady, Missed> {
    let lengths: Vec<u64> = prompts.iter().map(|prompt| prompt.tokens).collect();
    let mut window = Window::new(&lengths, window_tokens);
    let (send, mut news) = mpsc::channel(NEWS_MAX);
    let mut running = JoinSet::new();
    for (index, prompt) in prompts.into_iter().enumerate() {
        let (rig, send, room) = (rig.clone(), send.clone(), prng.u64() >> 1);
        running.spawn(async move {
            let ended = match rig.start(&prompt, room).await {
                Ok(tokens) => follow(&rig, tokens, index, &send).await,
                Err(trouble) => Err(trouble),
            };
            // Nobody listens once the window is complete.
            let _ = send.send(News::Ended(ended)).await;
        });
    }
    drop(send);
    let complete = async {
        while let Some(news) = news.recv().await {
            match news {
                News::Arrived(stream, at, tokens) => {
                    if window.arrived(stream, at, tokens) {
                        break;
                    }
                }
                News::Ended(Ok(())) => return Err(Missed::Window(window.ended())),
                News::Ended(Err(trouble)) => return Err(trouble.into()),
            }
        }
        window.result().map_err(Missed::Window)
    };
    let steady = timeout(bound, complete).await;
    running.shutdown().await;
    steady.unwrap_or(Err(Missed::Late(bound)))
}

/// Tells what comes, until the stream ends.
async fn follow(
    rig: &Rig,
    mut tokens: Tokens,
    index: usize,
    send: &Sender<News>,
) -> Result<(), Trouble> {
    loop {
        let step = tokens.next().await?;
        let now = rig.clock.now();
        if step.tokens > 0 {
            let _ = send.send(News::Arrived(index, now, step.tokens)).await;
        }
        if step.done {
            return Ok(());
        }
    }
}

impl From<Trouble> for Missed {
    fn from(trouble: Trouble) -> Missed {
        match trouble {
            Trouble::Status {
                status: status @ (429 | 503),
                ..
            } => Missed::Full(status),
            other => Missed::Trouble(other),
        }
    }
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missed::Window(fault) => write!(f, "{fault}; does it run so many at once?"),
            Missed::Late(bound) => write!(f, "not within {bound:?}"),
            Missed::Full(status) => write!(f, "it takes no more requests ({status})"),
            Missed::Trouble(trouble) => trouble.fmt(f),
        }
    }
}

/// Arrivals that may wait to be looked at.
const NEWS_MAX: usize = 1_024;

//! What reaches one connection's task from elsewhere: the control thread's answer, a call to look at its place in a line, the end.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

use crate::metrics::standing::Answer;

/// Mail as one connection gets it.
#[derive(Debug)]
pub enum ConnectionMail {
    Answer(Answer),
    /// What it waits for in a line may have come.
    Look,
    CloseIdle,
    /// A deadline of it may be over.
    Alarm,
}

/// At most one letter waits: a connection asks one thing at a time, and closing comes last. Beside it a call to look, and an alarm.
#[derive(Default)]
pub struct ConnectionMailbox {
    letter: RefCell<Option<ConnectionMail>>,
    look: Cell<bool>,
    alarm: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl ConnectionMailbox {
    pub fn take(&self) -> Option<ConnectionMail> {
        if self.look.replace(false) {
            return Some(ConnectionMail::Look);
        }
        // A deadline comes last: what has come by then was in time.
        let letter = self.letter.borrow_mut().take();
        letter.or_else(|| self.alarm.replace(false).then_some(ConnectionMail::Alarm))
    }

    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.look.get() || self.alarm.get() || self.letter.borrow().is_some() {
            return Poll::Ready(());
        }
        let mut waker = self.waker.borrow_mut();
        match &*waker {
            Some(known) if known.will_wake(cx.waker()) => {}
            _ => *waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    pub(super) fn put(&self, letter: ConnectionMail) {
        match letter {
            ConnectionMail::Look => self.look.set(true),
            ConnectionMail::Alarm => self.alarm.set(true),
            letter => *self.letter.borrow_mut() = Some(letter),
        }
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

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
    /// The process ends in a moment: what is still under way is out of time.
    Expire,
    /// A deadline of it may be over.
    Alarm,
}

/// One letter of each kind waits at most: a connection asks one thing at a time, and the others are the same said twice.
#[derive(Default)]
pub struct ConnectionMailbox {
    answer: RefCell<Option<Answer>>,
    look: Cell<bool>,
    close: Cell<bool>,
    expire: Cell<bool>,
    alarm: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl ConnectionMailbox {
    pub fn take(&self) -> Option<ConnectionMail> {
        if self.look.replace(false) {
            return Some(ConnectionMail::Look);
        }
        // What was asked is answered before the connection closes. A deadline comes last: what has come by then was in time.
        if let Some(answer) = self.answer.borrow_mut().take() {
            return Some(ConnectionMail::Answer(answer));
        }
        let rest = [
            (&self.close, ConnectionMail::CloseIdle),
            (&self.expire, ConnectionMail::Expire),
            (&self.alarm, ConnectionMail::Alarm),
        ];
        let mut rest = rest.into_iter();
        rest.find_map(|(waits, letter)| waits.replace(false).then_some(letter))
    }

    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let marks = [&self.look, &self.alarm, &self.close, &self.expire];
        if marks.iter().any(|waits| waits.get()) || self.answer.borrow().is_some() {
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
            ConnectionMail::CloseIdle => self.close.set(true),
            ConnectionMail::Expire => self.expire.set(true),
            ConnectionMail::Answer(answer) => *self.answer.borrow_mut() = Some(answer),
        }
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end that came right behind an answer took its place.
    // proves R-CTL-7
    #[test]
    fn no_letter_takes_the_place_of_another() {
        let mailbox = ConnectionMailbox::default();
        let answer = || ConnectionMail::Answer(Answer::not_found());
        for letter in [
            ConnectionMail::Alarm,
            ConnectionMail::Expire,
            ConnectionMail::CloseIdle,
        ] {
            mailbox.put(letter);
        }
        mailbox.put(answer());
        mailbox.put(ConnectionMail::Look);
        let names = |letter: ConnectionMail| {
            format!("{letter:?}")
                .split(['(', ' '])
                .next()
                .map(str::to_owned)
        };
        let all: Vec<_> = std::iter::from_fn(|| mailbox.take())
            .filter_map(names)
            .collect();
        assert_eq!(all, ["Look", "Answer", "CloseIdle", "Expire", "Alarm"]);
    }
}

//! Wakes every connection of a thread at once, when something happened to its engines that a sleeping one must look at.
//!
//! Invariant: at most one waker an ear; an ear that was given back is nobody's.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

#[derive(Debug, Default)]
pub struct Alarm {
    rung: Cell<u64>,
    ears: RefCell<Vec<Option<Waker>>>,
    free: RefCell<Vec<usize>>,
    /// Requests that are being answered.
    pub(super) answering: Cell<u64>,
}

/// One connection's place at the alarm.
#[derive(Debug)]
pub(super) struct Ear {
    alarm: Rc<Alarm>,
    index: usize,
    heard: u64,
}

impl Alarm {
    pub fn ring(&self) {
        self.rung.set(self.rung.get() + 1);
        let wakers: Vec<Waker> = self
            .ears
            .borrow_mut()
            .iter_mut()
            .filter_map(Option::take)
            .collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Requests that are being answered.
    pub fn answering(&self) -> u64 {
        self.answering.get()
    }
}

impl Ear {
    pub(super) fn new(alarm: &Rc<Alarm>) -> Self {
        let index = alarm.free.borrow_mut().pop().unwrap_or_else(|| {
            alarm.ears.borrow_mut().push(None);
            alarm.ears.borrow().len() - 1
        });
        Ear {
            alarm: alarm.clone(),
            index,
            heard: alarm.rung.get(),
        }
    }

    /// Ready when the alarm rang since it was last heard.
    pub(super) async fn rung(&mut self) {
        poll_fn(|cx| {
            if self.alarm.rung.get() != self.heard {
                self.heard = self.alarm.rung.get();
                return Poll::Ready(());
            }
            let mut ears = self.alarm.ears.borrow_mut();
            match &mut ears[self.index] {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.alarm.ears.borrow_mut()[self.index] = None;
        self.alarm.free.borrow_mut().push(self.index);
    }
}

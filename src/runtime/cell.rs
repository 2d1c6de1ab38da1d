//! What one shard's tasks share on their thread: the shard itself, its pool of engine connections, its buffers and its mail.
//!
//! Owned by one thread, never sent. Borrows are short: none is held across an `await`. What crosses threads are two bounded queues of plain
//! data and of sockets: mail in ([`Mail`]), requests for the control thread out ([`ControlPort`]).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::alarms::Alarms;
use super::clock::{MonotonicClock, unix_seconds};
use super::io::Rt;
use super::letters::{ConnectionMail, ConnectionMailbox};
use super::line::Line;
use super::mail::Mailbox;
use super::pool::Pool;
use super::read_buffer::FreeBuffers;
use super::tls;
use crate::base::time::{Clock, Instant};
use crate::metrics::histogram::Series;
use crate::metrics::ledger::Cell as LedgerCell;
use crate::metrics::standing::Answer;
use crate::shard::waits::Awaited;
use crate::shard::{ControlRequest, Note, Shard};
use crate::wire::h1::encode;

mod handover;

mod engines;

mod held;

mod turns;

pub mod change;

use change::{Letter, Ready, Told};
use held::Held;
use turns::Turns;

/// What the control thread and other shards send to a shard.
#[derive(Debug)]
pub enum Mail {
    /// The answer to what a connection asked.
    Answer { token: u64, answer: Answer },
    /// Another shard handed this one a permit.
    Granted(Awaited),
    /// Another shard accepted this connection and has read nothing; it is counted here already.
    Connection { stream: TcpStream, peer: SocketAddr },
    /// A step on the way to another fleet.
    Fleet(Letter),
    /// Shutting down: stop listening, close connections as they fall idle.
    Close,
    /// Shutting down now: what is still under way is out of time.
    Expire,
}

/// Where a shard sends what it does not do itself. Implemented by the control room; neither call may block.
pub trait ControlPort: Send + Sync + 'static {
    /// False when the queue is full.
    fn ask(&self, shard: usize, request: ControlRequest) -> bool;
    fn note(&self, note: Note);
    /// The shard has read a [`Letter`].
    fn told(&self, told: Told) {
        drop(told);
    }
}

/// See the head of this file.
pub struct ShardCell<R: Rt> {
    pub shard: RefCell<Shard>,
    pool: RefCell<Pool<Line<R>>>,
    /// The version of the engines' addresses that the pool has followed.
    followed: Cell<u64>,
    /// For https engines.
    tls: RefCell<Option<tls::Client>>,
    /// What is to take effect when the control thread says so.
    next: RefCell<Option<Ready>>,
    read_buffers: RefCell<FreeBuffers>,
    alarms: Alarms,
    turns: Turns,
    held: Held,
    mailboxes: RefCell<BTreeMap<u64, Rc<ConnectionMailbox>>>,
    next_token: Cell<u64>,
    closing: Cell<bool>,
    clock: MonotonicClock,
    /// Of all shards, by number.
    mail: Arc<[Arc<Mailbox<Mail>>]>,
    own: usize,
    control: Arc<dyn ControlPort>,
}

impl<R: Rt> ShardCell<R> {
    pub fn new(
        mut shard: Shard,
        tls: Option<tls::Client>,
        mail: Arc<[Arc<Mailbox<Mail>>]>,
        control: Arc<dyn ControlPort>,
    ) -> Rc<Self> {
        shard.clock = || MonotonicClock::new().now();
        let own = shard.id.index();
        let pool_max = shard.snapshot.fleet.engine.pool_max.unwrap_or(0);
        let held = Held::new(shard.snapshot.engines.len(), pool_max);
        Rc::new(ShardCell {
            shard: RefCell::new(shard),
            pool: RefCell::new(Pool::new(pool_max)),
            followed: Cell::new(0),
            tls: RefCell::new(tls),
            next: RefCell::new(None),
            held,
            read_buffers: RefCell::default(),
            alarms: Alarms::default(),
            turns: Turns::default(),
            mailboxes: RefCell::default(),
            next_token: Cell::new(1),
            closing: Cell::new(false),
            clock: MonotonicClock::new(),
            mail,
            own,
            control,
        })
    }

    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    // ── connections ──

    /// A new connection's address for mail.
    pub fn enlist(&self) -> (u64, Rc<ConnectionMailbox>) {
        let token = self.next_token.get();
        self.next_token.set(token + 1);
        let mailbox = Rc::new(ConnectionMailbox::default());
        if self.closing.get() {
            mailbox.put(ConnectionMail::CloseIdle);
        }
        self.mailboxes.borrow_mut().insert(token, mailbox.clone());
        self.shard.borrow().ledger.update(|tx| {
            tx.add(LedgerCell::ConnectionsAccepted, 1);
            tx.add(LedgerCell::ConnectionsOpen, 1);
        });
        (token, mailbox)
    }

    /// A connection is over; `alarm` is when it would have been woken.
    pub fn delist(&self, token: u64, alarm: Instant) {
        self.alarms.put(token, alarm, Instant::FAR);
        self.mailboxes.borrow_mut().remove(&token);
        let shard = self.shard.borrow();
        shard
            .ledger
            .update(|tx| tx.sub(LedgerCell::ConnectionsOpen, 1));
        shard.shared.connections.leave(self.own);
    }

    /// Hands on what stages left for the control thread.
    pub fn pass_on(&self, shard: &mut Shard) {
        while let Some(request) = shard.next_ask() {
            let token = request.token;
            if !self.control.ask(shard.id.index(), request) {
                self.deliver(token, ConnectionMail::Answer(busy()));
            }
        }
        while let Some(note) = shard.next_note() {
            self.control.note(note);
        }
        while let Some((to, line)) = shard.next_wake() {
            if to == self.own {
                self.call(shard.fetch_grants(line));
            } else {
                // A full mailbox is no loss: each shard looks by itself, a little later.
                let _ = self.mail[to].send(Mail::Granted(line));
            }
        }
    }

    /// Tells connections to look.
    fn call(&self, tokens: Vec<u64>) {
        for token in tokens {
            self.deliver(token, ConnectionMail::Look);
        }
    }

    /// What nobody told: a letter that found the mailbox full, or a router that may no longer serve.
    fn look_around(&self) {
        let shard = &mut *self.shard.borrow_mut();
        for line in shard.lines() {
            self.call(shard.fetch_grants(line));
            if shard.shared.held().is_some() {
                self.call(shard.waiting(line));
            }
        }
        self.pass_on(shard);
    }

    fn deliver(&self, token: u64, letter: ConnectionMail) {
        if let Some(mailbox) = self.mailboxes.borrow().get(&token) {
            mailbox.put(letter);
        }
    }

    pub fn free_buffers(&self) -> &RefCell<FreeBuffers> {
        &self.read_buffers
    }

    /// Moves the alarm of a connection.
    pub fn set_alarm(&self, token: u64, from: Instant, to: Instant) {
        self.alarms.put(token, from, to);
    }

    // ── the shard's own tasks ──

    async fn ring_alarms(self: Rc<Self>) {
        let ring = |token| self.deliver(token, ConnectionMail::Alarm);
        self.alarms.ring(|| self.now(), R::sleep, ring).await;
    }

    /// Accepts until told to close.
    async fn accept(self: Rc<Self>, listener: Rc<R::Listener>) {
        let mut accepted = 0u32;
        while !self.closing.get() {
            match R::accept(&listener).await {
                Ok((reader, writer, peer)) => {
                    self.admit(reader, writer, peer);
                    accepted = accepted.wrapping_add(1);
                    // On epoll the next one may be there already, and the one after it.
                    if accepted.is_multiple_of(ACCEPTS_MAX) {
                        self.give_way().await;
                    }
                }
                // Out of descriptors, most likely: others must close before it is worth trying again.
                Err(_) if !self.closing.get() => R::sleep(ACCEPT_PAUSE).await,
                Err(_) => {}
            }
        }
    }

    async fn read_mail(self: Rc<Self>, listeners: Rc<Vec<Rc<R::Listener>>>) {
        loop {
            let letter = self.mail[self.own].recv().await;
            self.on_mail(letter, &listeners);
        }
    }

    fn on_mail(self: &Rc<Self>, letter: Mail, listeners: &[Rc<R::Listener>]) {
        match letter {
            Mail::Answer { token, answer } => {
                self.deliver(token, ConnectionMail::Answer(answer));
            }
            Mail::Granted(line) => {
                let tokens = self.shard.borrow_mut().fetch_grants(line);
                self.call(tokens);
            }
            Mail::Connection { stream, peer } => self.take_over(stream, peer),
            Mail::Fleet(letter) => self.on_fleet(letter),
            Mail::Close => {
                self.closing.set(true);
                self.shard.borrow().shared.connections.close(self.own);
                for listener in listeners {
                    R::stop_listening(listener);
                }
                self.tell_all(|| ConnectionMail::CloseIdle);
            }
            Mail::Expire => self.tell_all(|| ConnectionMail::Expire),
        }
    }

    fn tell_all(&self, letter: impl Fn() -> ConnectionMail) {
        let all: Vec<_> = self.mailboxes.borrow().values().cloned().collect();
        for mailbox in all {
            mailbox.put(letter());
        }
    }

    /// What is due now and then. Reads the mail too, should a wake-up from another thread ever be missed.
    async fn keep_house(self: Rc<Self>, listeners: Rc<Vec<Rc<R::Listener>>>) {
        loop {
            #[cfg(debug_assertions)]
            super::planted::panic_when_told(self.own);
            while let Some(letter) = self.mail[self.own].try_recv() {
                self.on_mail(letter, &listeners);
            }
            {
                let shard = &mut *self.shard.borrow_mut();
                shard.date = encode::http_date(unix_seconds());
                shard.end_leases(self.now());
            }
            self.follow_addresses();
            let (idle, counts) = {
                let mut pool = self.pool.borrow_mut();
                pool.expire(self.now());
                (pool.idle(), pool.counts())
            };
            self.shard.borrow().ledger.update(|tx| {
                tx.set(LedgerCell::PoolIdle, idle as u64);
                tx.raise(LedgerCell::PoolHits, counts.taken);
                tx.raise(LedgerCell::PoolMisses, counts.missed);
                tx.raise(LedgerCell::MailDropped, self.mail[self.own].refused());
            });
            self.look_around();
            let due = self.now() + HOUSE_TICK;
            R::sleep(HOUSE_TICK).await;
            let late = self.now().since(due);
            let mut shard = self.shard.borrow_mut();
            shard.times.record(Series::LoopDelay, late);
            shard.loop_delay = late;
        }
    }
}

/// One shard, for the life of the process. Listeners are its own, and so is `tls`, which https engines need.
pub async fn run<R: Rt>(
    shard: Shard,
    tls: Option<tls::Client>,
    listeners: Vec<std::net::TcpListener>,
    mail: Arc<[Arc<Mailbox<Mail>>]>,
    control: Arc<dyn ControlPort>,
) -> std::io::Result<()> {
    let cell = ShardCell::<R>::new(shard, tls, mail, control);
    let listeners: Vec<Rc<R::Listener>> = listeners
        .into_iter()
        .map(|listener| R::from_listener(listener).map(Rc::new))
        .collect::<Result<_, _>>()?;
    for listener in &listeners {
        R::spawn(cell.clone().accept(listener.clone()));
    }
    let listeners = Rc::new(listeners);
    R::spawn(cell.clone().keep_house(listeners.clone()));
    R::spawn(cell.clone().ring_alarms());
    cell.read_mail(listeners).await;
    Ok(())
}

fn busy() -> Answer {
    let kind = "server_overloaded_error";
    let answer = Answer::error(503, "The control thread is busy", kind, None);
    Answer {
        retry_after: Some(1),
        ..answer
    }
}

/// Connections accepted before those that are there get a turn.
const ACCEPTS_MAX: u32 = 16;
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
const HOUSE_TICK: Duration = Duration::from_millis(100);
